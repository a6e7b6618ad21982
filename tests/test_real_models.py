"The large models from the package index, agreement with a second derivation."

import copy
from functools import partial
from types import SimpleNamespace

import large_models
import naive_llama
import pytest
import torch
from conftest import demo_or_skip, shallow_demo
from naive_mpnet import MPNet

from lrp_loo import attn_lrp, explain, load_model, lrp_rules
from lrp_loo.models.loading import BASES, DEMOS, demo_base
from lrp_loo.models.loading import load_demo
from lrp_loo.models.encoding import encode
from lrp_loo.models.structure import describe_model, n_layers

MPNETS = [n for n, demo in DEMOS.items() if demo.base == 'mpnet']
SENTENCE = 'The jokes are old, but the film'


@pytest.fixture(scope='module', params=[*MPNETS, 'smollm2'])
def large(request):
    "A large demo model's name, model, tokenizer."
    return request.param, *demo_or_skip(request.param)


@pytest.mark.large
def test_it_is_a_stock_model_of_its_size(large):
    name, model, _ = large
    llama = name == 'smollm2'
    assert type(model).__name__.startswith('Llama' if llama else 'MPNet')
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())
    assert not [n for n, _ in model.named_parameters() if 'lora' in n]
    said = describe_model(model, name)
    sizes = said['layers'], said['width'], said['parameters'] // 10**6
    assert sizes == ((30, 576, 134) if llama else (12, 768, 109))
    assert ('stored_as' in said) == llama


@pytest.mark.large
def test_smollm2_is_what_its_package_holds(tmp_path):
    model, tokenizer = demo_or_skip('smollm2')
    # Q4_1: 32 numbers of a row share a scale and an offset
    blocks = model.model.layers[7].mlp.down_proj.weight[:16].reshape(-1, 32)
    assert max(len(block.unique()) for block in blocks) <= 16
    enc = tokenizer('The capital of France is', return_tensors='pt')
    assert tokenizer.decode(model(**enc).logits[0, -1].argmax()) == ' Paris'
    # it can be saved and loaded again
    shallow, _ = shallow_demo('smollm2', 1)
    shallow.save_pretrained(tmp_path)
    saved = type(model).from_pretrained(tmp_path)
    assert describe_model(saved) == describe_model(shallow)
    again, *_ = load_model(demo_base('smollm2'), task='next token')
    assert describe_model(again)['stored_as'] == describe_model(model)['stored_as']


@pytest.mark.large
@pytest.mark.parametrize('layers', ['none', 'all'])
def test_every_operation_has_a_rule(large, layers):
    _, model, tokenizer = large
    bypass = range(n_layers(model)) if layers == 'all' else ()
    enc = encode(model, tokenizer, SENTENCE)
    with lrp_rules(model, attn_lrp(bypass)) as rules:
        model(**enc)
    assert 'none' not in set(rules.report()['rule'])
    assert len(rules.report()) > 200


def as_explained(model, tokenizer, method, naive):
    "One text's scores, the model in double precision; relative to the largest."
    scores = explain(model, tokenizer, SENTENCE, method=method)[0].scores.double()
    off, largest = (scores - naive).abs().max(), naive.abs().max()
    assert off <= 1e-4 * largest, (off / largest).item()


def naive_loo(logits, ids):
    "Of the likeliest: all seen, less with each token unseen."
    whole = logits(None)
    t = int(whole.argmax())
    return whole[t] - torch.stack([logits(i)[t] for i in range(len(ids))])


def in_double(name, layers=3):
    demo_or_skip(name)
    model, tokenizer = shallow_demo(name, layers)
    return copy.deepcopy(model).double(), tokenizer, tokenizer(SENTENCE)['input_ids']


@pytest.fixture(scope='module')
def mpnet():
    "MPNet in double precision, and derived again, with the text's ids."
    model, tokenizer, ids = in_double('mpnet-sst2')
    c = model.config
    sizes = dict(layers=c.num_hidden_layers, heads=c.num_attention_heads)
    again = MPNet(model.state_dict(), ln_eps=c.layer_norm_eps, **sizes)
    return model, tokenizer, again, ids


@pytest.mark.large
@pytest.mark.parametrize('method, n', [('attn_lrp', 0), ('cp_lrp', 3)])
def test_relevance_of_mpnet_is_the_naive_one(mpnet, method, n):
    model, tokenizer, again, ids = mpnet
    R = again.back(int(again(ids).argmax()), bypass=range(n))
    as_explained(model, tokenizer, method, R)


@pytest.mark.large
def test_loo_of_mpnet_is_the_naive_one(mpnet):
    model, tokenizer, again, ids = mpnet

    def logits(i):
        return again(ids) if i is None else again(ids, unseen=[i])

    as_explained(model, tokenizer, 'loo', naive_loo(logits, ids))


