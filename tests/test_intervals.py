"Intervals for LOO: quantiles over texts, what is covered, what is refused."

import copy
import json
import math

import numpy as np
import pytest
import torch
from conftest import shallow_demo

import lrp_loo
from lrp_loo.core import Attribution
from lrp_loo.data import load_texts
from lrp_loo.intervals import (
    FLOOR,
    Calibration,
    CalibrationText,
    Estimate,
    calibrate,
    calibration_text,
    estimate_of,
    load_calibration,
    reach_needed,
    settle_top,
    text_quantile,
    token_quantile,
    top_tokens,
)
from lrp_loo.lrp import Composite
from lrp_loo.methods import explain
from lrp_loo.targets import Target

TEXT = 'Nobody in this comedy is having any fun.'
NINE = dict(method='removal', n_groups=8)


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


@pytest.fixture(scope='module')
def calibration(demo):
    "Of sixty embedded sentences, two layers deep."
    texts = load_texts('sst2', 'embedded').texts[:60]
    return calibrate(*demo, texts, **NINE, progress=False)


def attribution(scores, spread=None, exact=()):
    "Made by hand; the first token is special."
    info = {} if spread is None else dict(spread=spread, exact=list(exact))
    special = torch.arange(len(scores)) == 0
    tokens = [f't{i}' for i in range(len(scores))]
    scores = torch.tensor(scores)
    return Attribution(tokens, scores, special, 0, 0.0, info=info)


# the unit of an error


def test_a_token_is_as_unsure_as_its_size_its_spread_and_a_share_of_all():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0])
    own = np.array([1 + 9, 4 + 16])
    found = estimate_of(a).scale  # the special token counts for nothing
    assert found == pytest.approx(np.sqrt(own + FLOOR**2 * own.mean()))


def test_without_a_spread_all_tokens_are_equally_unsure():
    found = estimate_of(attribution([9.0, 3.0, 4.0])).scale
    assert found == pytest.approx(np.sqrt([12.5, 12.5]))


def test_an_exact_token_has_no_width_and_no_ratio():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0], exact=[2])
    kept = calibration_text(a, attribution([0.0, 2.0, 2.0]))
    assert kept.estimate.exact == [1]
    assert kept.estimate.scale[1] == 0
    assert len(kept.ratios()) == 1


def test_a_ratio_is_the_error_in_that_unit():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0])
    kept = calibration_text(a, attribution([0.0, 3.0, 1.0]))
    assert kept.ratios() == pytest.approx([2, 1] / kept.estimate.scale)


@pytest.mark.parametrize('confidence', [0.5, 0.8, 0.9])
def test_texts_of_one_token_make_both_the_usual_split_conformal(confidence):
    values = np.random.default_rng(0).gamma(1.0, size=99)
    ratios = [[v] for v in values]
    usual = np.sort(values)[math.ceil(100 * confidence) - 1]
    assert token_quantile(ratios, confidence) == pytest.approx(usual)
    assert text_quantile(ratios, confidence) == pytest.approx(usual)


def test_a_long_text_weighs_no_more_than_a_short_one():
    short = [[1.0]] * 8
    long = [[5.0] * 1000]
    assert token_quantile(short + long, 0.8) == 1.0


def test_covering_all_tokens_takes_at_least_as_much():
    draws = np.random.default_rng(1)
    ratios = [list(draws.gamma(1.0, size=12)) for _ in range(50)]
    for confidence in (0.5, 0.7, 0.9):
        one = token_quantile(ratios, confidence)
        assert text_quantile(ratios, confidence) >= one


def test_a_surer_interval_is_no_narrower(calibration):
    for cover in ('token', 'text'):
        found = [calibration.quantile(p, cover) for p in (0.5, 0.8, 0.9, 0.95)]
        assert found == sorted(found)


# a calibration


