"""LOO within a budget of passes: exact where it fits, never worse for more, refined
without doing it again, refused with what exact takes.
"""

import gc
import pickle
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from conftest import TEXTS, random_bert, shallow_demo
from transformers import BertForTokenClassification, FNetConfig
from transformers import FNetForSequenceClassification, LlamaConfig, LlamaForCausalLM

from lrp_loo import Target, attribute_context, calibrate, explain, explain_generation
from lrp_loo import load_demo, refine
from lrp_loo.estimate.auto import affordable_passes, auto_scores
from lrp_loo.core.stats import pearson
from lrp_loo.inputs.scores import NextTokens
from lrp_loo.loo.states import StoredText
from lrp_loo.models.encoding import encode
from lrp_loo.records.display import outside_scale_label

LONG = [
    'The plot is thin, the jokes are old, and still the last ten minutes moved me.',
    'A quiet film with a loud heart, and a train station that steals every scene of it.',
    'Nobody in this comedy is having any fun, least of all the people who paid for it.',
    'It drags, then it soars, then it drags again, and I would not see it once more.',
    'Two hours of rain and one good song, which is a little more than I had hoped for.',
    'The first hour asks for patience; the second, against all odds, repays every minute.',
]
BUDGETS = (3, 4, 5, 7, 9, 11, 16)


@pytest.fixture(scope='module', params=['sst2', 'reviews-sst2'])
def demo(request):
    return load_demo(request.param)


def r_with(a, loo):
    return float(pearson(a.scores[a.is_content], loo.scores[a.is_content]))


# ---- exact where it fits


def test_what_fits_is_exact(demo):
    (a,) = explain(*demo, TEXTS[0])
    (loo,) = explain(*demo, TEXTS[0], method='loo')
    assert a.exact and loo.exact and a.expected_r == 1 and a.expected_error == 0
    assert torch.equal(a.scores, loo.scores)
    assert (
        a.info['planned_passes'] <= 16
        and a.spent == f'LOO, exact, {a.passes:.0f} passes'
    )
    assert a.spent in repr(a)
    (same,) = explain(*demo, LONG[0], passes=None)
    assert same.exact
    assert torch.equal(same.scores, explain(*demo, LONG[0], method='loo')[0].scores)


@pytest.mark.parametrize('passes', BUDGETS)
def test_a_budget_is_kept_and_said(demo, passes):
    for text, a in zip(LONG, explain(*demo, LONG, passes=passes), strict=True):
        enc = encode(*demo, text)
        limit = affordable_passes(demo[0], enc, None, passes) if a.exact else passes
        assert a.info['planned_passes'] <= limit
        # padding to longer variants and texts counts as well
        assert 3 <= a.passes <= 2 * limit
        if not a.exact:
            assert 0 < a.expected_r < 1 and 0 < a.expected_error
            of = a.info['exact_passes']
            assert a.spent == f'LOO estimated in {a.passes:.0f} of {of:.0f} passes'


@pytest.mark.parametrize('n_read', [1, 20])
@pytest.mark.parametrize('passes', [3, 4, 5, 9])
def test_a_deep_decoder_keeps_a_budget(passes, n_read):
    "Whether one row is read or those of an answer of twenty tokens."
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=14)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, **sizes, **heads)).eval()
    ids = torch.randint(0, 99, (1, 40))
    enc = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    answer = NextTokens(ids[0, -n_read:], log_prob=True, total=True)
    target = None if n_read == 1 else answer
    info = auto_scores(model, None, [enc], target, passes=passes).info[0]
    assert 3 <= info['planned_passes'] <= passes < info['exact_passes']


def test_exact_tokens_are_exact(demo):
    for text in LONG:
        (a,) = explain(*demo, text, passes=9)
        (loo,) = explain(*demo, text, method='loo')
        exact = a.info['exact']
        if exact is not True and exact:
            off = (a.scores - loo.scores)[exact].abs().max()
            assert off < 1e-4 * loo.scores.abs().max()  # float32 in another order


def test_passes_go_where_they_take_most_away(monkeypatch):
    "They go into whole tokens, if rows cannot be recomputed."
    monkeypatch.setattr('lrp_loo.estimate.auto.rows_are_right', lambda *args: False)
    demo = shallow_demo('reviews-sst2')
    for text in LONG:
        (sure,), (a,) = (explain(*demo, text, passes=n) for n in (3, 5))
        spread, left, chosen = np.array(sure.info['spread']), 5 - 3, set()
        for j in np.argsort(-spread):  # a pass each: no states are stored any more
            if a.is_content[j] and left >= 1:
                chosen.add(int(j))
                left -= 1
        assert set(a.info['exact']) == chosen and a.info['planned_passes'] == 5
        reason = 'whole tokens: keys and values of BertFor'
        reason = reason.replace('BertFor', type(demo[0]).__name__)
        assert a.info['engine'].startswith(reason)
        assert 'they gave other numbers than its forward' in a.info['engine']


