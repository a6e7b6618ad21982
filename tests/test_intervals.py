"Intervals for LOO: quantiles over texts, what is covered, what is refused."

import json
import math

import numpy as np
import pytest
import torch
from conftest import shallow_demo

from lrp_loo.asked.targets import Target
from lrp_loo.core import Attribution
from lrp_loo.data import load_texts
from lrp_loo.lrp.composite import Composite
from lrp_loo.methods import explain, refine
from lrp_loo.models.demos import load_demo
from lrp_loo.trust.certified import settle_top, top_tokens
from lrp_loo.trust.intervals import FLOOR, Calibration, CalibrationText, Estimate
from lrp_loo.trust.intervals import calibrate, calibration_text, estimate_of
from lrp_loo.trust.intervals import load_calibration, reach_needed, text_quantile
from lrp_loo.trust.intervals import token_quantile

TEXT = 'Nobody in this comedy is having any fun.'
ONE = dict(method='removal')


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


@pytest.fixture(scope='module')
def calibration(demo):
    "Of sixty embedded sentences, two layers deep."
    texts = load_texts('sst2', 'embedded').texts[:60]
    return calibrate(*demo, texts, **ONE, progress=False)


def attribution(scores, spread=None):
    "Made by hand; the first token is special."
    info = {} if spread is None else dict(spread=spread, exact=[])
    special = torch.arange(len(scores)) == 0
    scores = torch.tensor(scores)
    return Attribution([*'abc'], scores, special, 0, 0.0, info=info)


def test_a_token_is_as_unsure_as_its_size_its_spread_and_a_share_of_all():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0])
    own = np.array([1 + 9, 4 + 16])  # the special token counts for nothing
    scale = np.sqrt(own + FLOOR**2 * own.mean())
    kept = calibration_text(a, attribution([0.0, 3.0, 1.0]))
    assert kept.estimate.scale == pytest.approx(scale)
    assert kept.ratios() == pytest.approx([2, 1] / scale)
    # without a spread all tokens are equally unsure
    found = estimate_of(attribution([9.0, 3.0, 4.0])).scale
    assert found == pytest.approx(np.sqrt([12.5, 12.5]))
    # an exact one has no width and no ratio
    a.info['exact'] = [2]
    kept = calibration_text(a, attribution([0.0, 2.0, 2.0]))
    assert kept.estimate.exact == [1] and kept.estimate.scale[1] == 0
    assert len(kept.ratios()) == 1


@pytest.mark.parametrize('confidence', [0.5, 0.8, 0.9])
def test_texts_of_one_token_make_both_the_usual_split_conformal(confidence):
    values = np.random.default_rng(0).gamma(1.0, size=99)
    ratios = [[v] for v in values]
    usual = np.sort(values)[math.ceil(100 * confidence) - 1]
    assert token_quantile(ratios, confidence) == pytest.approx(usual)
    assert text_quantile(ratios, confidence) == pytest.approx(usual)


@pytest.mark.parametrize('units', ['token', 'word'])
def test_ninety_percent_lie_inside_on_other_texts(demo, request, units):
    made = request.getfixturevalue('calibration' if units == 'token' else 'of_words')
    how = ONE if units == 'token' else ONE | dict(units='word')
    texts = load_texts('sst2', 'embedded').texts[60:100]
    maps = explain(*demo, texts, **how, calibration=made)
    loos = explain(*demo, texts, method='loo', units=units)
    shares = []
    for a, loo in zip(maps, loos):
        inside = (a.low <= loo.scores) & (loo.scores <= a.high)
        shares.append(float(inside[~a.is_special].float().mean()))
    # 60 texts calibrate, 40 check: a standard error of some hundredths
    assert 0.8 < np.mean(shares) < 0.98


def hostile(**changed):
    "A calibration's file with something else in it."
    text = dict(scores=[1.0], spread=[], exact=[], loo=[2.0])
    kept = dict(model=dict(model='Bert', sha256='00'), method=['removal', {}])
    kept |= dict(texts=[text], units='token', target={}, special=[], copies=0)
    for name, value in changed.items():
        (text if name in text else kept)[name] = value
    return json.dumps({k: v for k, v in kept.items() if v != 'none'})