def test_ninety_percent_of_tokens_lie_inside_on_other_texts(demo, calibration):
    texts = load_texts('sst2', 'embedded').texts[60:100]
    maps = explain(*demo, texts, **NINE, calibration=calibration)
    loos = explain(*demo, texts, method='loo')
    shares = []
    for a, loo in zip(maps, loos):
        inside = (a.low <= loo.scores) & (loo.scores <= a.high)
        shares.append(float(inside[~a.is_special].float().mean()))
    # 60 texts calibrate, 40 check: a standard error of some hundredths
    assert 0.8 < np.mean(shares) < 0.98


def test_it_is_saved_and_read(calibration, tmp_path):
    calibration.save(tmp_path / 'c.json')
    assert load_calibration(tmp_path / 'c.json') == calibration


def hostile(**changed):
    "A calibration's file with something else in it."
    text = dict(scores=[1.0], spread=[], exact=[], loo=[2.0])
    text |= {k: v for k, v in changed.items() if k in text}
    kept = dict(
        model=dict(model='Bert', sha256='00'),
        method=['removal', {}],
        texts=[text],
        units='token',
        target={},
        special=[],
        copies=0,
    )
    kept |= {k: v for k, v in changed.items() if k not in text}
    return json.dumps({k: v for k, v in kept.items() if v != 'none'})


def test_a_file_with_nothing_wrong_is_read(tmp_path):
    path = tmp_path / 'c.json'
    path.write_text(hostile())
    assert load_calibration(path).quantile(0.5) == 1.0


NO_CALIBRATION = [
    'no JSON',
    '{"rows": []}',
    '[1, 2]',
    'null',
    '[' * 100_000,
    '{"texts":' * 100_000,
    hostile(scores=['1.0']),
    hostile(loo=[None]),
    hostile(loo=None),
    hostile(loo=[float('nan')]),
    hostile(scores=[True]),
    hostile(loo=[1.0, 2.0]),
    hostile(spread=[1.0, 2.0]),
    hostile(exact=[3]),
    hostile(texts=[3]),
    hostile(texts=None),
    hostile(model='Bert'),
    hostile(model={}),
    hostile(method='removal'),
    hostile(method=['removal', None]),
    hostile(target='none'),
    hostile(special='none'),
    hostile(copies='3'),
    hostile(more=1),
]


@pytest.mark.parametrize('content', NO_CALIBRATION, ids=lambda x: x[:90])
def test_a_file_that_is_no_calibration_is_named(tmp_path, content):
    path = tmp_path / 'c.json'
    path.write_text(content)
    with pytest.raises(ValueError, match='c.json is no calibration'):
        load_calibration(path)


def test_a_file_of_an_older_version_says_what_to_do(tmp_path):
    path = tmp_path / 'c.json'
    path.write_text(hostile(target='none', special='none'))
    with pytest.raises(ValueError, match='which target.*calibrate anew'):
        load_calibration(path)


def test_intervals_are_kept_with_the_map(demo, calibration, tmp_path):
    (a,) = explain(*demo, TEXT, **NINE, calibration=calibration)
    a.save(tmp_path / 'a.json')
    again = lrp_loo.load(tmp_path / 'a.json')
    again = again[0] if isinstance(again, list) else again
    assert torch.equal(again.low.isnan(), a.is_special)
    assert torch.allclose(again.high, a.high, equal_nan=True)


def test_a_map_without_intervals_says_how_to_get_them(demo):
    (a,) = explain(*demo, TEXT, method='removal')
    with pytest.raises(AttributeError, match='lrp_loo.calibrate'):
        a.low
    assert not hasattr(a, 'high')


def test_another_model_is_refused(demo, calibration):
    other = shallow_demo('imdb')
    with pytest.raises(ValueError, match='calibrate this one'):
        explain(*other, TEXT, **NINE, calibration=calibration)


@pytest.mark.parametrize('asked', [dict(method='removal'), dict(method='attn_lrp')])
def test_another_method_is_refused(demo, calibration, asked):
    with pytest.raises(ValueError, match='n_groups=8'):
        explain(*demo, TEXT, **asked, calibration=calibration)


