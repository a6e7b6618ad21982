"How a claim is judged."

import json

import numpy as np

from lrp_loo.paper.layerwise import picked
from lrp_loo.paper.ledger import (
    CLAIMS,
    Rows,
    incomplete_share,
    ledger,
    over_lengths,
    verdict_of,
)


def test_a_choice_is_measured_on_texts_that_did_not_make_it():
    "Noise alone: the best of many choices gains nothing on other texts."
    draws = np.random.default_rng(0).normal(size=(50, 400))
    best = draws.mean(1).max()
    assert best > 0.08
    assert abs(picked(draws)[0].mean()) < 0.08


def test_a_claim_needs_the_methods_it_speaks_of():
    row = dict(i=0, n_tokens=9, methods=dict(loo=dict(r=1.0, r_sum=1.0)))
    rows = Rows([row] * 4, 2)
    assert [c.key for c in CLAIMS if c.difference(rows) is not None] == []


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


def test_several_trainings_must_agree_for_a_verdict():
    sure = dict(mean=0.1, p=1e-6)
    assert verdict_of(**sure) == 'holds'
    assert verdict_of(**sure, trainings_low=0.02, trainings_high=0.2) == 'holds'
    wide = dict(trainings_low=-0.02, trainings_high=0.2)
    assert verdict_of(**sure, **wide) == 'undecided'
    below = dict(mean=-0.1, p=1e-6)
    apart = dict(trainings_low=-0.2, trainings_high=-0.01)
    assert verdict_of(**below, **apart) == 'reversed'
    assert verdict_of(**below, **wide) == 'undecided'


def test_a_study_with_claims_of_its_own_is_asked_for_them(tmp_path):
    content = dict(config={}, versions={}, rows=[dict(i=0)])
    (tmp_path / 'mine.json').write_text(json.dumps(content))
    about = dict(claim='mine', sentence='', model='m', sha256='', data='d')
    numbers = dict(tokens='', removal='none', mean=1.0, n=9, p=1e-3)
    entries = ledger([tmp_path], {'mine': lambda results: [about | numbers]})
    assert [e['verdict'] for e in entries] == ['holds']
    assert entries[0]['file'] == f'{tmp_path.name}/mine'


def of_ig(*pairs):
    "A row for each pair of f(x) and the error of a map's sum."
    return [
        dict(logit=f, methods=dict(ig=dict(completeness_error=e))) for f, e in pairs
    ]


def test_maps_that_have_not_arrived_withdraw_a_claim():
    assert incomplete_share(of_ig((1, 0.9), (-1, -0.9)), 'ig') == 0
    assert incomplete_share(of_ig((1, -1.1), (-1, 0.9)), 'ig') == 0.5
    not_recorded = [dict(logit=9.0, methods=dict(ig=dict(r=0.5)))]
    assert incomplete_share(not_recorded, 'ig') == 1
    sure = dict(mean=0.2, p=1e-9)
    assert verdict_of(**sure, incomplete=0.2) == 'holds'
    assert verdict_of(**sure, incomplete=0.6) == 'withdrawn'