NO_CALIBRATION = ['no JSON', '{"rows": []}', '{"texts":' * 100_000] + [
    hostile(**{name: value})
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


def test_what_hostile_files_are_made_of_is_a_calibration(tmp_path):
    (tmp_path / 'c.json').write_text(hostile())
    assert load_calibration(tmp_path / 'c.json').quantile(0.5) == 1.0


def probability(out):
    return out.logits.softmax(-1)[:, 1]


FEW = ['a fine film', 'it drags', 'two dull hours']
OTHER_TARGETS = [
    ((1, 0), 'not of the target index=\\[1, 0\\]'),
    (Target(log_prob=True), 'not of the target log_prob=True'),
    (probability, 'not of the target function=.*probability.*'),
    ([None, 'positive'], 'not of the target index=1'),
]


@pytest.mark.parametrize('target, said', OTHER_TARGETS)
def test_another_number_is_refused_by_name(demo, calibration, target, said):
    "Intervals that promise 0.9 for logits cover 0.84 of the probabilities."
    asked = dict(target=target, calibration=calibration)
    said = f'the calibration is of the predicted class, {said}; calibrate that'
    with pytest.raises(ValueError, match=said):
        explain(*demo, [TEXT, TEXT.upper()], **ONE, **asked)
    if not isinstance(target, list):
        with pytest.raises(ValueError, match=said):
            top_tokens(*demo, TEXT, 1, calibration, target=target)


@pytest.mark.parametrize('target', [1, (1, 0), Target(1, log_prob=True)])
def test_the_number_that_was_calibrated_gets_intervals(demo, target, tmp_path):
    made = calibrate(*demo, FEW, 'removal', target=target, progress=False)
    made.save(tmp_path / 'c.json')
    asked = dict(target=target, calibration=load_calibration(tmp_path / 'c.json'))
    (a,) = explain(*demo, TEXT, 'removal', confidence=0.5, **asked)
    assert len(a.low) == len(a)
    asked['target'] = None  # where nothing is said, what was calibrated
    (b,) = explain(*demo, TEXT, 'removal', confidence=0.5, **asked)
    assert b.explained == a.explained and torch.equal(b.scores, a.scores)
    assert b.info['low'] == a.info['low']
    asked['target'] = 0
    with pytest.raises(ValueError, match='not of the target index=0'):
        explain(*demo, TEXT, 'removal', **asked)


def test_two_functions_of_one_name_are_told_apart(demo):

    def read(i):
        return lambda out: out.logits[:, i]

    made = calibrate(*demo, FEW, 'removal', target=read(1), progress=False)
    asked = dict(calibration=made, confidence=0.5)
    explain(*demo, TEXT, 'removal', target=read(1), **asked)
    for other in (read(0), lambda out: out.logits[:, 1].exp()):
        with pytest.raises(ValueError, match='calibrate that'):
            explain(*demo, TEXT, 'removal', target=other, **asked)


def test_another_rule_set_of_the_same_name_is_refused(demo):
    one, other = (dict(composite=Composite('mine', eps=e)) for e in (0.0, 0.1))
    made = calibrate(*demo, FEW, 'lrp', progress=False, **one)
    asked = dict(calibration=made, confidence=0.5)
    explain(*demo, TEXT, 'lrp', **one, **asked)
    with pytest.raises(ValueError, match='calibration is of method lrp'):
        explain(*demo, TEXT, 'lrp', **other, **asked)


def test_too_few_texts_for_a_confidence_are_counted():
    nine = made_calibration([([1.0], [2.0])] * 9)
    assert nine.quantile(0.9) == 1.0
    with pytest.raises(ValueError, match='9 texts are too few.*at least 19'):
        nine.quantile(0.95)


@pytest.fixture(scope='module')
def of_words(demo):
    "The same sentences by words, in one pass."
    texts = load_texts('sst2', 'embedded').texts[:60]
    made = calibrate(*demo, texts, 'removal', units='word', progress=False)
    assert made.units == 'word'
    return made


def test_spans_of_ones_own_are_calibrated_by_others(demo):
    "Each text in halves."
    texts = load_texts('sst2', 'embedded').texts[:12]
    halves = [[(0, len(t) // 2), (len(t) // 2, len(t))] for t in texts]
    made = calibrate(*demo, texts, 'removal', units=halves, progress=False)
    assert made.units == 'span'
    units = [(0, 20), (20, len(TEXT))]
    (a,) = explain(*demo, TEXT, 'removal', calibration=made, units=units)
    assert len(a.low) == len(a)
    assert bool((a.low <= a.scores).all())
    assert top_tokens(*demo, TEXT, 1, made, units=units).which[0] in (0, 1)
    with pytest.raises(ValueError, match='units'):
        top_tokens(*demo, TEXT, 1, made)


@pytest.mark.parametrize(
    'x, s, loo, reach, most, expected',
    [
        # certainly inside and outside: nobody is read
        ([5.0, 1.0, 0.0], [1.0, 1.0, 1.0], [5.0, 1.0, 0.0], 1.9, None, ([0], True, [])),
        # a token of the top alone overlaps the rest's ends
        ([5.0, 4.0], [1.0, 0.1], [4.5, 4.0], 1.0, None, ([0], True, [0])),
        # what was read may change the answer
        ([3.0, 2.5, 0], [1.0, 0.9, 1.0], [1, 2.6, 0], 0.5, None, ([1], True, [0])),
        # the second is less sure, so it is looked at first
        ([3.0, 2.0], [0.1, 5.0], [3.0, 1.0], 1.0, None, ([0], True, [1])),
        # what is exact takes no pass
        ([3.0, 2.0], [0.0, 0.5], [3.0, 9.0], 1.0, None, ([0], True, [])),
        # two exact ones may be level
        ([3.0, 3.0], [0.0, 0.0], [3.0, 3.0], 1.0, None, ([0], True, [])),
        # no more passes than allowed
        ([3.0, 2.5], [1.0, 1.0], [1.0, 2.0], 1.0, 0, ([0], False, [])),
    ],
)
def test_the_search(x, s, loo, reach, most, expected):
    assert settle_top(x, s, 1, loo.__getitem__, reach, most) == expected


def test_the_reach_that_is_needed_finds_the_top_and_less_may_not():
    "Over random texts: at τ the answer is right."
    g = np.random.default_rng(0)
    missed = 0
    for k in (1, 2, 3) * 40:
        loo = np.abs(g.normal(size=8))
        x = np.abs(loo + 0.7 * g.normal(size=8))
        s = g.uniform(0.5, 1.5, size=8)
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
    "texts: pairs of scores and LOO; each unit of error is that of its size."
    kept = [CalibrationText(Estimate(list(x), [], []), list(loo)) for x, loo in texts]
    return Calibration(dict(sha256='', model=''), ['m', {}], kept)


def test_a_large_negative_score_counts_by_size_and_not_by_score():
    "Nine texts that find the largest by score, and not the largest by size."
    texts = [([1.0, -0.5], [1.0, -5.0])] * 9
    of = made_calibration(texts)
    unit = np.sqrt((1 + 0.25) / 2)
    assert of.reach(1, 0.9, by='score') == pytest.approx((-0.5 - 1) / (2 * unit))
    # −5 is larger than 1, and stands behind it until 1 is read
    assert of.reach(1, 0.9, by='size') == pytest.approx((1 - 0.5) / unit)
    # texts with no more tokens than are asked for say nothing
    texts = [([1.0, 2.0], [1.0, 2.0])] * 9 + [([1.0], [1.0])] * 9
    assert made_calibration(texts).reach(1) < 0
    with pytest.raises(ValueError, match='9 texts are too few'):
        made_calibration(texts).reach(1, 0.95)


@pytest.mark.parametrize('options', [dict(k=2.5), dict(most=-1), dict(confidence=1.5)])
def test_a_top_that_cannot_be_meant(demo, calibration, options):
    asked = dict(k=1, calibration=calibration) | options
    with pytest.raises(ValueError, match=f'^({[*options][0]}|.*between 0 and 1)'):
        top_tokens(*demo, TEXT, **asked)
    with pytest.raises(TypeError, match='Calibration.*got dict'):
        explain(*demo, TEXT, **ONE, calibration={})


@pytest.mark.parametrize('units', ['token', 'word'])
def test_settled_answers_are_right(demo, request, units):
    made = request.getfixturevalue('calibration' if units == 'token' else 'of_words')
    right = 0
    for text in load_texts('sst2', 'embedded').texts[100:120]:
        found = top_tokens(*demo, text, 2, made)
        (loo,) = explain(*demo, text, method='loo', units=units)
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        assert found.settled
        for i in found.exact:
            read = float(found.attribution.scores[i])
            assert read == pytest.approx(float(loo.scores[i]), abs=1e-4)
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
    assert right >= 16  # nine of ten, and chance of twenty


def test_what_may_be_zero_is_pale_and_the_tip_has_the_interval(demo, calibration):
    (a,) = explain(*demo, TEXT, **ONE, calibration=calibration)
    page = a._repr_html_()
    assert page.count(' pale"') == int(a.may_be_zero.sum())
    assert page.count('(90%)') == int((~a.is_special).sum())
    (ax,) = a.plot().axes
    whiskers = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert len(whiskers) == int((~a.is_special).sum())
    (a,) = explain(*demo, TEXT, **ONE)
    assert not a.may_be_zero.any() and ' pale"' not in a._repr_html_()


def test_a_template_is_calibrated_apart(demo, tmp_path):
    "Intervals of the text alone, kept in the file; another template's are refused."
    around = dict(template='So they said: {text} and that was all')
    made = calibrate(*demo, FEW, 'removal', progress=False, **around)
    made.save(tmp_path / 'c.json')
    kept = load_calibration(tmp_path / 'c.json')
    (a,) = explain(*demo, FEW[0], 'removal', calibration=kept, confidence=0.5, **around)
    known = [v is not None for v in a.info['low']]
    assert known == a.is_content.tolist() and not all(known)
    # where nothing is said, the template that was calibrated
    (b,) = explain(*demo, FEW[0], 'removal', calibration=kept, confidence=0.5)
    assert b.tokens == a.tokens and b.info['low'] == a.info['low']
    for other in (dict(template='Well, {text}'), dict(among=[(0, 6)])):
        with pytest.raises(ValueError, match='the calibration is of texts in the'):
            explain(*demo, FEW[0], 'removal', calibration=kept, **other)


# ---- the top of a budget


@pytest.mark.parametrize('name, passes', [('sst2', 11), ('reviews-sst2', 7)])
def test_the_top_of_a_budget_is_exact_loos(name, passes):
    """Calibration says which method, budget, target and units; what the budget made
    exact is not read again, and what stands apart is not read at all.
    """
    demo = load_demo(name)
    texts = [t for t in load_texts('sst2', 'embedded').texts if len(t) > 90]
    how = dict(passes=passes, target=1, units='word')
    c = calibrate(*demo, texts[:20], progress=False, **how)
    right, read = 0, 0
    for text in texts[20:30]:
        found = top_tokens(*demo, text, 2, c)
        (begun,) = explain(*demo, text, calibration=c)
        (loo,) = explain(*demo, text, 'loo', target=1, units='word')
        a = found.attribution
        assert a.tokens == loo.tokens and a.info['options'] == dict(passes=passes)
        assert not set(found.exact) & set(begun.info['exact'])
        assert set(a.info['exact']) == {*found.exact, *begun.info['exact']}
        off = (a.scores - loo.scores)[a.info['exact']].abs().max()
        assert off < 1e-4 * loo.scores.abs().max()
        assert a.passes >= begun.passes and 'low' not in refine(a, 4).info
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
        read += len(found.exact)
    assert right >= 8
    assert read < 2 * 10  # two each, where the top itself was always read


def test_a_templates_words_are_never_the_top():
    demo = load_demo('reviews-sst2')
    template = 'Awful, awful, awful! They said of it: {text} Terrible, and wonderful.'
    texts = load_texts('sst2', 'embedded').texts[:12]
    how = dict(template=template, passes=5, progress=False)
    c = calibrate(*demo, texts, **how)
    found = top_tokens(*demo, TEXT, 3, c)
    a = found.attribution
    assert a.is_content[found.which].all()
    assert a.is_content[found.exact].all()
    # by another method than `auto`, too
    c = calibrate(*demo, texts, 'removal', template=template, progress=False)
    found = top_tokens(*demo, TEXT, 3, c)
    (loo,) = explain(*demo, TEXT, 'loo', template=template)
    assert found.attribution.is_content[[*found.which, *found.exact]].all()
    for i in found.exact:
        assert float(found.attribution.scores[i]) == pytest.approx(
            float(loo.scores[i]), abs=1e-4
        )
