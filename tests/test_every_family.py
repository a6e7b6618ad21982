"""A dozen families of different construction are right or refused now; the stored table of all of
them holds nothing wrong; and what makes the table sees what is wrong."""

import every_family
import pytest
import torch
from every_family import (
    CHECKS,
    HELD_BACK,
    RESULTS,
    SETTINGS,
    WIDEST,
    as_markdown,
    build,
    inputs_for,
    jobs,
    row_of,
    summary,
    tasks_of,
)

import lrp_loo
from lrp_loo.results import read_results

LIVE = (  # family, what it has
    'bert',  # one list of layers
    # a softmax of four dimensions that weighs streams, not tokens
    'deepseek_v4',
    'xlm',  # attentions and feed-forwards in lists of their own
    'deberta',  # attention that depends on relative positions
    'convbert',  # a convolution beside attention
    'fnet',  # a Fourier transform that knows no mask
    'longformer',  # windows written out
    'gpt_neo',  # every second layer sees a window
    'bloom',  # positions as slopes, gelu as a function of its own
    'mistral',  # a sliding window
    'mixtral',  # a router chooses experts
    'mamba',  # a state, no attention
    'xlnet',  # texts on the second axis
    'vit',  # an image
)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('family', LIVE)
def test_a_family_is_right_or_refused(family):
    row = row_of(family, tasks_of(family)[0], WIDEST)
    assert row['built'], row.get('why')
    found = {
        check: o['why']
        for check, o in row['checks'].items()
        if o['outcome'] == 'wrong'
    }
    assert not found


@pytest.fixture(scope='module')
def bert():
    return build('bert', 'class', WIDEST)


def test_a_score_that_is_off_is_wrong(bert, monkeypatch):
    own = every_family.leave_one_out

    def off(*args):
        loo, *rest = own(*args)
        return loo * 1.01, *rest

    monkeypatch.setattr(every_family, 'leave_one_out', off)
    assert (
        CHECKS['LOO'](bert, 'class', inputs_for(bert, 'class'))['outcome']
        == 'wrong'
    )


def test_another_library_s_error_is_wrong_and_our_own_is_a_refusal(
    bert, monkeypatch
):
    def others(*args):
        return torch.zeros(2) @ torch.zeros(3)

    def ours(model, enc, target):
        return lrp_loo.leave_one_out(model, {}, target)

    for call, outcome in ((others, 'wrong'), (ours, 'refused')):
        monkeypatch.setattr(every_family, 'leave_one_out', call)
        assert (
            CHECKS['LOO'](bert, 'class', inputs_for(bert, 'class'))['outcome']
            == outcome
        )


def test_a_softmax_that_keeps_its_gradient_is_wrong(bert, monkeypatch):
    monkeypatch.setattr(every_family, 'cp_lrp', every_family.attn_lrp)
    assert (
        CHECKS['CP softmax'](bert, 'class', inputs_for(bert, 'class'))[
            'outcome'
        ]
        == 'wrong'
    )


def test_a_batch_that_changes_scores_is_wrong(bert, monkeypatch):
    own = every_family.explain_batch

    def off(model, tokenizer, encs, *args):
        out = own(model, tokenizer, encs, *args)
        if len(encs) > 1:
            out[1].scores = out[1].scores.flip(0)
        return out

    monkeypatch.setattr(every_family, 'explain_batch', off)
    assert (
        CHECKS['batch attn_lrp'](bert, 'class', inputs_for(bert, 'class'))[
            'outcome'
        ]
        == 'wrong'
    )


def test_a_model_that_ignores_the_mask_is_wrong_unless_it_is_said(
    bert, monkeypatch
):
    encs = inputs_for(bert, 'class')
    own = bert.forward

    def deaf(input_ids, attention_mask=None, **kw):
        return own(input_ids=input_ids, **kw)

    monkeypatch.setattr(bert, 'forward', deaf)
    monkeypatch.setattr(
        every_family, 'leave_one_out', lambda *args: (torch.zeros(12),)
    )
    found = CHECKS['LOO'](bert, 'class', encs)
    assert found['outcome'] == 'wrong'
    assert 'zero everywhere' in found['why']


def test_the_same_name_gives_the_same_model():
    a, b, other = (build('bert', 'class', s) for s in (WIDEST, WIDEST, '0.05'))
    assert torch.equal(a.classifier.weight, b.classifier.weight)
    assert not torch.equal(a.classifier.weight, other.classifier.weight)


def test_families_that_were_held_back_are_the_last_rows():
    assert len(HELD_BACK) == 2
    families = [family for _, family, *_ in jobs()]
    first = min(map(families.index, HELD_BACK))
    assert set(families[first:]) == set(HELD_BACK)


@pytest.fixture(scope='module')
def stored():
    return read_results(RESULTS / 'every-family.json')


def test_the_stored_table_has_a_hundred_families_at_every_setting(stored):
    built = [r for r in stored['rows'] if r['built']]
    for setting in SETTINGS:
        assert (
            len({r['family'] for r in built if r['setting'] == setting}) >= 100
        )


def test_the_stored_table_holds_nothing_wrong(stored):
    wrong = [
        (r['family'], r['task'], r['setting'], check)
        for r in stored['rows']
        for check, o in r.get('checks', {}).items()
        if o['outcome'] == 'wrong'
    ]
    assert wrong == []


def test_the_stored_table_has_every_job_and_every_check(stored):
    assert [
        (r['i'], r['family'], r['task'], r['setting']) for r in stored['rows']
    ] == jobs()
    assert all(
        list(r['checks']) == list(CHECKS) for r in stored['rows'] if r['built']
    )
    assert stored['summary'] == summary(stored['rows'])


def test_the_page_is_the_table(stored):
    assert (RESULTS / 'every-family.md').read_text(
        encoding='utf-8'
    ) == as_markdown(stored)