@pytest.fixture(scope='module')
def smollm2():
    "SmolLM2 in double precision, with its sizes and the text's ids."
    model, tokenizer, ids = in_double('smollm2')
    c = model.config
    sizes = dict(layers=c.num_hidden_layers, heads=c.num_attention_heads)
    sizes |= dict(kv_heads=c.num_key_value_heads, rms_eps=c.rms_norm_eps)
    return (
        model,
        tokenizer,
        sizes | dict(rope_theta=c.rope_parameters['rope_theta']),
        ids,
    )


@pytest.mark.large
@pytest.mark.parametrize('method', ['attn_lrp', 'cp_lrp'])
def test_relevance_of_smollm2_is_the_naive_one(smollm2, method):
    model, tokenizer, sizes, ids = smollm2
    cp = method == 'cp_lrp'
    how = dict(gates='constant', bypass=range(3)) if cp else dict(gates='half')
    logits, R = naive_llama.explain(model.state_dict(), ids, **how, **sizes)
    whole = model(torch.tensor([ids])).logits[0, -1]
    assert (whole - logits).abs().max() <= 1e-4 * logits.abs().max()
    as_explained(model, tokenizer, method, R)


def naive_next(state, ids, unseen, *, layers, heads, kv_heads, **options):
    "The next token's logits, with one token's key hidden from every query."
    n = len(ids)
    table = state['model.embed_tokens.weight']
    x = table[ids]
    M = naive_llama.rotation(n, x.shape[1] // heads, options['rope_theta'])
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    if unseen is not None:
        seen[:, unseen] = False
    # a query that sees nothing: nobody sees its row
    seen |= ~seen.any(-1, keepdim=True)

    def norm(x, name):
        w = state[f'model.{name}.weight']
        return naive_llama.rms_norm(x, w, options['rms_eps'], torch.float32)

    def project(x, name, many, turned):
        z = (x @ state[f'{name}.weight'].T).view(n, many, -1)
        if turned:
            z = torch.einsum('nhd,nde->nhe', z, M)
        return z.repeat_interleave(heads // many, 1).transpose(0, 1)

    for l in range(layers):
        name = f'model.layers.{l}.self_attn'
        h = norm(x, f'layers.{l}.input_layernorm')
        q = project(h, f'{name}.q_proj', heads, True)
        k = project(h, f'{name}.k_proj', kv_heads, True)
        v = project(h, f'{name}.v_proj', kv_heads, False)
        z = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        a = z.masked_fill(~seen, -torch.inf).softmax(-1)
        o = (a @ v).transpose(0, 1).reshape(n, -1)
        x = x + o @ state[f'{name}.o_proj.weight'].T
        feed = naive_llama.FeedForward(state, f'model.layers.{l}.mlp')
        x = x + feed(norm(x, f'layers.{l}.post_attention_layernorm'))
    return norm(x, 'norm')[-1] @ table.T


@pytest.mark.large
def test_loo_of_smollm2_is_the_naive_one(smollm2):
    model, tokenizer, sizes, ids = smollm2
    logits = partial(naive_next, model.state_dict(), ids, **sizes)
    as_explained(model, tokenizer, 'loo', naive_loo(logits, ids))


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    "Nothing is unpacked yet."
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    return tmp_path / 'lrp_loo'


@pytest.mark.parametrize('name', [*MPNETS, 'smollm2'])
def test_a_model_that_is_not_unpacked_is_named(empty_cache, name):
    weights = BASES[DEMOS[name].base]
    with pytest.raises(ModuleNotFoundError, match=f"'{weights}'.*make models"):
        load_demo(name)
    assert not empty_cache.exists()


def unpacked(tmp):
    "A model of one file."
    (tmp / 'model').mkdir()
    (tmp / 'model' / 'config.json').write_text('{}')
    return tmp / 'model'


def not_called(tmp):
    raise AssertionError


def test_a_model_is_unpacked_once_and_what_fails_leaves_nothing(empty_cache):
    def fails(tmp):
        unpacked(tmp)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        large_models.unpack('one', fails)
    assert not list(empty_cache.iterdir())
    folder = large_models.unpack('one', unpacked)
    assert [p.name for p in folder.iterdir()] == ['config.json']
    assert large_models.unpack('one', not_called) == folder
    assert list(empty_cache.iterdir()) == [folder]


def test_another_file_is_refused(monkeypatch, empty_cache):
    part = SimpleNamespace(name='a.zip.001', locate=lambda: __file__)
    brought = SimpleNamespace(files=[part])
    monkeypatch.setattr(large_models, 'distribution', lambda name: brought)
    with pytest.raises(ValueError, match='make models'):
        large_models.unpack('mpnet', large_models.mpnet)
    assert not list(empty_cache.iterdir())


def test_a_cached_folder_is_named_by_its_file():
    for base, digest in large_models.SHA256.items():
        assert BASES[base].endswith(f'-{digest[:12]}')