# ---- more is never worse, and nothing else is better at its cost


def mean_r(demo, loos, texts=LONG, **how):
    found = explain(*demo, texts, **how)
    return float(np.mean([r_with(a, loo) for a, loo in zip(found, loos)]))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_more_passes_do_not_make_it_worse_in_the_mean(name):
    demo = load_demo(name)
    loos = explain(*demo, LONG, method='loo')
    r = [mean_r(demo, loos, passes=n) for n in BUDGETS]
    # six texts: a mean r is known to about a hundredth
    assert all(more > less - 0.01 for less, more in zip(r, r[1:])), r
    assert r[-1] > 0.98 > r[0]


# ---- only what is asked about


def test_a_template_gets_no_passes():
    demo = load_demo('reviews-sst2')
    template = 'Here is what somebody wrote about a film: {text} That was all.'
    (a,) = explain(*demo, LONG[0], template=template, passes=7)
    exact = a.info['exact']
    assert exact is not True and set(exact) <= set(
        a.is_content.nonzero()[:, 0].tolist()
    )
    # what is not asked about is the closed form's
    (one,) = explain(*demo, LONG[0], template=template, method='removal')
    apart = ~a.is_content
    assert torch.allclose(a.scores[apart], one.scores[apart], atol=1e-5)


@pytest.mark.parametrize('passes', [4, 6])
@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_rows_that_do_not_give_the_text_are_not_taken(name, passes, monkeypatch):
    demo, values, n = shallow_demo(name), StoredText.values, []
    (loo,) = explain(*demo, LONG[1], method='loo')

    def wrong(self, *args, **kwargs):
        n.append(len(args[0]))
        return values(self, *args, **kwargs) + 0.1

    monkeypatch.setattr(StoredText, 'values', wrong)
    (a,) = explain(*demo, LONG[1], passes=passes)
    exact = a.info['exact']
    off = (a.scores - loo.scores)[exact].abs().max()
    assert n == [2] and len(exact) == passes - 3  # the two numbers that are compared
    assert off < 1e-4 * loo.scores.abs().max()


# ---- gone on with


def test_refined_until_exact(demo):
    (a,) = explain(*demo, LONG[1], passes=4)
    (loo,) = explain(*demo, LONG[1], method='loo')
    before = a.scores.clone()
    known, r = a, [r_with(a, loo)]
    while not known.exact:
        kept, passes = known.scores, known.info['planned_passes']
        exact, known = known.info['exact'], refine(known, 8)
        assert torch.equal(kept[exact], known.scores[exact])
        assert passes < known.info['planned_passes'] <= passes + 8
        r.append(r_with(known, loo))
        if known.content_is_exact and not known.exact:
            assert known.spent.startswith('LOO, exact for content tokens, ')
            assert outside_scale_label(known) == 'special tokens (estimates)'
    assert torch.equal(a.scores, before) and not a.exact
    assert torch.allclose(known.scores, loo.scores, atol=1e-4 * loo.scores.abs().max())
    assert r[-1] > 0.9999 and min(r[1:]) > r[0] - 0.02
    assert refine(known) is known
    assert known.tokens == a.tokens and known.target == a.target
    assert outside_scale_label(loo) == outside_scale_label(known) == 'special tokens'
    assert known.spent.startswith('LOO, exact, ')


def test_a_map_that_is_kept_holds_no_model(tmp_path):
    model, tokenizer = shallow_demo('reviews-sst2')
    (a,) = explain(model, tokenizer, LONG[1], passes=4)
    kept = pickle.loads(pickle.dumps(a))
    with pytest.raises(ValueError, match='explain the text again'):
        refine(kept)
    with pytest.raises(ValueError, match='explain the text again'):
        refine(explain(model, tokenizer, LONG[1], method='removal')[0])
    gone = weakref.ref(model)
    del a, model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    'options', [{}, dict(units='word'), dict(template='So: {text} !')]
)
def test_refined_by_more_passes_than_there_are_tokens_is_exact(demo, options):
    (a,) = explain(*demo, LONG[1], passes=4, **options)
    (loo,) = explain(*demo, LONG[1], method='loo', **options)
    for passes in (len(a) + 8, 1000):
        known = refine(a, passes)
        assert known.exact and known.passes <= a.passes + passes
        scale = loo.scores.abs().max()
        assert torch.allclose(known.scores, loo.scores, atol=1e-4 * scale)


def times(model, factor):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(factor)


def drop_some(model):
    "One layer draws at random, the model itself is in eval mode."
    next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).train()


