"What an explanation says of model and options; models are not mixed unseen; weights elsewhere."

import copy

from conftest import TEXTS as THREE, random_bert, shallow_demo
import pytest
from test_summary import TEXTS
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import torch.distributed as dist

from lrp_loo import attribute_context, compare, explain
from lrp_loo import explain_generation, explain_pairs, load, load_demo, load_model
from lrp_loo import summarize
from lrp_loo.models.structure import (
    is_offloaded,
    provenance,
    name_of_model,
    weights_fingerprint,
)

TWO = THREE[:2]


@pytest.fixture(scope='module')
def other(demo):
    "Another training's stand-in: one vocabulary, one set of labels."
    model = copy.deepcopy(demo[0])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    return model, demo[1]


def test_the_model_and_the_options_are_noted(demo, tmp_path):
    (a,) = explain(
        *demo, TEXTS[0], 'attn_lrp', bypass_softmax=range(3, 6), batch_size=2
    )
    assert a.info['model'] == 'minilm-sst2'
    assert a.info['weights'] == weights_fingerprint(demo[0])
    assert a.info['options'] == dict(bypass_softmax=[3, 4, 5])
    assert a.called == 'attn_lrp(bypass_softmax=[3, 4, 5])'
    for part in demo:
        part.save_pretrained(tmp_path / 'mine')
    model, *_ = load_model(tmp_path / 'mine')
    assert weights_fingerprint(model) == weights_fingerprint(demo[0])
    assert name_of_model(model) == 'mine'  # and not the way there
    model = copy.deepcopy(model)
    del model.base_model.encoder.layer[5]
    assert weights_fingerprint(model) != weights_fingerprint(demo[0])


def test_any_option_can_be_kept(demo, tmp_path):
    def mine(*given, **options):
        return None

    same = dict(eps=0.5, none=None)
    options = dict(bypass_softmax={3: {1, 0}, 2: (5,)}, rule=mine, **same)
    (a,) = explain(*demo, TEXTS[0])
    a.info |= provenance(demo[0], options | dict(baseline=torch.zeros(2, 3)))
    kept = dict(bypass_softmax={'3': [0, 1], '2': [5]}, rule='mine', **same)
    kept['baseline'] = 'a tensor of shape (2, 3)'
    assert a.info['options'] == kept
    a.save(tmp_path / 'a.json')
    assert load(tmp_path / 'a.json').info == a.info


def test_a_file_keeps_it_and_it_is_shown(demo, tmp_path):
    (a,) = explain(*demo, TEXTS[0], 'attn_lrp', bypass_softmax=[0])
    called = 'attn_lrp(bypass_softmax=[0])'
    for suffix in ('html', 'json', 'parquet'):
        a.save(tmp_path / f'a.{suffix}')
        back = load(tmp_path / f'a.{suffix}')
        assert (back.called, back.made_by) == (called, a.made_by)
    assert f'Attribution({called}, target' in repr(a)
    assert f'<b title="{a.made_by}">attn_lrp(' in a._repr_html_()
    a.info['model'] = '"><script>'
    assert '<script>' not in a._repr_html_()


def test_two_models_or_a_bypass_in_one_summary_are_refused_by_name(demo, other):
    own = explain(*demo, TEXTS[:2], 'attn_lrp')
    marks = [weights_fingerprint(m) for m, _ in (demo, other)]
    with pytest.raises(ValueError, match=f'{marks[0]}.*{marks[1]}'):
        summarize(own + explain(*other, TEXTS[:2], 'attn_lrp'), min_count=1)
    says = r'attn_lrp and attn_lrp\(bypass_softmax=\[1\]\)'
    with pytest.raises(ValueError, match=says):
        maps = own + explain(*demo, TEXTS, 'attn_lrp', bypass_softmax=[1])
        summarize(maps, min_count=1)


def test_a_comparison_names_two_models_and_no_r_between_them(demo, other):
    loo = explain(*demo, TEXTS[0], 'loo', 1)[0]
    own, foreign = (explain(*d, TEXTS[0], target=1)[0] for d in (demo, other))
    shown = compare(loo, own, foreign)._repr_html_()
    assert f'({foreign.made_by})' in shown and f'({own.made_by})' in shown
    assert shown.count('r with loo') == 1
    assert own.made_by not in compare(loo, own)._repr_html_().replace(
        f'title="{own.made_by}"', ''
    )


