"Intervals for LOO: quantiles over texts, coverage, refusals, certified top tokens."

import json
import math

from close import assert_close
from conftest import shallow_demo
import numpy as np
import pytest
import torch

from lrp_loo import explain, load_demo, refine
from lrp_loo.data import load_texts
from lrp_loo.evaluate.intervals import (
    FLOOR,
    Calibration,
    CalibrationText,
    Estimate,
    calibrate,
    load_calibration,
    reach_needed,
    settle_top,
    text_quantile,
    token_quantile,
    top_tokens,
)
from lrp_loo.inputs.targets import Target
from lrp_loo.lrp.composite import Composite
from lrp_loo.records import Attribution

TEXT = 'Nobody in this comedy is having any fun.'
FEW = ['a fine film', 'it drags', 'two dull hours']
QUIET = dict(progress=False)


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


@pytest.fixture(scope='module')
def texts():
    "Short texts, the longest of which have twenty tokens."
    return sorted(load_texts('sst2', 'embedded').texts, key=len)[20:80]


@pytest.fixture(scope='module', params=['token', 'word'])
def calibrated(demo, texts, request):
    "Units, and a calibration of thirty texts, two layers deep."
    return request.param, calibrate(
        *demo, texts[::2], 'removal', units=request.param, **QUIET
    )


def attribution(scores, **info):
    "An explanation whose first token is special."
    special = torch.arange(len(scores)) == 0
    return Attribution([*'abc'], torch.tensor(scores), special, 0, 0.0, info=info)


def test_the_unit_of_an_error_is_its_size_its_spread_and_a_share_of_all():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0], exact=[])
    u2 = np.array([1 + 9, 4 + 16])  # without the special token
    scale = np.sqrt(u2 + FLOOR**2 * u2.mean())
    kept = CalibrationText.of(a, attribution([0.0, 3.0, 1.0]))
    assert_close(kept.estimate.scale, scale)
    assert_close(kept.ratios(), [2, 1] / scale)
    # without a spread all tokens have the same unit
    kept = CalibrationText.of(attribution([9.0, 3.0, 4.0]), a)
    assert_close(kept.estimate.scale, np.sqrt([12.5, 12.5]))
    # an exact token has no width and no ratio
    a.info['exact'] = [2]
    kept = CalibrationText.of(a, attribution([0.0, 2.0, 2.0]))
    assert kept.estimate.exact == [1] and kept.estimate.scale[1] == 0
    assert len(kept.ratios()) == 1


@pytest.mark.parametrize('confidence', [0.5, 0.9])
def test_texts_of_one_token_make_both_the_usual_split_conformal(confidence):
    values = np.random.default_rng(0).gamma(1.0, size=99)
    ratios = [[v] for v in values]
    usual = np.sort(values)[math.ceil(100 * confidence) - 1]
    assert token_quantile(ratios, confidence) == usual
    assert text_quantile(ratios, confidence) == usual


def test_nine_of_ten_tokens_of_other_texts_lie_inside(demo, texts, calibrated):
    units, made = calibrated
    asked = (*demo, texts[1::2])
    maps = explain(*asked, 'removal', units=units, calibration=made)
    shares = []
    for a, loo in zip(maps, explain(*asked, 'loo', units=units)):
        inside = (a.low <= loo.scores) & (loo.scores <= a.high)
        shares.append(float(inside[~a.is_special].float().mean()))
    # 30 texts calibrate, 30 check: a standard error of some hundredths
    assert 0.75 < np.mean(shares) < 0.99


def test_settled_answers_are_right(demo, texts, calibrated):
    units, made = calibrated
    some = [t for t in texts[1::2] if len(t.split()) > 3][:10]
    right = 0
    for text, loo in zip(some, explain(*demo, some, 'loo', units=units)):
        found = top_tokens(*demo, text, 2, made)
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        assert found.settled
        scores, exact = found.attribution.scores, found.exact
        assert_close(scores[exact], loo.scores[exact], scale=abs(loo.logit) + 1)
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
    assert right >= 7  # nine of ten, and chance of ten


