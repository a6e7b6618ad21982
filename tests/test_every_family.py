"""A dozen families of different construction are right or refused now; the stored table of all of
them holds nothing wrong; and what makes the table sees what is wrong.
"""

import every_family
import pytest
import torch
import transformers
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
    # an empty row would hold nothing wrong
    assert list(row['checks']) == list(CHECKS)
    wrong = {
        check: o['why'] for check, o in row['checks'].items() if o['outcome'] == 'wrong'
    }
    assert not wrong


# ------------------------------------------------------------ the checks see
# what is wrong


@pytest.fixture(scope='module')
def bert():
    return build('bert', 'class', WIDEST)


@pytest.fixture
def outcome(bert):
    "A check's outcome on this model."

    def of(check):
        return CHECKS[check](bert, 'class', inputs_for(bert, 'class'))

    return of


@pytest.mark.parametrize(
    'check', ['LOO', 'CP softmax', 'batch attn_lrp', 'logits unchanged']
)
def test_what_is_not_tampered_with_is_right(outcome, check):
    assert outcome(check)['outcome'] == 'right'


def test_a_score_that_is_off_is_wrong(outcome, monkeypatch):
    own = every_family.leave_one_out

    def off(*args):
        loo, *rest = own(*args)
        return loo * 1.01, *rest

    monkeypatch.setattr(every_family, 'leave_one_out', off)
    assert outcome('LOO')['outcome'] == 'wrong'


def test_another_librarys_error_is_wrong(outcome, monkeypatch):
    def others(*args):
        return torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(every_family, 'leave_one_out', others)
    assert outcome('LOO')['outcome'] == 'wrong'


def test_our_own_error_is_a_refusal(outcome, monkeypatch):
    def ours(model, enc, target):
        return lrp_loo.leave_one_out(model, {}, target)

    monkeypatch.setattr(every_family, 'leave_one_out', ours)
    assert outcome('LOO')['outcome'] == 'refused'


def test_a_softmax_that_keeps_its_gradient_is_wrong(outcome, monkeypatch):
    monkeypatch.setattr(every_family, 'cp_lrp', every_family.attn_lrp)
    assert outcome('CP softmax')['outcome'] == 'wrong'


def test_a_batch_that_changes_scores_is_wrong(outcome, monkeypatch):
    own = every_family.explain_batch

    def off(model, tokenizer, encs, *args):
        out = own(model, tokenizer, encs, *args)
        if len(encs) > 1:
            out[1].scores = out[1].scores.flip(0)
        return out

    monkeypatch.setattr(every_family, 'explain_batch', off)
    assert outcome('batch attn_lrp')['outcome'] == 'wrong'


def test_a_model_that_ignores_the_mask_is_wrong_unless_it_is_said(
    bert, outcome, monkeypatch
):
    own = bert.forward

    def deaf(input_ids, attention_mask=None, **kw):
        return own(input_ids=input_ids, **kw)

    def zero_everywhere(*args):
        return (torch.zeros(12),)

    monkeypatch.setattr(bert, 'forward', deaf)
    monkeypatch.setattr(every_family, 'leave_one_out', zero_everywhere)
    found = outcome('LOO')
    assert found['outcome'] == 'wrong'
    assert 'zero everywhere' in found['why']


# ------------------------------------------------------------ what is built


def _head(setting):
    return build('bert', 'class', setting).classifier.weight


def test_the_same_name_gives_the_same_model():
    assert torch.equal(_head(WIDEST), _head(WIDEST))


def test_another_setting_gives_another_model():
    assert not torch.equal(_head(WIDEST), _head('0.05'))


def test_families_that_were_held_back_are_the_last_rows():
    assert len(HELD_BACK) == 2
    families = [job.family for job in jobs()]
    first = min(map(families.index, HELD_BACK))
    assert set(families[first:]) == set(HELD_BACK)


# ------------------------------------------------------------ the stored table


@pytest.fixture(scope='module')
def stored():
    return read_results(RESULTS / 'every-family.json')


@pytest.fixture(scope='module')
def built(stored):
    "The rows of models that could be built."
    return [row for row in stored['rows'] if row['built']]


@pytest.mark.parametrize('setting', SETTINGS)
def test_the_stored_table_has_a_hundred_families_at(setting, built):
    families = {row['family'] for row in built if row['setting'] == setting}
    assert len(families) >= 100


def test_the_stored_table_holds_nothing_wrong(built):
    wrong = [
        (row['family'], row['task'], row['setting'], check)
        for row in built
        for check, found in row['checks'].items()
        if found['outcome'] == 'wrong'
    ]
    assert wrong == []


def test_the_stored_table_has_every_job(stored):
    if stored['versions']['transformers'] != transformers.__version__:
        pytest.skip('the record was made with another version of transformers')
    done = [
        (row['i'], row['family'], row['task'], row['setting']) for row in stored['rows']
    ]
    assert done == jobs()


def test_the_stored_table_has_every_check(built):
    for row in built:
        assert list(row['checks']) == list(CHECKS)


def test_the_stored_summary_is_of_its_rows(stored):
    assert stored['summary'] == summary(stored['rows'])


def test_the_page_is_the_table(stored):
    page = (RESULTS / 'every-family.md').read_text(encoding='utf-8')
    assert page == as_markdown(stored)
