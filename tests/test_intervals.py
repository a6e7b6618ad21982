"Intervals for LOO: quantiles over texts, coverage, refusals, certified top tokens."

import json
import math

from close import assert_close
from conftest import shallow_demo
import numpy as np
import pytest
import torch

from lrp_loo import explain, load, load_demo, refine
from lrp_loo.data import load_texts
from lrp_loo.evaluate.intervals import Calibration, CalibrationText, ContentScores
from lrp_loo.evaluate.intervals import calibrate, content_scores, reach_needed
from lrp_loo.evaluate.intervals import settle_top, token_quantile, top_tokens
from lrp_loo.inputs.targets import Target
from lrp_loo.lrp.composite import Composite
from lrp_loo.records.attribution import Attribution

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


def measured(a, loo):
    "The first two's content, as `calibrate` keeps it."
    return CalibrationText(content_scores(a), loo.scores[1:].tolist())


def test_the_unit_of_an_error_is_its_standard_deviation():
    a = attribution([9.0, 1.0, 2.0], spread=[9.0, 3.0, 4.0], exact=[])
    kept = measured(a, attribution([0.0, 3.0, 1.0]))
    assert_close(kept.estimate.scale, [3, 4])  # without the special token
    assert_close(kept.ratios(), [2 / 3, 1 / 4])
    # without a spread all tokens have the same unit
    kept = measured(attribution([9.0, 3.0, 4.0]), a)
    assert_close(kept.estimate.scale, np.sqrt([12.5, 12.5]))
    # an exact token has no width and no ratio
    a.info['exact'] = [2]
    kept = measured(a, attribution([0.0, 2.0, 2.0]))
    assert kept.estimate.exact == [1] and kept.estimate.scale[1] == 0
    assert len(kept.ratios()) == 1


@pytest.mark.parametrize('confidence', [0.5, 0.9])
def test_texts_of_one_token_make_it_the_usual_split_conformal(confidence):
    values = np.random.default_rng(0).gamma(1.0, size=99)
    usual = np.sort(values)[math.ceil(100 * confidence) - 1]
    assert token_quantile([[v] for v in values], confidence) == usual


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


def finds_the_top(found, loo):
    "Assert that computed scores are exact LOO; return whether the top is LOO's."
    scores, exact = found.attribution.scores, found.attribution.info['exact']
    assert_close(scores[exact], loo.scores[exact], scale=abs(loo.logit) + 1)
    size = loo.scores.abs().masked_fill(loo.is_special, -1)
    return sorted(size.topk(2).indices.tolist()) == sorted(found.which)


def test_settled_answers_are_right(demo, texts, calibrated):
    units, made = calibrated
    some = [t for t in texts[1::2] if len(t.split()) > 3][:10]
    found = [top_tokens(*demo, text, 2, made, units=units) for text in some]
    loos = explain(*demo, some, 'loo', units=units)
    assert sum(map(finds_the_top, found, loos)) >= 7  # nine of ten, and chance of ten


def made_calibration(texts, **settings):
    "Make a calibration from pairs of scores and LOO without a spread."
    kept = [
        CalibrationText(ContentScores(list(x), [], []), list(loo)) for x, loo in texts
    ]
    return Calibration(settings, kept)


@pytest.mark.parametrize(
    'entry, value',
    [
        *(('scores', x) for x in (['1.0'], [True], None)),
        *(('loo', x) for x in ([None], [float('nan')], [1.0, 2.0])),
        *(('sd', [1.0, 2.0]), ('exact', [3])),
        *(('texts', x) for x in ([3], None)),
        ('settings', None),
        *(('more', 1), ('__record__', 'Nothing'), ('format', 'lrp_loo record 9')),
    ],
    ids=str,
)
def test_a_file_that_is_no_calibration_is_named(tmp_path, entry, value):
    path = tmp_path / 'c.json'
    made_calibration([([1.0], [2.0])], model=dict(model='Bert')).save(path)
    assert load(path).quantile(0.5) == 1.0
    content = json.loads(path.read_text())
    fields = content['record']['fields']
    (text,) = fields['texts']
    places = (content, content['record'], fields, text, text['estimate'])
    place = next((x for x in places if entry in x), fields)
    place[entry] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match='c.json holds no'):
        load(path)


