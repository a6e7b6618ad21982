"""Records in the views of SHAP, Captum and inseq, each where its library is: the
environment of the other tests has Captum, that of `make others` has all of them.
"""

import os
import re
from importlib import import_module

import pytest
import torch

from lrp_loo.records import Attribution, Generation
from lrp_loo.records import Attributions

TOKENS = ['[CLS]', 'a', 'un', '##like', '##ly', 'joy', '[SEP]']
TEXT = 'a unlikely joy'
SPANS = [None, (0, 0, 1), (0, 2, 4), (0, 4, 8), (0, 8, 10), (0, 11, 14), None]


def library(name):
    "A library, or a test that is skipped; in `make others` none is."
    if os.environ.get('LRP_LOO_OTHERS') == 'all':
        return import_module(name)
    return pytest.importorskip(name)


def of(scores, logit=2.5):
    "An explanation by hand, of a text that the record knows."
    special = torch.tensor([True, *[False] * 5, True])
    info = dict(text=TEXT, spans=SPANS, probability=0.9)
    ids = torch.arange(7)
    given = (TOKENS, torch.tensor(scores), special, 1, logit, 'loo', 'positive')
    return Attribution(*given, ids, info)


ONE = of([0.5, 0.1, -0.3, 0.2, 0.0, 1.5, -0.1])
OTHER = of([0.0, 0.2, 0.3, 0.1, 0.4, -0.5, 0.1], logit=-1.0)


def test_shap_draws_one_text_that_ends_at_its_logit():
    shap = library('shap')
    import matplotlib.pyplot as plt

    e = ONE.to_shap()
    assert e.base_values + e.values.sum() == pytest.approx(ONE.logit)
    page = shap.plots.text(e, display=False)
    assert re.sub(r'\s+', ' ', ''.join(e.data)) == f'[CLS] {TEXT} [SEP]'
    assert 'joy' in page and '2.5' in page
    for plot in (shap.plots.waterfall, shap.plots.bar):
        plt.figure()
        plot(e, show=False)
        named = [label.get_text() for label in plt.gca().get_yticklabels()]
        assert any('joy' in name for name in named)
        plt.close('all')


def test_shap_draws_several_texts():
    shap = library('shap')
    import matplotlib.pyplot as plt

    maps = Attributions([ONE, OTHER])
    e = maps.to_shap()
    ends = [base + values.sum() for base, values in zip(e.base_values, e.values)]
    assert ends == pytest.approx([2.5, -1.0])
    assert shap.plots.text(e, display=False).count('joy') >= 2
    mean = e.mean(0)  # by word
    joy = list(mean.feature_names).index('joy')
    assert mean.values[joy] == pytest.approx(0.5)
    shap.plots.bar(mean, show=False)
    plt.close('all')


def test_captum_draws_a_record():
    v = library('captum.attr').visualization
    record = ONE.to_captum(true_class='positive')
    assert record.word_attributions.tolist() == pytest.approx(
        [s / 1.5 for s in ONE.scores.tolist()]
    )
    assert record.attr_score + record.convergence_score == pytest.approx(ONE.logit)
    page = v.visualize_text([record]).data
    assert 'joy' in page and 'positive (0.90)' in page
    dark = of([9.0, 0.1, 0.2, 0.0, 0.0, 1.0, 0.0])  # [CLS] is outside the scale
    assert dark.to_captum().word_attributions.max() == 1
    unknown = of([0.0] * 7)
    unknown.info.pop('probability')
    assert 'nan' in v.visualize_text([unknown.to_captum()]).data


def test_inseq_shows_a_generation(tmp_path):
    inseq = library('inseq')
    first = of([0.5, 0.1, -0.3, 0.2, 0.0, 1.5, -0.1])
    first.label, first.target = 'and', 7
    special = torch.tensor([*first.is_special, False])
    scores = torch.arange(8) / 10
    given = ([*TOKENS, 'and'], scores, special, 8, 1.0, 'loo', 'so')
    g = Generation([first, Attribution(*given, torch.arange(8))])
    out = g.to_inseq()
    (found,) = out.sequence_attributions
    assert [(t.token, t.id) for t in found.target] == list(zip(g.tokens, range(9)))
    assert found.attr_pos_start == 7
    assert torch.equal(found.target_attributions[:8, 1], scores)
    assert found.target_attributions[7:, 0].isnan().all()
    page = out.show(display=False, return_html=True)
    assert 'joy' in page and 'so' in page
    out.save(tmp_path / 'out.json', overwrite=True)
    again = inseq.FeatureAttributionOutput.load(tmp_path / 'out.json')
    assert again.sequence_attributions[0].target[-1].token == 'so'


def test_units_are_no_tokens_for_inseq():
    library('inseq')
    words = of([0.0] * 7)
    words.input_ids = torch.arange(9)
    with pytest.raises(ValueError, match="units='token'"):
        Generation([words]).to_inseq()
