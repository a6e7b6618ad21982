"Numbers on a GPU against those of the processor."

from conftest import OPINIONS, random_bert
import pytest
import torch

from lrp_loo import METHODS, explain

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason='torch.cuda.is_available() is False'
)
# of both devices in float32, whose sums have another order
TOLERANCE = 1e-4


@pytest.fixture
def small(tokenizer):
    return random_bert(), tokenizer


def relative_errors(maps, others):
    "Return the worst difference of each pair of maps, as a share of the largest score."
    assert len(maps) == len(others)
    return [
        float((a.scores.cpu() - b.scores.cpu()).abs().max() / b.scores.abs().max())
        for a, b in zip(maps, others)
    ]


@pytest.mark.parametrize('method', METHODS)
def test_scores_are_those_of_the_processor(small, method):
    expected = explain(*small, OPINIONS, method)
    computed = explain(*small, OPINIONS, method, device='cuda')
    assert max(relative_errors(computed, expected)) < TOLERANCE
    assert [a.target for a in computed] == [a.target for a in expected]


@pytest.mark.parametrize('removal', ('delete', 'zero_embedding'))
def test_exact_loo_of_other_removals(small, removal):
    options = dict(method='loo', removal=removal)
    expected = explain(*small, OPINIONS, **options)
    computed = explain(*small, OPINIONS, device='cuda', **options)
    assert max(relative_errors(computed, expected)) < TOLERANCE


def test_bfloat16_states_an_error_that_is_of_the_size_of_its_error(small):
    model, tokenizer = small
    model.to('cuda')
    expected = explain(model, tokenizer, OPINIONS, 'loo')
    computed = explain(model, tokenizer, OPINIONS, 'loo', precision='bfloat16')
    assert not any(a.exact for a in computed)
    for a, error in zip(computed, relative_errors(computed, expected)):
        assert error < 10 * a.expected_error + TOLERANCE


def test_nothing_stays_in_the_memory_of_the_gpu(small):
    model, tokenizer = small
    model.to('cuda')
    explain(model, tokenizer, OPINIONS, 'loo')
    held = torch.cuda.memory_allocated()
    for method in ('loo', 'auto', 'attn_lrp'):
        explain(model, tokenizer, OPINIONS, method)
    assert torch.cuda.memory_allocated() == held
