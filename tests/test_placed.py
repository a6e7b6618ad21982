"""Where the weights are: fetched from elsewhere by accelerate, in shards of
torch's, on no device at all; and an attention that is compiled.

Either the scores are those of the same model as it was loaded, or one line says
what is the matter.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from conftest import random_bert, shallow_demo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lrp_loo import explain, explain_generation
from lrp_loo.methods import METHODS
from lrp_loo.models import check_model
from lrp_loo.models.layers import is_offloaded, weights_mark

TEXTS = ["The jokes are old, and the pace is slow.", "Fine."]
# it repeats what a layer does, and is refused where a forward is replaced
GENERAL = [name for name, method in METHODS.items() if method.any_model]


def to_cpu(model, folder):
    accelerate = pytest.importorskip('accelerate')
    return accelerate.cpu_offload(model, execution_device='cpu')


def to_disk(model, folder):
    accelerate = pytest.importorskip('accelerate')
    return accelerate.disk_offload(model, folder, execution_device='cpu')


def to_several(model, folder):
    "As `device_map` does: a layer on the disk, the others in memory."
    accelerate = pytest.importorskip('accelerate')
    where = {
        'bert.embeddings': 'cpu',
        'bert.encoder.layer.0': 'cpu',
        'bert.encoder.layer.1': 'disk',
        'bert.pooler': 'cpu',
        'classifier': 'cpu',
    }
    return accelerate.dispatch_model(
        model, where, offload_dir=folder, main_device='cpu'
    )


OFFLOADED = {'to cpu': to_cpu, 'to disk': to_disk, 'to several': to_several}


@pytest.fixture(scope='module', params=OFFLOADED)
def offloaded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp('offload')
    model = OFFLOADED[request.param](random_bert(layers=2), folder)
    assert is_offloaded(model)
    return model


@pytest.fixture(scope='module')
def plain():
    return random_bert(layers=2)


@pytest.fixture(scope='module')
def sharded(tmp_path_factory):
    "By FSDP2, in the one process that there is."
    rendezvous = tmp_path_factory.mktemp('group') / 'meet'
    dist.init_process_group(
        'gloo', init_method=f'file://{rendezvous}', rank=0, world_size=1
    )
    mesh = init_device_mesh('cpu', (1,))
    model = random_bert(layers=2)
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    yield fully_shard(model, mesh=mesh)
    dist.destroy_process_group()


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.target == b.target
        assert a.label == b.label
        # float32, padded together or one by one
        assert torch.allclose(a.scores, b.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('target', [None, 'LABEL_1'])
@pytest.mark.parametrize('method', GENERAL)
def test_an_offloaded_model_is_explained_as_it_was(
    offloaded, plain, tokenizer, method, target
):
    given = dict(method=method, target=target)
    wanted = explain(plain, tokenizer, TEXTS, **given)
    hooks = [vars(m).get('_hf_hook') for m in offloaded.modules()]
    assert_same(explain(offloaded, tokenizer, TEXTS, **given), wanted)
    assert [vars(m).get('_hf_hook') for m in offloaded.modules()] == hooks
    assert is_offloaded(offloaded)  # nothing was fetched for good


def test_an_offloaded_model_has_the_mark_of_its_weights(offloaded, plain):
    assert weights_mark(offloaded) == weights_mark(plain)
    assert weights_mark(offloaded) != weights_mark(random_bert(2, seed=1))


def test_an_offloaded_decoder_explains_what_it_says(tmp_path):
    wanted, found = [
        explain_generation(
            place(shallow_demo('reviews')[0]),
            shallow_demo('reviews')[1],
            'The film was',
            max_new_tokens=3,
        )
        for place in (lambda m: m, lambda m: to_disk(m, tmp_path))
    ]
    assert_same(found, wanted)


def test_an_offloaded_model_is_moved_nowhere(offloaded, tokenizer):
    with pytest.raises(ValueError, match='spread over devices'):
        explain(offloaded, tokenizer, TEXTS, device='cpu')


@pytest.mark.parametrize('target', [None, 'LABEL_1'])
@pytest.mark.parametrize('method', GENERAL)
def test_a_sharded_model_is_explained_as_it_was(
    sharded, plain, tokenizer, method, target
):
    given = dict(method=method, target=target)
    wanted = explain(plain, tokenizer, TEXTS, **given)
    assert_same(explain(sharded, tokenizer, TEXTS, **given), wanted)


def test_a_sharded_model_has_the_mark_of_its_weights(sharded, plain):
    assert weights_mark(sharded) == weights_mark(plain)


# ---- weights that nobody has


def test_a_model_on_no_device_is_refused():
    with pytest.raises(ValueError, match='has no weights; load them'):
        check_model(random_bert(layers=2).to('meta'))


@contextlib.contextmanager
def default_device():
    torch.set_default_device('meta')
    try:
        yield
    finally:
        torch.set_default_device(None)
        with contextlib.suppress(AttributeError):
            # torch 2.9 asks the context that is gone
            del torch._GLOBAL_DEVICE_CONTEXT.device_context


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('context', [default_device, lambda: torch.device('meta')])
def test_no_device_as_the_default_is_refused(plain, tokenizer, context, method):
    with context(), pytest.raises(ValueError, match="torch's default device is 'meta'"):
        explain(plain, tokenizer, TEXTS, method=method)


# ---- attention that is compiled


@pytest.fixture(scope='module')
def flexible():
    return random_bert(layers=2, attn_implementation='flex_attention')


@pytest.mark.parametrize('method', [m for m in METHODS if m != 'loo'])
def test_flex_attention_is_refused_by_name(flexible, tokenizer, method):
    with pytest.raises(TypeError, match='is flex_attention, which is compiled'):
        explain(flexible, tokenizer, TEXTS, method=method)


def test_what_the_refusal_of_flex_attention_advises_is_taken(tokenizer):
    model = random_bert(layers=2, attn_implementation='flex_attention')
    model.set_attn_implementation('sdpa')
    wanted = explain(random_bert(layers=2), tokenizer, TEXTS)
    assert_same(explain(model, tokenizer, TEXTS), wanted)