def probability(out):
    return out.logits.softmax(-1)[:, 1]


def reads(i):
    return lambda out: out.logits[:, i]


@pytest.mark.parametrize(
    'target, other, words',
    [
        (None, (1, 0), "'the predicted class', not of {'index': \\[1, 0\\]}"),
        (None, Target(log_prob=True), "'the predicted class', .* {'log_prob': True}"),
        (None, probability, "'the predicted class', .*'function': .*probability"),
        ((1, 0), 0, "{'index': \\[1, 0\\]}, not of {'index': 0}"),
        (Target(1, log_prob=True), 1, "target .*, not of {'index': 1}"),
        (reads(1), reads(0), 'call calibrate for the latter'),
        (reads(1), lambda out: out.logits[:, 1].exp(), 'call calibrate for the latter'),
    ],
)
def test_only_the_number_that_was_calibrated_gets_intervals(
    demo, target, other, words, tmp_path
):
    calibrate(*demo, FEW, 'removal', target=target, **QUIET).save(tmp_path / 'c.json')
    asked = dict(calibration=load(tmp_path / 'c.json'), confidence=0.5)
    (a,) = explain(*demo, TEXT, 'removal', target=target, **asked)
    assert len(a.low) == len(a)
    (b,) = explain(*demo, TEXT, target=target, **asked)  # the default method
    assert b.method == 'removal' and b.info['low'] == a.info['low']
    with pytest.raises(ValueError, match=words):
        explain(*demo, [TEXT], 'removal', target=other, **asked)
    with pytest.raises(ValueError, match=words):
        top_tokens(*demo, TEXT, 1, target=other, **asked)


AROUND = dict(template='So they said: {text} and that was all')
RULES = [dict(method='lrp', composite=Composite('mine', eps=e)) for e in (0.0, 0.1)]


@pytest.mark.parametrize(
    'calibrated_with, other, name',
    [
        (RULES[0], RULES[1], 'method'),
        ({}, dict(units='word'), 'units'),
        ({}, dict(units=[(0, 20), (20, len(TEXT))]), 'units'),
        (AROUND, {}, 'template'),
        (AROUND, dict(template='Well, {text}'), 'template'),
        ({}, dict(among=[(0, 6)]), 'template'),
    ],
)
def test_another_call_is_refused(demo, calibrated_with, other, name):
    one, other = (dict(method='removal') | x for x in (calibrated_with, other))
    asked = dict(calibration=calibrate(*demo, FEW, **QUIET, **one), confidence=0.5)
    (a,) = explain(*demo, TEXT, **asked, **one)
    has_interval = [v is not None for v in a.info['low']]
    assert has_interval == a.is_content.tolist() and not all(has_interval)
    with pytest.raises(ValueError, match=f'the calibration is of {name}'):
        explain(*demo, TEXT, **asked, **other)


def test_parts_of_texts_are_calibrated_as_texts_in_a_template(demo):
    inside = [AROUND['template'].format(text=t) for t in FEW]
    among = [(14, 14 + len(t)) for t in FEW]
    how = dict(passes=5, target=1)
    parts = calibrate(*demo, inside, among=among, **QUIET, **how)
    whole = calibrate(*demo, FEW, **AROUND, **QUIET, **how)
    assert parts.texts == whole.texts and parts.copies == 0
    asked = dict(target=1, confidence=0.5)
    a = top_tokens(*demo, inside[0], 1, parts, among=among[0], **asked)
    b = top_tokens(*demo, FEW[0], 1, whole, **AROUND, **asked)
    assert a.which == b.which and a.attribution.scores.equal(b.attribution.scores)
    among = [(0, 2), (0, 6), (0, 6)]
    twice = calibrate(*demo, [FEW[0]] * 3, 'removal', among=among, **QUIET)
    assert twice.copies == 1
    with pytest.raises(ValueError, match='the calibration is of template'):
        explain(*demo, FEW[0], calibration=parts, **asked)


