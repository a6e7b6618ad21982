"How a claim is judged."

import json

import numpy as np
import pytest
from close import assert_close

from lrp_loo.paper.tables import picked
from lrp_loo.paper.ledger import Rows, file_entries, ledger, over_lengths
from lrp_loo.paper.ledger import readings, verdict_of


def test_a_choice_is_measured_on_texts_that_did_not_make_it():
    "Noise alone: the best of many choices gains nothing on other texts."
    draws = np.random.default_rng(0).normal(size=(50, 400))
    best = draws.mean(1).max()
    assert best > 0.08
    assert abs(picked(draws)[0].mean()) < 0.08


def texts_of(lengths):
    "Rows of texts with so many tokens."
    return Rows([dict(n_tokens=n) for n in lengths], 2)


def test_the_gain_that_falls_with_length_is_seen_where_texts_are_enough():
    lengths = np.arange(10.0, 70.0)
    noise = np.random.default_rng(0).normal(size=60)
    found = over_lengths(-lengths / 10 + noise, texts_of(lengths))
    assert found['mean'] > 0.5
    assert found['low'] > 0
    assert found['p'] < 1e-3
    assert over_lengths(np.arange(5.0), texts_of(range(5))) is None


def judged_entry(mean):
    "What a verdict is read off, of 60 texts."
    return dict(mean=mean, low=mean - 0.05, high=mean + 0.05, n=60, margin=0.02)


@pytest.mark.parametrize(
    ('mean', 'each', 'low', 'high', 'verdict'),
    [
        (0.1, [0.05, 0.15], 0.02, 0.2, 'holds'),
        (0.1, [0.01, 0.19], -0.02, 0.2, 'undecided'),
        (-0.1, [-0.05, -0.15], -0.2, -0.01, 'reversed'),
        (-0.1, [0.01, 0.19], -0.02, 0.2, 'undecided'),
    ],
)
def test_several_trainings_must_agree_for_a_verdict(mean, each, low, high, verdict):
    of_each = dict(
        trainings_low=low, trainings_high=high, trainings=dict(enumerate(each))
    )
    assert verdict_of(judged_entry(mean) | of_each, 1e-6) == verdict


def test_equal_needs_every_template_within_the_margin():
    near = judged_entry(0.005)
    means = dict(a=0.01, b=0.0)
    each = dict(templates=means, templates_low=-0.06, templates_high=0.07)
    assert verdict_of(near | each, 1e-6, 1e-6) == 'equal'
    each['templates'] = dict(a=0.06, b=-0.05)
    assert verdict_of(near | each, 1e-6, 1e-6) == 'undecided'
    assert verdict_of(near, 1e-6, None) == 'undecided'  # no margin, never equal


@pytest.mark.parametrize(
    ('unit', 'n', 'verdict'),
    [('texts', 20, 'holds'), ('texts', 19, 'undecided')]
    + [('networks', 6, 'holds'), ('networks', 5, 'undecided')],
)
def test_few_texts_and_few_networks_decide_nothing(unit, n, verdict):
    entry = judged_entry(0.4) | dict(n=n, unit=unit)
    assert verdict_of(entry, 1e-6) == verdict


def rows_in(templates, n=40):
    "A results file of a model that reads each text in several templates."
    g = np.random.default_rng(0)
    rows = [
        dict(
            i=k * n + t,
            text=t,
            template=name,
            n_tokens=12,
            methods=dict(
                attn_lrp=dict(r=0.5, r_all=0.9),
                cp_lrp=dict(r=0.5 + g.normal(gain, 0.05), r_all=0.1),
            ),
        )
        for k, (name, gain) in enumerate(templates.items())
        for t in range(n)
    ]
    model = dict(name='m', sha256='', layers=2)
    prompts = {t: dict(template='{text}', answers=[' bad', ' good']) for t in templates}
    config = dict(data=dict(name='sst2', split='test'), model=model, prompts=prompts)
    return dict(config=config, rows=rows)


def verdict_over(templates, tmp_path):
    path = tmp_path / 'made.json'
    path.write_text(json.dumps(rows_in(templates) | dict(versions={})))
    own, over_all = (e for e in ledger([tmp_path]) if e['claim'] == 'cp-above-attn')
    assert (own['over'], over_all['over']) == ('content', 'all')
    assert_close(over_all['mean'], -0.8)
    return own