def calibration_file(**changed):
    "A calibration's file with other content in it."
    text = dict(scores=[1.0], spread=[], exact=[], loo=[2.0])
    kept = dict(model=dict(model='Bert', sha256='00'), method=['removal', {}])
    kept |= dict(texts=[text], units='token', target={}, special=[], copies=0)
    for name, value in changed.items():
        (text if name in text else kept)[name] = value
    return json.dumps({k: v for k, v in kept.items() if v != 'none'})


NO_CALIBRATION = ['no JSON', '{"rows": []}', '{"texts":' * 100_000] + [
    calibration_file(**{name: value})
    for name, values in dict(
        scores=(['1.0'], [True]),
        loo=([None], None, [float('nan')], [1.0, 2.0]),
        spread=([1.0, 2.0],),
        exact=([3],),
        texts=([3], None),
        model=('Bert', {}),
        method=('removal', ['removal', None]),
        target=('none',),
        special=('none',),
        copies=('3',),
        more=(1,),
    ).items()
    for value in values
]


@pytest.mark.parametrize('content', NO_CALIBRATION, ids=lambda x: x[:90])
def test_a_file_that_is_no_calibration_is_named(tmp_path, content):
    path = tmp_path / 'c.json'
    path.write_text(content)
    with pytest.raises(ValueError, match='c.json is no calibration'):
        load_calibration(path)
    path.write_text(calibration_file())
    assert load_calibration(path).quantile(0.5) == 1.0


def probability(out):
    return out.logits.softmax(-1)[:, 1]


def reads(i):
    return lambda out: out.logits[:, i]


@pytest.mark.parametrize(
    'target, other, words',
    [
        (None, (1, 0), 'the predicted class, not of the target index=\\[1, 0\\]'),
        (None, Target(log_prob=True), 'the predicted class, .* log_prob=True'),
        (None, probability, 'the predicted class, .* function=.*probability'),
        (None, [1], 'the predicted class, not of the target index=1'),
        ((1, 0), 0, 'the target index=\\[1, 0\\], not of the target index=0'),
        (Target(1, log_prob=True), 1, 'the target .*, not of the target index=1'),
        (reads(1), reads(0), 'call calibrate for the latter'),
        (reads(1), lambda out: out.logits[:, 1].exp(), 'call calibrate for the latter'),
    ],
)
def test_only_the_number_that_was_calibrated_gets_intervals(
    demo, target, other, words, tmp_path
):
    calibrate(*demo, FEW, 'removal', target=target, **QUIET).save(tmp_path / 'c.json')
    asked = dict(calibration=load_calibration(tmp_path / 'c.json'), confidence=0.5)
    (a,) = explain(*demo, TEXT, 'removal', target=target, **asked)
    assert len(a.low) == len(a)
    if not callable(target):  # the default is what was calibrated
        (b,) = explain(*demo, TEXT, 'removal', **asked)
        assert b.explained == a.explained and b.info['low'] == a.info['low']
    with pytest.raises(ValueError, match=words):
        explain(*demo, [TEXT], 'removal', target=other, **asked)
    if not isinstance(other, list):
        with pytest.raises(ValueError, match=words):
            top_tokens(*demo, TEXT, 1, target=other, **asked)


def test_another_rule_set_of_the_same_name_is_refused(demo):
    one, other = (dict(composite=Composite('mine', eps=e)) for e in (0.0, 0.1))
    asked = dict(calibration=calibrate(*demo, FEW, 'lrp', **QUIET, **one))
    explain(*demo, TEXT, 'lrp', **one, **asked, confidence=0.5)
    with pytest.raises(ValueError, match='calibration is of method lrp'):
        explain(*demo, TEXT, 'lrp', **other, **asked)