def probability(out):
    return out.logits.softmax(-1)[:, 1]


OTHER_TARGETS = [
    (1, 'not of the target index=1'),
    ((1, 0), 'not of the target index=\\[1, 0\\]'),
    (Target(log_prob=True), 'not of the target log_prob=True'),
    (probability, 'not of the target function=.*probability.*'),
    ([None, 'positive'], 'not of the target index=1'),
]


@pytest.mark.parametrize('target, said', OTHER_TARGETS)
def test_another_number_is_refused_by_name(demo, calibration, target, said):
    """Its intervals would be too narrow: of 0.9 that they promise for logits,
    they cover 0.83 of the log-probabilities and 0.84 of the probabilities.
    """
    asked = dict(target=target, calibration=calibration)
    said = f'the calibration is of the predicted class, {said}; calibrate that'
    with pytest.raises(ValueError, match=said):
        explain(*demo, [TEXT, TEXT.upper()], **NINE, **asked)
    if not isinstance(target, list):
        with pytest.raises(ValueError, match=said):
            top_tokens(*demo, TEXT, 1, calibration, target=target)


@pytest.mark.parametrize('target', [1, (1, 0), Target(1, log_prob=True)])
def test_the_number_that_was_calibrated_gets_intervals(demo, target, tmp_path):
    few = ['a fine film', 'it drags', 'two dull hours']
    made = calibrate(*demo, few, target=target, progress=False)
    made.save(tmp_path / 'c.json')
    asked = dict(target=target, calibration=load_calibration(tmp_path / 'c.json'))
    (a,) = explain(*demo, TEXT, 'removal', confidence=0.5, **asked)
    assert len(a.low) == len(a)
    del asked['target']
    with pytest.raises(ValueError, match='not of the predicted class'):
        explain(*demo, TEXT, 'removal', **asked)


def test_two_functions_of_one_name_are_told_apart(demo):
    few = ['a fine film', 'it drags', 'two dull hours']

    def read(i):
        return lambda out: out.logits[:, i]

    made = calibrate(*demo, few, target=read(1), progress=False)
    asked = dict(calibration=made, confidence=0.5)
    explain(*demo, TEXT, 'removal', target=read(1), **asked)
    for other in (read(0), lambda out: out.logits[:, 1].exp()):
        with pytest.raises(ValueError, match='calibrate that'):
            explain(*demo, TEXT, 'removal', target=other, **asked)


def test_another_rule_set_of_the_same_name_is_refused(demo):
    few = ['a fine film', 'it drags', 'two dull hours']
    one, other = (dict(composite=Composite('mine', eps=e)) for e in (0.0, 0.1))
    made = calibrate(*demo, few, 'lrp', progress=False, **one)
    asked = dict(calibration=made, confidence=0.5)
    explain(*demo, TEXT, 'lrp', **one, **asked)
    with pytest.raises(ValueError, match='calibration is of method lrp'):
        explain(*demo, TEXT, 'lrp', **other, **asked)


def test_another_tokenizers_special_tokens_are_refused(demo, calibration):
    model, tokenizer = demo
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({'additional_special_tokens': ['film']})
    with pytest.raises(ValueError, match='special tokens .*calibrate with'):
        explain(model, other, TEXT, **NINE, calibration=calibration)


def test_a_list_of_targets_has_no_one_calibration(demo):
    with pytest.raises(ValueError, match='is fitted to one question'):
        calibrate(*demo, [TEXT, 'no'], target=[1, 0], progress=False)


def test_too_few_texts_for_a_confidence_are_counted():
    nine = made_calibration([([1.0], [2.0])] * 9)
    assert nine.quantile(0.9) == 1.0
    with pytest.raises(ValueError, match='9 texts are too few.*at least 19'):
        nine.quantile(0.95)


