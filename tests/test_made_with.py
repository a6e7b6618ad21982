"What an explanation says of model and options; models are not mixed unseen; weights elsewhere."

import copy

from conftest import TEXTS as THREE, random_bert
import pytest
from test_summary import TEXTS
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import torch.distributed as dist

from lrp_loo import attribute_context, compare, explain
from lrp_loo import explain_generation, explain_pairs, load, load_demo, load_model
from lrp_loo import summarize
from lrp_loo.core.files import digest
from lrp_loo.models.structure import name_of_model, provenance

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
    assert a.info['weights'] == digest(demo[0])[:8]
    assert a.info['options'] == dict(bypass_softmax=[3, 4, 5])
    assert a.called == 'attn_lrp(bypass_softmax=[3, 4, 5])'
    for part in demo:
        part.save_pretrained(tmp_path / 'mine')
    model, *_ = load_model(tmp_path / 'mine')
    assert digest(model)[:8] == digest(demo[0])[:8]
    assert name_of_model(model) == 'mine'  # and not the way there
    model = copy.deepcopy(model)
    del model.base_model.encoder.layer[5]
    assert digest(model)[:8] != digest(demo[0])[:8]


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
    a.save(tmp_path / 'a.json')
    back = load(tmp_path / 'a.json')
    assert (back.called, back.made_by) == (called, a.made_by)
    assert f'Attribution({called}, target' in repr(a)
    assert f'<b title="{a.made_by}">attn_lrp(' in a._repr_html_()
    a.info['model'] = '"><script>'
    assert '<script>' not in a._repr_html_()


def test_two_models_or_a_bypass_in_one_summary_are_refused_by_name(demo, other):
    own = explain(*demo, TEXTS[:2], 'attn_lrp')
    marks = [digest(m)[:8] for m, _ in (demo, other)]
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
    mark = digest(model)[:8]
    said = explain_generation(model, tokenizer, 'The film', max_new_tokens=2)
    assert {a.info['weights'] for a in said} == {mark}
    a = attribute_context(model, tokenizer, 'It is dull. It ends.', 'good', 'Is it?')
    assert a.info['weights'] == mark
    (pairs,) = explain_pairs(*demo, TEXTS[:1])
    assert pairs.main.info['weights'] == digest(demo[0])[:8]


@pytest.mark.parametrize('how', ['meta', 'to cpu', 'sharded'])
def test_weights_that_are_elsewhere_are_refused(how, tokenizer, tmp_path):
    model = random_bert(layers=2)
    if how == 'meta':
        model = model.to('meta')
    elif how == 'to cpu':
        accelerate = pytest.importorskip('accelerate')
        model = accelerate.cpu_offload(model, execution_device='cpu')
    else:
        meeting = f'file://{tmp_path / "meet"}'
        dist.init_process_group('gloo', init_method=meeting, rank=0, world_size=1)
        model = fully_shard(model, mesh=init_device_mesh('cpu', (1,)))
    try:
        with pytest.raises(ValueError, match='weights are not here'):
            explain(model, tokenizer, TWO)
    finally:
        if how == 'sharded':
            dist.destroy_process_group()


# torch warns of what its own flex_attention imports
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'ig'])
def test_flex_attention_is_refused(tokenizer, method):
    flexible = random_bert(layers=2, attn_implementation='flex_attention')
    with pytest.raises(TypeError, match='is flex_attention, which is compiled'):
        explain(flexible, tokenizer, TWO, method=method)
