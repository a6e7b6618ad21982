"""The keys and values of a text are kept, by whatever name this version of
transformers has for them; where they can't be, it is said why.
"""

import inspect
from collections import namedtuple

import pytest
import torch
import transformers
from conftest import CountTokens
from every_family import WIDEST, build, inputs_for
from families import DECODERS, random_inputs, random_model
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

from lrp_loo.asked.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.decoders import keeping_states, why_no_states
from lrp_loo.models import CACHES, cache_of, forward
from lrp_loo.removal.rows import removal_rows_scores

# of logits near 1: norms and softmax are in float32
ROUNDING = 1e-5
FORWARD = inspect.signature(LlamaForCausalLM.forward).parameters
OWN = next(name for name in CACHES if name in FORWARD)


def llama():
    return random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)


def llama_whose_call(takes, forward):
    "As if another version of transformers had written it."
    model = llama()
    forward.__module__ = LlamaForCausalLM.__module__
    kinds = inspect.Parameter
    named = [kinds(n, kinds.POSITIONAL_OR_KEYWORD, default=None) for n in takes]
    if 'more' in takes:
        named[-1] = kinds('more', kinds.VAR_KEYWORD)
    forward.__signature__ = inspect.Signature(named)
    own = dict(forward=forward, __module__=LlamaForCausalLM.__module__)
    model.__class__ = type('LlamaForCausalLM', (LlamaForCausalLM,), own)
    return model


def llama_that_calls_it(name):
    "Its cache comes and goes by this name."
    kind = namedtuple('CausalLMOutput', ['logits', name])

    def forward(self, **given):
        kept = {OWN: given.pop(name, None)}
        out = LlamaForCausalLM.forward(self, **given, **kept)
        return kind(out.logits, getattr(out, OWN))

    inputs = ('self', 'input_ids', 'attention_mask', 'position_ids')
    takes = (*inputs, name, 'use_cache', 'logits_to_keep')
    return llama_whose_call(takes, forward)


def llama_that_hands_on():
    "What it does not name goes to the model inside."

    def forward(self, **given):
        return LlamaForCausalLM.forward(self, **given)

    takes = ('self', 'input_ids', 'attention_mask', 'logits_to_keep', 'more')
    return llama_whose_call(takes, forward)


CALLS = {name: lambda name=name: llama_that_calls_it(name) for name in CACHES}
CALLS['anything'] = llama_that_hands_on


@pytest.fixture(params=CALLS)
def model(request):
    return CALLS[request.param]()


# ---- by whatever name


def test_exact_loo_and_rows_take_the_short_way(model):
    enc = random_inputs(model, 24)  # of fewer the check is the larger part
    found, tokens = [], []
    for drop in (None, False):
        with CountTokens(model) as count:
            found.append(leave_one_out(model, enc, drop=drop)[0])
        tokens.append(count.n)
    assert torch.allclose(*found, atol=ROUNDING)
    assert tokens[0] < tokens[1]
    enc = random_inputs(model, 12)
    found = removal_rows_scores(model, None, [enc], n_rows=4)
    own = removal_rows_scores(llama(), None, [enc], n_rows=4)
    assert found.info[0]['rows'] == 4
    assert torch.allclose(found.scores, own.scores, atol=ROUNDING)


@pytest.mark.parametrize('family', DECODERS)
def test_every_listed_decoder_keeps_them(family):
    assert keeping_states(random_model(family, 'next token'))


def test_nothing_is_kept_that_was_not_asked_for():
    "Its forward has no `use_cache`; the model inside has."
    model = build('granitemoe', 'next token', WIDEST)
    (enc, _) = inputs_for(model, 'next token')
    assert cache_of(model(**enc)) is not None
    assert cache_of(forward(model, enc)) is None


# ---- where they can't be: which of the three it is


def test_the_version_and_the_family():
    model, enc = llama_that_calls_it('memory'), random_inputs(llama(), 24)
    why = why_no_states(model)
    assert f'transformers {transformers.__version__}' in why
    assert all(name in why for name in CACHES)
    with pytest.warns(UserWarning, match=r'transformers 5\..*in full'):
        loo, *_ = leave_one_out(model, enc)
    own, *_ = leave_one_out(llama(), enc)
    assert torch.allclose(loo, own, atol=ROUNDING)
    why = why_no_states(build('bloom', 'next token', WIDEST))
    assert 'BloomForCausalLM is of a family that is not known' in why
    assert 'llama' in why


def with_flex_attention():
    model = llama()
    model.config._attn_implementation = 'flex_attention'
    return model


def set_sdpa(m):
    m.set_attn_implementation('sdpa')
    return m


def in_peft():
    lora = LoraConfig(target_modules=['q_proj'], task_type='CAUSAL_LM')
    return get_peft_model(llama(), lora).eval()


OPTIONS = {
    'model.eval()': (lambda: llama().train(), lambda m: m.eval()),
    'model.float()': (lambda: llama().bfloat16(), lambda m: m.float()),
    "set_attn_implementation('sdpa')": (with_flex_attention, set_sdpa),
    'merge_and_unload()': (in_peft, lambda m: m.merge_and_unload()),
}


@pytest.mark.parametrize('advice', OPTIONS)
def test_an_option_and_its_advice_helps(advice):
    make, follow = OPTIONS[advice]
    model = make()
    assert advice in why_no_states(model)
    assert not why_no_states(follow(model))


# ---- and what `removal+rows` says of it


def refusal(model, enc, **options):
    with pytest.raises(ValueError) as e:
        removal_rows_scores(model, None, [enc], **options)
    return str(e.value)


def hooked():
    model = llama()
    model.model.layers[0].register_forward_hook(lambda m, a, out: out)
    return model


REFUSED = {
    'family': lambda: build('bloom', 'next token', WIDEST),
    'transformers': lambda: llama_that_calls_it('memory'),
    'a hook': hooked,
    'window': lambda: random_model('Mistral', 'next token'),  # six tokens back
}


@pytest.mark.parametrize('said', REFUSED)
def test_a_causal_language_model_is_told_what_it_is(said):
    "And not that it would have to be one."
    model = REFUSED[said]()
    why = refusal(model, random_inputs(model, 12))
    assert said in why and type(model).__name__ in why
    assert 'causal language model' not in why


def test_a_target_in_the_middle_and_an_encoder():
    model = llama()
    why = refusal(model, random_inputs(model, 12), target=Target(position=3))
    assert "the target must be read at the text's last token" in why
    model = random_model('DeBERTa-v2')
    why = refusal(model, random_inputs(model, 12))
    assert 'family' in why and 'BertForSequenceClassification' in why