def test_a_claim_holds_only_where_it_holds_in_every_template(tmp_path):
    same = verdict_over(dict(a=0.1, b=0.11, c=0.12, d=0.1), tmp_path)
    assert (same['verdict'], same['n'], same['over']) == ('holds', 40, 'content')
    assert list(same['templates']) == ['a', 'b', 'c', 'd']
    assert 0 < same['templates_low'] < same['mean'] < same['templates_high']
    differ = verdict_over(dict(a=0.3, b=0.2, c=0.1, d=-0.2), tmp_path)
    assert differ['p_corrected'] < 0.001 and differ['low'] > 0
    assert differ['verdict'] == 'undecided'


def test_texts_that_took_templates_in_turn_are_judged_over_both(tmp_path):
    made = rows_in(dict(a=0.1, b=0.11, c=0.12, d=0.1))
    rows = [row for row in made['rows'] if row['text'] % 4 == row['i'] // 40]
    assert len(rows) == 40
    (own, _) = (e for e in file_entries(made | dict(rows=rows)) if e['n'] == 40)
    assert (own['claim'], own['over']) == ('cp-above-attn', 'content')
    assert set(own['templates']) == {'a', 'b', 'c', 'd'}
    assert_close(own['mean'], np.mean(list(own['templates'].values())))
    assert 0 < own['templates_low'] < own['mean'] < own['templates_high']


def test_templates_without_a_shared_text_are_refused():
    rows = rows_in(dict(a=0.1, b=0.1))['rows']
    for row in rows:
        del row['text']
    with pytest.raises(ValueError, match='of each of a, b'):
        readings(rows, 'template')


def test_a_further_study_changes_no_verdict_of_a_declared_family(tmp_path):
    "Families are of what was said before, not of how much was measured."

    def entry(model, p):
        about = dict(claim='mine', sentence='', model=model, sha256='', tokens='')
        about |= dict(data='d', removal='none', over='content')
        declared = model == 'm'
        family = dict(family='mine' if declared else 'mine, explored')
        family |= dict(correction='holm' if declared else 'fdr 0.05')
        numbers = dict(mean=1.0, low=0.5, high=1.5, n=60, p=p, p_equal=None)
        return about | family | numbers | dict(margin=None)

    content = dict(config={}, versions={}, rows=[dict(i=0)])
    (tmp_path / 'mine.json').write_text(json.dumps(content))

    def verdict(*entries):
        found = ledger([tmp_path], {'mine': lambda results: list(entries)})
        return next(e for e in found if e['model'] == 'm')

    others = [entry(f'other {k}', 0.9) for k in range(500)]
    alone, beside = verdict(entry('m', 0.03)), verdict(entry('m', 0.03), *others)
    assert alone['verdict'] == beside['verdict'] == 'holds'
    assert alone['p_corrected'] == beside['p_corrected'] == 0.03


def test_maps_that_have_not_arrived_withdraw_a_claim():
    sure = judged_entry(0.2)
    assert verdict_of(sure | dict(arrived=0.9), 1e-9) == 'holds'
    assert verdict_of(sure | dict(arrived=0.89), 1e-9) == 'withdrawn'


def test_of_two_files_the_one_whose_gradients_arrived_counts(tmp_path):
    "Though it has fewer texts."

    def file(name, n, said, gap):
        rows = [
            dict(
                i=i,
                n_tokens=9,
                logit=1.0,
                methods=dict(
                    attn_lrp=dict(r=0.5 + gap + i / 999),
                    ig=dict(r=0.5, completeness_error=0.0) | said,
                ),
            )
            for i in range(n)
        ]
        config = dict(
            model=dict(name='m', model='X', layers=2, sha256='0'),
            data=dict(name='sst2', source='folder', split='test', tokens='all'),
            removal='attention_mask',
            methods=dict(attn_lrp=['attn_lrp', {}], ig=['ig', {}]),
        )
        text = json.dumps(dict(config=config, versions={}, rows=rows))
        (tmp_path / f'{name}.json').write_text(text)

    file('long', 60, {}, 0.2)
    file('short', 30, dict(arrived=True), -0.1)
    (entry,) = [e for e in ledger([tmp_path]) if e['claim'] == 'attn-above-ig']
    assert entry['n'] == 30 and entry['arrived'] == 1 and entry['mean'] < 0