def test_every_call_notes_it(demo):
    model, tokenizer = load_demo('reviews')
    mark = weights_fingerprint(model)
    said = explain_generation(model, tokenizer, 'The film', max_new_tokens=2)
    assert {a.info['weights'] for a in said} == {mark}
    a = attribute_context(model, tokenizer, 'It is dull. It ends.', 'good', 'Is it?')
    assert a.info['weights'] == mark
    (pairs,) = explain_pairs(*demo, TEXTS[:1])
    assert pairs.info['weights'] == weights_fingerprint(demo[0])


def test_what_is_not_noted_is_not_said(demo):
    (a,) = explain(*demo, TEXTS[0], 'loo', progress=False, token_budget=512)
    assert 'options' not in a.info and a.called == 'loo'
    for name in ('model', 'weights'):
        del a.info[name]
    assert (a.made_by, a.called) == ('', 'loo')
    assert '<b>LOO, exact, ' in a._repr_html_()


def placed(how, model, folder):
    "On the processor, on the disk, or as `device_map` does: a layer on the disk."
    accelerate = pytest.importorskip('accelerate')
    if how == 'to cpu':
        return accelerate.cpu_offload(model, execution_device='cpu')
    if how == 'to disk':
        return accelerate.disk_offload(model, folder, execution_device='cpu')
    parts = 'bert.embeddings bert.encoder.layer.0 bert.pooler classifier'
    where = dict.fromkeys(parts.split(), 'cpu') | {'bert.encoder.layer.1': 'disk'}
    return accelerate.dispatch_model(
        model, where, offload_dir=folder, main_device='cpu'
    )


@pytest.fixture(scope='module', params=['to cpu', 'to disk', 'to several', 'sharded'])
def elsewhere(request, tmp_path_factory):
    if request.param == 'sharded':
        yield request.getfixturevalue('sharded')
        return
    folder = tmp_path_factory.mktemp('offload')
    model = placed(request.param, random_bert(layers=2), folder)
    assert is_offloaded(model)
    yield model


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


LONGER = 'The film was dull, and the music was worse than the film itself'


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.target == b.target
        assert a.label == b.label
        # float32, padded together or one by one
        assert torch.allclose(a.scores, b.scores, rtol=1e-4, atol=1e-4)


# a method of its own models repeats what a layer does, and is refused
@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal', 'rollout'])
def test_a_model_elsewhere_is_explained_as_it_was(elsewhere, plain, tokenizer, method):
    hooks = [vars(m).get('_hf_hook') for m in elsewhere.modules()]
    offloaded = is_offloaded(elsewhere)
    for target in (None, 'LABEL_1'):
        given = dict(method=method, target=target)
        wanted = explain(plain, tokenizer, TWO, **given)
        assert_same(explain(elsewhere, tokenizer, TWO, **given), wanted)
    assert [vars(m).get('_hf_hook') for m in elsewhere.modules()] == hooks
    assert is_offloaded(elsewhere) == offloaded  # nothing was fetched for good


def test_a_model_elsewhere_within_a_budget(elsewhere, plain, tokenizer):
    how = (tokenizer, LONGER, 'auto')
    found = explain(elsewhere, *how, passes=5)
    assert_same(found, explain(plain, *how, passes=5))
    assert not found[0].exact


def test_a_model_elsewhere_has_the_mark_of_its_weights(elsewhere, plain, tokenizer):
    assert weights_fingerprint(elsewhere) == weights_fingerprint(plain)
    assert weights_fingerprint(elsewhere) != weights_fingerprint(random_bert(2, seed=1))
    if is_offloaded(elsewhere):
        with pytest.raises(ValueError, match='spread over devices'):
            explain(elsewhere, tokenizer, TWO, device='cpu')


@pytest.fixture(scope='module')
def decoders(tmp_path_factory):
    "One as it is, one on the disk, and their tokenizer."
    (model, tokenizer), (other, _) = (shallow_demo('reviews') for _ in range(2))
    return model, placed('to disk', other, tmp_path_factory.mktemp('d')), tokenizer


@pytest.mark.parametrize('method', ['attn_lrp', 'loo', 'removal'])
def test_an_offloaded_decoder_is_explained_as_it_was(decoders, method):
    model, away, tokenizer = decoders
    how = (tokenizer, LONGER, method)
    assert_same(explain(away, *how), explain(model, *how))


@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'ig'])
def test_flex_attention_is_refused(tokenizer, method):
    flexible = random_bert(layers=2, attn_implementation='flex_attention')
    with pytest.raises(TypeError, match='is flex_attention, which is compiled'):
        explain(flexible, tokenizer, TWO, method=method)