CHANGES = {
    'weights in place': lambda m: times(m, 1.5),
    'weights loaded': lambda m: m.load_state_dict(
        {k: v * 2 for k, v in m.state_dict().items()}
    ),
    'training': lambda m: m.train(),
    'training of a layer': drop_some,
    'config': lambda m: setattr(m.config, 'output_hidden_states', True),
    'attention': lambda m: m.set_attn_implementation('eager'),
    'hook': lambda m: m.base_model.register_forward_hook(lambda *x: None),
    'hook of a layer': lambda m: list(m.modules())[5].register_forward_pre_hook(
        lambda *x: None
    ),
    'forward': lambda m: setattr(m, 'forward', partial(type(m).forward, m)),
    'type': lambda m: m.double(),
}


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
@pytest.mark.parametrize('change', CHANGES)
def test_refine_refuses_a_model_that_has_changed(name, change):
    model, tokenizer = shallow_demo(name)
    (a,) = explain(model, tokenizer, LONG[1], passes=4)
    CHANGES[change](model)
    with pytest.raises(ValueError, match='the model has changed .* explain the text'):
        refine(a, 100)


def test_refine_goes_on_with_a_model_that_is_set_back(demo):
    model, tokenizer = demo
    (a,) = explain(model, tokenizer, LONG[1], passes=4)
    hook = model.base_model.register_forward_hook(lambda *x: None)
    model.train()
    with pytest.raises(ValueError, match='training mode, hooks'):
        refine(a, 4)
    hook.remove()
    model.eval()
    assert refine(refine(a, 4), 100).exact


# ---- what people explain, without an option


def test_a_tagger():
    config = random_bert(layers=2, num_labels=3).config
    model = BertForTokenClassification(config).eval()
    text, target = LONG[1], Target(1, position=2)
    tokenizer = load_demo('sst2')[1]
    (loo,) = explain(model, tokenizer, text, method='loo', target=target)
    (a,) = explain(model, tokenizer, text, target=target)
    assert not a.exact and a.info['planned_passes'] <= 16 and len(a.info['exact']) == 13
    off = (a.scores - loo.scores)[a.info['exact']].abs().max()
    assert off < 1e-4 * loo.scores.abs().max()


def test_an_image():
    model, _ = load_demo('mnist')
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    (a,) = explain(model, None, [image])
    (loo,) = explain(model, None, [image], method='loo', removal='attention_mask')
    assert not a.exact and a.info['planned_passes'] <= 16
    (more,) = explain(model, None, [image], passes=30)
    assert r_with(more, loo) > r_with(a, loo) - 0.01
    (exact,) = explain(model, None, [image], passes=None)
    assert torch.equal(exact.scores, loo.scores)


def test_a_generation_and_a_context():
    demo = load_demo('reviews')
    given = (*demo, 'I went in expecting little, and the film was', ' a quiet joy')
    auto, loo = (explain_generation(*given, method=m) for m in ('auto', 'loo'))
    assert all(a.exact for a in auto)
    assert all(torch.allclose(a.scores, b.scores) for a, b in zip(auto, loo))
    few = explain_generation(*given, passes=7)
    assert not few[0].exact and few[0].passes <= 7
    with pytest.raises(ValueError, match='too few.*take passes=None'):
        explain_generation(*given, passes=4)
    context = dict(passages=' '.join(LONG), answer=' a good film')
    a = attribute_context(*demo, **context)
    loo = attribute_context(*demo, **context, method='loo')
    assert a.exact and torch.allclose(a.scores, loo.scores, atol=1e-5)


def test_texts_under_autocast_are_estimated_one_by_one():
    "Its rounding differs between a padded batch and each text."
    demo, texts = shallow_demo('sst2'), [LONG[0], ' '.join(LONG[1:3])]
    with torch.autocast('cpu', torch.bfloat16):
        together = explain(*demo, texts, passes=4)
        for text, a in zip(texts, together):
            (alone,) = explain(*demo, text, passes=4)
            assert not a.exact and torch.equal(a.scores, alone.scores)


# ---- certainty


def test_refining_removes_the_intervals_of_the_earlier_budget(demo):
    c = calibrate(*demo, LONG, passes=5, progress=False)
    (a,) = explain(*demo, LONG[0], passes=5, calibration=c, confidence=0.5)
    assert a.low.isfinite().any() and 'low' not in refine(a).info


# ---- what cannot be meant


def test_a_removal_without_an_estimate(demo):
    how = dict(removal='delete')
    with pytest.raises(ValueError, match='no estimate.*take passes=None'):
        explain(*demo, LONG[0], **how, passes=5)
    (a,) = explain(*demo, LONG[0], **how, passes=None)
    (loo,) = explain(*demo, LONG[0], method='loo', **how)
    assert a.exact and torch.equal(a.scores, loo.scores)


@pytest.mark.filterwarnings('ignore:no rule for fft_fftn')
def test_a_model_without_attention():
    sizes = dict(hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    model = FNetForSequenceClassification(FNetConfig(**sizes)).eval()
    enc = dict(input_ids=torch.arange(5, 30)[None])
    with pytest.raises(ValueError, match='exact LOO takes 26 passes: take passes=None'):
        auto_scores(model, None, [enc])