@pytest.mark.parametrize(
    'x, s, loo, reach, expected',
    [
        # certainly inside and outside: none is read
        ([5.0, 1.0, 0.0], [1.0, 1.0, 1.0], [5.0, 1.0, 0.0], 1.9, ([0], [])),
        # a token of the top alone overlaps the others' ends
        ([5.0, 4.0], [1.0, 0.1], [4.5, 4.0], 1.0, ([0], [0])),
        # an exact number may change the answer
        ([3.0, 2.5, 0], [1.0, 0.9, 1.0], [1, 2.6, 0], 0.5, ([1], [0])),
        # the second is less certain, so it is read first
        ([3.0, 2.0], [0.1, 5.0], [3.0, 1.0], 1.0, ([0], [1])),
        # an exact token takes no pass
        ([3.0, 2.0], [0.0, 0.5], [3.0, 9.0], 1.0, ([0], [])),
        # two exact ones may be equal
        ([3.0, 3.0], [0.0, 0.0], [3.0, 3.0], 1.0, ([0], [])),
    ],
)
def test_the_search(x, s, loo, reach, expected):
    assert settle_top(x, s, 1, loo.__getitem__, reach) == expected


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
            sorted(settle_top(x, s, k, loo.__getitem__, needed + d)[0])
            for d in (1e-9, -1)
        ]
        assert found[0] == best
        missed += found[1] != best
    assert missed > 10


def test_the_reach_of_a_large_negative_score():
    "Nine texts whose largest by size, −5, stands after 1 until 1 is read."
    made = made_calibration([([1.0, -0.5], [1.0, -5.0])] * 9)
    assert_close(made.reach(1, 0.9), (1 - 0.5) / np.sqrt((1 + 0.25) / 2))
    # texts with no more tokens than are asked for do not count
    made = made_calibration([([1.0, 2.0], [1.0, 2.0])] * 9 + [([1.0], [1.0])] * 9)
    assert made.reach(1) < 0
    with pytest.raises(ValueError, match='9 texts are too few.*at least 19'):
        made.reach(1, 0.95)


def test_arguments_are_checked_and_intervals_are_shown(demo):
    made = calibrate(*demo, FEW, 'removal', **QUIET)
    for options in (dict(k=2.5), dict(confidence=1.5)):
        asked = dict(k=1, calibration=made, confidence=0.5) | options
        with pytest.raises(ValueError, match=f'^{[*options][0]}'):
            top_tokens(*demo, TEXT, **asked)
    with pytest.raises(TypeError, match='Calibration.*got dict'):
        explain(*demo, TEXT, 'removal', calibration={})
    (a,) = explain(*demo, TEXT, 'removal', calibration=made, confidence=0.7)
    n_content = int((~a.is_special).sum())
    assert a._repr_html_().count('(70%)') == n_content
    (ax,) = a.plot().axes
    whiskers = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert len(whiskers) == n_content


@pytest.mark.parametrize('name, passes', [('sst2', 11), ('reviews-sst2', 4)])
def test_the_top_of_a_budget_is_exact_loos(name, passes):
    "A calibration says which budget; its exact tokens are not read again."
    demo = load_demo(name)
    texts = [t for t in load_texts('sst2', 'embedded').texts if len(t) > 90]
    how = dict(target=1, units='word')
    made = calibrate(*demo, texts[:20], **QUIET, passes=passes, **how)
    right = n_read = 0
    some = texts[20:30]
    for text, loo in zip(some, explain(*demo, some, 'loo', **how)):
        found = top_tokens(*demo, text, 2, made, **how)
        (begun,) = explain(*demo, text, calibration=made, **how)
        a, before = found.attribution, begun.info['exact']
        assert a.tokens == loo.tokens and a.info['options'] == dict(passes=passes)
        assert sorted(a.info['exact']) == sorted([*found.exact, *before])
        assert a.passes >= begun.passes and 'low' not in refine(a, 4).info
        right += finds_the_top(found, loo)
        n_read += len(found.exact)
    assert right >= 8
    assert n_read < 2 * 10  # two each, if the top itself was always read


@pytest.mark.parametrize('method', ['auto', 'removal'])
def test_a_templates_words_are_never_the_top(method, texts):
    demo = load_demo('reviews-sst2')
    template = 'Awful, awful, awful! They said of it: {text} Terrible, and wonderful.'
    how = dict(passes=5) if method == 'auto' else {}
    made = calibrate(*demo, texts[:10], method, template=template, **QUIET, **how)
    found = top_tokens(*demo, TEXT, 3, made, template=template)
    assert found.attribution.is_content[[*found.which, *found.exact]].all()