@pytest.mark.parametrize('confidence', [0, 1, 1.5, -0.1, float('nan')])
def test_a_confidence_lies_between_0_and_1(calibration, confidence):
    with pytest.raises(ValueError, match='between 0 and 1'):
        calibration.quantile(confidence)


def test_an_unknown_cover_is_named(calibration):
    with pytest.raises(ValueError, match="cover='word'.*token.*text"):
        calibration.quantile(0.9, 'word')


@pytest.fixture(scope='module')
def of_words(demo):
    "The same sentences by words, in one pass."
    texts = load_texts('sst2', 'embedded').texts[:60]
    made = calibrate(*demo, texts, 'removal', units='word', progress=False)
    assert made.units == 'word'
    return made


def test_ninety_percent_of_words_lie_inside_on_other_texts(demo, of_words):
    texts = load_texts('sst2', 'embedded').texts[60:100]
    asked = dict(units='word')
    maps = explain(*demo, texts, 'removal', calibration=of_words, **asked)
    loos = explain(*demo, texts, 'loo', **asked)
    shares = []
    for a, loo in zip(maps, loos):
        assert a.tokens == loo.tokens
        inside = (a.low <= loo.scores) & (loo.scores <= a.high)
        shares.append(float(inside[~a.is_special].float().mean()))
    assert 0.8 < np.mean(shares) < 0.98  # as for tokens


@pytest.mark.parametrize('units', ['token', 'sentence', [(0, 6), (7, 14)]])
def test_other_units_than_were_calibrated_are_refused(demo, of_words, units):
    with pytest.raises(ValueError, match='calibration is of words.*calibrate'):
        explain(*demo, TEXT, 'removal', calibration=of_words, units=units)


def test_the_words_that_matter_most_are_settled(demo, of_words):
    texts = load_texts('sst2', 'embedded').texts[100:120]
    right = 0
    for text in texts:
        found = top_tokens(*demo, text, 2, of_words)
        (loo,) = explain(*demo, text, 'loo', units='word')
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        assert found.settled
        for i in found.exact:
            read = float(found.attribution.scores[i])
            assert read == pytest.approx(float(loo.scores[i]), abs=1e-4)
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
    assert right >= 16  # nine of ten, and chance of twenty


