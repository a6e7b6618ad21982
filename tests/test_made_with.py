"""What an explanation says of the model and the options it was made with, and
that explanations of two models are not mixed unseen.
"""

import copy

import pytest
import torch
from conftest import shallow_demo
from test_summary import TEXTS

from lrp_loo import (
    attribute_context,
    compare,
    compare_summaries,
    explain,
    explain_generation,
    explain_pairs,
    load,
    load_demo,
    load_model,
    summarize,
    weighed_removal,
)
from lrp_loo.models.layers import made_with, name_of_model, weights_mark


@pytest.fixture(scope='module')
def demo():
    return load_demo('sst2')


@pytest.fixture(scope='module')
def other(demo):
    "Another training's stand-in: one vocabulary, one set of labels."
    model = copy.deepcopy(demo[0])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    return model, demo[1]


def test_the_model_and_the_options_are_noted(demo):
    (a,) = explain(*demo, TEXTS[0], bypass_softmax=range(3, 6), batch_size=2)
    assert a.info['model'] == 'minilm-sst2'
    assert a.info['weights'] == weights_mark(demo[0])
    assert a.info['options'] == dict(bypass_softmax=[3, 4, 5])
    assert a.called == 'attn_lrp(bypass_softmax=[3, 4, 5])'


def test_a_model_has_one_mark_wherever_it_lies(demo, tmp_path):
    for part in demo:
        part.save_pretrained(tmp_path / 'mine')
    model, *_ = load_model(tmp_path / 'mine')
    assert weights_mark(model) == weights_mark(demo[0])
    assert name_of_model(model) == 'mine'  # and not the way there


@pytest.mark.parametrize('change', ['training', 'bfloat16', 'one layer'])
def test_other_weights_have_another_mark(demo, change):
    model = copy.deepcopy(demo[0])
    with torch.no_grad():
        if change == 'training':
            model.classifier.weight.add_(1e-3)
        if change == 'bfloat16':
            model.bfloat16()
        if change == 'one layer':
            del model.base_model.encoder.layer[5]
    assert weights_mark(model) != weights_mark(demo[0])


def test_int8_weights_have_a_mark_of_their_own():
    torch.manual_seed(0)
    marks = set()
    for _ in range(2):
        plain = torch.nn.Sequential(torch.nn.Linear(64, 64))
        int8 = torch.ao.quantization.quantize_dynamic
        marks.add(weights_mark(int8(plain, {torch.nn.Linear})))
        marks.add(weights_mark(plain))
    assert len(marks) == 4


class Uncut(torch.Tensor):
    "As some quantized tensors are: what it holds cannot be reshaped."

    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        if f.__name__ == 'reshape':
            raise NotImplementedError(f.__name__)
        return super().__torch_function__(f, types, args, kwargs or {})


def test_a_tensor_that_cannot_be_cut_is_no_error():
    model = torch.nn.Linear(3, 3)
    before = weights_mark(model)
    weight = model.weight.detach().as_subclass(Uncut)
    model.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert weights_mark(model) != before  # by the numbers that are left


def test_any_option_can_be_kept(demo, tmp_path):
    def mine(*given, **options):
        return None

    options = dict(
        bypass_softmax={3: {1, 0}, 2: (5,)},
        baseline=torch.zeros(2, 3),
        rule=mine,
        eps=0.5,
        none=None,
    )
    (a,) = explain(*demo, TEXTS[0])
    a.info |= made_with(demo[0], options)
    assert a.info['options'] == dict(
        bypass_softmax={'3': [0, 1], '2': [5]},
        baseline='a tensor of shape (2, 3)',
        rule='mine',
        eps=0.5,
        none=None,
    )
    a.save(tmp_path / 'a.json')
    assert load(tmp_path / 'a.json').info == a.info


@pytest.mark.parametrize('suffix', ['html', 'json', 'parquet'])
def test_a_file_keeps_it(demo, tmp_path, suffix):
    (a,) = explain(*demo, TEXTS[0], eps=0.1)
    a.save(tmp_path / f'a.{suffix}')
    back = load(tmp_path / f'a.{suffix}')
    assert (back.called, back.made_by) == (a.called, a.made_by)
    assert back.called == 'attn_lrp(eps=0.1)'