def test_spans_are_calibrated_by_other_spans(demo, texts):
    "Each text in halves."
    texts = texts[:12]
    halves = [[(0, len(t) // 2), (len(t) // 2, len(t))] for t in texts]
    made = calibrate(*demo, texts, 'removal', units=halves, **QUIET)
    assert made.units == 'span'
    units = [(0, 20), (20, len(TEXT))]
    (a,) = explain(*demo, TEXT, 'removal', calibration=made, units=units)
    assert len(a.low) == len(a) and bool((a.low <= a.scores).all())
    assert top_tokens(*demo, TEXT, 1, made, units=units).which[0] in (0, 1)
    with pytest.raises(ValueError, match='units'):
        top_tokens(*demo, TEXT, 1, made)


def test_a_template_is_calibrated_apart(demo, tmp_path):
    "Intervals of the text alone, kept in the file; another template is refused."
    around = dict(template='So they said: {text} and that was all')
    calibrate(*demo, FEW, 'removal', **QUIET, **around).save(tmp_path / 'c.json')
    asked = dict(calibration=load_calibration(tmp_path / 'c.json'), confidence=0.5)
    (a,) = explain(*demo, FEW[0], 'removal', **asked, **around)
    has_interval = [v is not None for v in a.info['low']]
    assert has_interval == a.is_content.tolist() and not all(has_interval)
    (b,) = explain(*demo, FEW[0], 'removal', **asked)  # the default
    assert b.tokens == a.tokens and b.info['low'] == a.info['low']
    for other in (dict(template='Well, {text}'), dict(among=[(0, 6)])):
        with pytest.raises(ValueError, match='the calibration is of texts in the'):
            explain(*demo, FEW[0], 'removal', **asked, **other)


@pytest.mark.parametrize(
    'x, s, loo, reach, most, expected',
    [
        # certainly inside and outside: none is read
        ([5.0, 1.0, 0.0], [1.0, 1.0, 1.0], [5.0, 1.0, 0.0], 1.9, None, ([0], True, [])),
        # a token of the top alone overlaps the others' ends
        ([5.0, 4.0], [1.0, 0.1], [4.5, 4.0], 1.0, None, ([0], True, [0])),
        # an exact number may change the answer
        ([3.0, 2.5, 0], [1.0, 0.9, 1.0], [1, 2.6, 0], 0.5, None, ([1], True, [0])),
        # the second is less certain, so it is read first
        ([3.0, 2.0], [0.1, 5.0], [3.0, 1.0], 1.0, None, ([0], True, [1])),
        # an exact token takes no pass
        ([3.0, 2.0], [0.0, 0.5], [3.0, 9.0], 1.0, None, ([0], True, [])),
        # two exact ones may be equal
        ([3.0, 3.0], [0.0, 0.0], [3.0, 3.0], 1.0, None, ([0], True, [])),
        # no more passes than allowed
        ([3.0, 2.5], [1.0, 1.0], [1.0, 2.0], 1.0, 0, ([0], False, [])),
    ],
)
def test_the_search(x, s, loo, reach, most, expected):
    assert settle_top(x, s, 1, loo.__getitem__, reach, most) == expected


def test_the_reach_that_is_needed_finds_the_top_and_less_may_not():
    "Over random texts: at τ the answer is right."
    rng = np.random.default_rng(0)
    missed = 0
    for k in (1, 2, 3) * 40:
        loo = np.abs(rng.normal(size=8))
        x = np.abs(loo + 0.7 * rng.normal(size=8))
        s = rng.uniform(0.5, 1.5, size=8)
        needed = reach_needed(x, s, loo, k)
        best = sorted(np.argsort(-loo)[:k].tolist())
        found = [
            sorted(settle_top(x, s, k, loo.__getitem__, needed + d, None)[0])
            for d in (1e-9, -1)
        ]
        assert found[0] == best
        missed += found[1] != best
    assert missed > 10


def made_calibration(texts):
    "Make a calibration from pairs of scores and LOO without a spread."
    kept = [CalibrationText(Estimate(list(x), [], []), list(loo)) for x, loo in texts]
    return Calibration(dict(sha256='', model=''), ['m', {}], kept)


def test_a_large_negative_score_counts_by_size_and_not_by_score():
    "Nine texts that find the largest by score, and not the largest by size."
    made = made_calibration([([1.0, -0.5], [1.0, -5.0])] * 9)
    unit = np.sqrt((1 + 0.25) / 2)
    assert_close(made.reach(1, 0.9, by='score'), (-0.5 - 1) / (2 * unit))
    # −5 is larger than 1, and stands after it until 1 is read
    assert_close(made.reach(1, 0.9, by='size'), (1 - 0.5) / unit)
    # texts with no more tokens than are asked for do not count
    made = made_calibration([([1.0, 2.0], [1.0, 2.0])] * 9 + [([1.0], [1.0])] * 9)
    assert made.reach(1) < 0
    with pytest.raises(ValueError, match='9 texts are too few.*at least 19'):
        made.reach(1, 0.95)


@pytest.mark.parametrize('options', [dict(k=2.5), dict(most=-1), dict(confidence=1.5)])
def test_arguments_of_the_top_are_checked(demo, options):
    made = calibrate(*demo, FEW * 3, 'removal', **QUIET)
    asked = dict(k=1, calibration=made, confidence=0.5) | options
    with pytest.raises(ValueError, match=f'^{[*options][0]}'):
        top_tokens(*demo, TEXT, **asked)
    with pytest.raises(TypeError, match='Calibration.*got dict'):
        explain(*demo, TEXT, 'removal', calibration={})


def test_a_score_that_may_be_zero_is_pale_and_its_tip_has_the_interval(demo):
    made = calibrate(*demo, FEW, 'removal', **QUIET)
    (a,) = explain(*demo, TEXT, 'removal', calibration=made, confidence=0.7)
    page = a._repr_html_()
    n_content = int((~a.is_special).sum())
    assert page.count(' pale"') == int(a.may_be_zero.sum())
    assert page.count('(70%)') == n_content
    (ax,) = a.plot().axes
    whiskers = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert len(whiskers) == n_content
    (a,) = explain(*demo, TEXT, 'removal')
    assert not a.may_be_zero.any() and ' pale"' not in a._repr_html_()


@pytest.mark.parametrize('name, passes', [('sst2', 11), ('reviews-sst2', 7)])
def test_the_top_of_a_budget_is_exact_loos(name, passes):
    """A calibration says which method, budget, target and units; exact tokens of the
    budget are not read again.
    """
    demo = load_demo(name)
    texts = [t for t in load_texts('sst2', 'embedded').texts if len(t) > 90]
    how = dict(passes=passes, target=1, units='word')
    made = calibrate(*demo, texts[:20], **QUIET, **how)
    right = n_read = 0
    some = texts[20:30]
    for text, loo in zip(some, explain(*demo, some, 'loo', target=1, units='word')):
        found = top_tokens(*demo, text, 2, made)
        (begun,) = explain(*demo, text, calibration=made)
        a = found.attribution
        exact = a.info['exact']
        assert a.tokens == loo.tokens and a.info['options'] == dict(passes=passes)
        assert not set(found.exact) & set(begun.info['exact'])
        assert set(exact) == {*found.exact, *begun.info['exact']}
        assert_close(a.scores[exact], loo.scores[exact], scale=abs(loo.logit) + 1)
        assert a.passes >= begun.passes and 'low' not in refine(a, 4).info
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
        n_read += len(found.exact)
    assert right >= 8
    assert n_read < 2 * 10  # two each, if the top itself was always read


@pytest.mark.parametrize('method', ['auto', 'removal'])
def test_a_templates_words_are_never_the_top(method, texts):
    demo = load_demo('reviews-sst2')
    template = 'Awful, awful, awful! They said of it: {text} Terrible, and wonderful.'
    how = dict(passes=5) if method == 'auto' else {}
    made = calibrate(*demo, texts[:10], method, template=template, **QUIET, **how)
    found = top_tokens(*demo, TEXT, 3, made)
    assert found.attribution.is_content[[*found.which, *found.exact]].all()