def test_spans_of_ones_own_are_calibrated_by_others(demo):
    "Each text in halves."
    texts = load_texts('sst2', 'embedded').texts[:12]
    halves = [[(0, len(t) // 2), (len(t) // 2, len(t))] for t in texts]
    made = calibrate(*demo, texts, 'removal', units=halves, progress=False)
    assert made.units == 'span'
    asked = dict(calibration=made, units=[(0, 20), (20, len(TEXT))])
    (a,) = explain(*demo, TEXT, 'removal', **asked)
    assert len(a.low) == len(a)
    assert bool((a.low <= a.scores).all())
    units = asked['units']
    found = top_tokens(*demo, TEXT, 1, made, units=units)
    assert found.which[0] in (0, 1)
    with pytest.raises(ValueError, match='units'):
        top_tokens(*demo, TEXT, 1, made)


def test_ratios_are_plain_numbers(calibration):
    assert json.loads(json.dumps(calibration.ratios)) == calibration.ratios


# certified answers


def settled_by(x, s, loo, k, reach, most=None):
    "On numbers made by hand."
    return settle_top(x, s, k, loo.__getitem__, reach, most)


def test_the_likeliest_is_read_and_settles_it_where_no_bound_reaches_it():
    found = settled_by([5.0, 1.0], [1.0, 1.0], [4.5, 2.0], 1, reach=2.0)
    assert found == ([0], True, [0])


def test_what_was_read_may_change_the_answer():
    x, s = [3.0, 2.5, 0.0], [1.0, 1.0, 1.0]
    found = settled_by(x, s, [1.0, 2.6, 0.0], 1, reach=0.5)
    assert found == ([1], True, [0, 1])


def test_the_unit_of_its_error_says_how_far_a_bound_reaches():
    "The second is unsure, so it is looked at first."
    found = settled_by([3.0, 2.0], [0.1, 5.0], [3.0, 1.0], 1, reach=1.0)
    assert found == ([0], True, [1, 0])


def test_what_is_exact_takes_no_pass():
    found = settled_by([3.0, 2.0], [0.0, 0.5], [3.0, 9.0], 1, reach=1.0)
    assert found == ([0], True, [])


def test_no_more_exact_passes_than_allowed():
    x, s = [3.0, 2.5], [1.0, 1.0]
    which, sure, exact = settled_by(x, s, [1.0, 2.0], 1, 1.0, most=0)
    assert (which, sure, exact) == ([0], False, [])


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
        which, _, _ = settled_by(x, s, loo, k, needed + 1e-9)
        assert sorted(which) == best
        which, _, _ = settled_by(x, s, loo, k, needed - 1)
        missed += sorted(which) != best
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
    assert of.reach(1, 0.9, by='score') == pytest.approx((-5 - 1) / unit)
    assert of.reach(1, 0.9, by='size') == pytest.approx((1 - 0.5) / unit)


def test_texts_with_no_more_tokens_than_are_asked_for_say_nothing():
    texts = [([1.0, 2.0], [1.0, 2.0])] * 9 + [([1.0], [1.0])] * 9
    assert made_calibration(texts).reach(1) < 0
    with pytest.raises(ValueError, match='9 texts are too few'):
        made_calibration(texts).reach(1, 0.95)


def test_settled_answers_are_right(demo, calibration):
    texts = load_texts('sst2', 'embedded').texts[100:120]
    right = 0
    for text in texts:
        found = top_tokens(*demo, text, 2, calibration)
        (loo,) = explain(*demo, text, method='loo')
        size = loo.scores.abs().masked_fill(loo.is_special, -1)
        assert found.settled
        right += sorted(size.topk(2).indices.tolist()) == sorted(found.which)
    assert right >= 16  # nine of ten, and chance of twenty


@pytest.mark.parametrize('k', [0, 99, 2.5])
def test_k_is_less_than_there_are(demo, calibration, k):
    with pytest.raises(ValueError, match='k'):
        top_tokens(*demo, TEXT, k, calibration)


def test_exact_loo_needs_no_calibration(demo):
    with pytest.raises(ValueError, match="method='loo'.*'removal'"):
        calibrate(*demo, [TEXT], method='loo')


def test_a_calibration_is_one(demo):
    with pytest.raises(TypeError, match='Calibration.*got dict'):
        explain(*demo, TEXT, **NINE, calibration={})


def test_a_number_of_passes_is_none_or_more(demo, calibration):
    with pytest.raises(ValueError, match='most'):
        top_tokens(*demo, TEXT, 1, calibration, most=-1)


def test_an_unknown_order_is_named(demo, calibration):
    with pytest.raises(ValueError, match="by='rank'.*size.*score"):
        top_tokens(*demo, TEXT, 1, calibration, by='rank')


# views


@pytest.fixture(scope='module')
def shown(demo, calibration):
    (a,) = explain(*demo, TEXT, **NINE, calibration=calibration)
    return a


def test_what_may_be_zero_is_pale_and_the_tip_has_the_interval(shown):
    page = shown._repr_html_()
    assert page.count('opacity:.45') == int(shown.may_be_zero.sum())
    assert page.count('(90%)') == int((~shown.is_special).sum())


def test_a_map_without_intervals_looks_as_before(demo):
    (a,) = explain(*demo, TEXT, **NINE)
    assert not a.may_be_zero.any()
    assert 'opacity:.45' not in a._repr_html_()


def test_bars_have_a_whisker_a_content_token(shown):
    (ax,) = shown.plot().axes
    whiskers = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert len(whiskers) == int((~shown.is_special).sum())
    low, high = ax.get_ylim()
    assert low < float(shown.low[~shown.is_special].min())
    assert high > float(shown.high[~shown.is_special].max())