def test_it_is_shown(demo):
    (a,) = explain(*demo, TEXTS[0], bypass_softmax=[0])
    assert 'Attribution(attn_lrp(bypass_softmax=[0]), target' in repr(a)
    assert f'<b title="{a.made_by}">attn_lrp(' in a._repr_html_()
    a.info['model'] = '"><script>'
    assert '<script>' not in a._repr_html_()


# ------------------------------------------------------------ not mixed


def test_two_models_in_one_summary_are_refused_by_name(demo, other):
    maps = explain(*demo, TEXTS[:2]) + explain(*other, TEXTS[:2])
    marks = [weights_mark(m) for m, _ in (demo, other)]
    with pytest.raises(ValueError, match=f'{marks[0]}.*{marks[1]}'):
        summarize(maps, min_count=1)


def test_a_bypass_in_some_maps_is_refused_by_name(demo):
    maps = explain(*demo, TEXTS[:2]) + explain(*demo, TEXTS, bypass_softmax=[1])
    says = r'attn_lrp and attn_lrp\(bypass_softmax=\[1\]\)'
    with pytest.raises(ValueError, match=says):
        summarize(maps, min_count=1)


def test_one_bypass_said_in_two_ways_is_one(demo):
    maps = explain(*demo, TEXTS[:2], bypass_softmax=range(3, 6))
    maps += explain(*demo, TEXTS[2:4], bypass_softmax=(3, 4, 5))
    found = summarize(maps, min_count=1)
    assert len(found.texts) == 4
    assert repr(found).startswith('Summary(AttnLRP(bypass_softmax=[3, 4, 5])')
    assert '</b> of minilm-sst2 ·' in found._repr_html_()


def test_a_comparison_names_two_models_and_no_r_between_them(demo, other):
    loo = explain(*demo, TEXTS[0], 'loo', 1)[0]
    own, foreign = (explain(*d, TEXTS[0], target=1)[0] for d in (demo, other))
    shown = compare(loo, own, foreign)._repr_html_()
    assert f'({foreign.made_by})' in shown and f'({own.made_by})' in shown
    assert shown.count('r with loo') == 1
    assert own.made_by not in compare(loo, own)._repr_html_().replace(
        f'title="{own.made_by}"', ''
    )


def test_summaries_of_two_models_are_called_by_them(demo, other):
    other[0].config._name_or_path = 'later'
    first, second = (
        summarize(explain(*d, TEXTS, units='word', target=1), min_count=1)
        for d in (demo, other)
    )
    found = compare_summaries(first, second)
    assert found.names == ('minilm-sst2', 'later')
    rules = explain(*demo, TEXTS, units='word', target=1, bypass_softmax=[0])
    third = summarize(rules, min_count=1)
    names = ('AttnLRP', 'AttnLRP(bypass_softmax=[0])')
    assert compare_summaries(first, third).names == names


def test_every_call_notes_it(demo):
    model, tokenizer = load_demo('reviews')
    mark = weights_mark(model)
    said = explain_generation(model, tokenizer, 'The film', max_new_tokens=2)
    assert {a.info['weights'] for a in said} == {mark}
    a = attribute_context(model, tokenizer, 'It is dull. It ends.', 'good', 'Is it?')
    assert a.info['weights'] == mark
    (pairs,) = explain_pairs(*demo, TEXTS[:1])
    assert pairs.info['weights'] == weights_mark(demo[0])


def test_a_long_option_is_short_and_told_apart(demo):
    ones = [[1.0, 1.0, 1.0]] * 6
    other = [*ones[:5], [2.0, 1.0, 1.0]]
    called = []
    for weights in (ones, other):
        (a,) = explain(*demo, 'so dull', weighed_removal, weights=weights)
        called.append(a.called)
    assert called[0] != called[1]
    assert all(len(name) < 100 for name in called)


def test_what_a_model_is_called():
    model = shallow_demo('sst2', 1)[0]
    for name in ('a/b', 'bert-base-uncased'):
        model.config._name_or_path = name
        assert name_of_model(model) == name
    assert name_of_model(torch.nn.Linear(2, 2)) == 'Linear'


def test_what_is_not_noted_is_not_said(demo):
    (a,) = explain(*demo, TEXTS[0], 'loo', progress=False, token_budget=512)
    assert 'options' not in a.info and a.called == 'loo'
    for name in ('model', 'weights'):
        del a.info[name]
    assert (a.made_by, a.called) == ('', 'loo')
    assert '<b>loo</b>' in a._repr_html_()
