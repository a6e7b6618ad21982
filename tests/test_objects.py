"""Objects of other libraries, given as they are: each against what it says itself."""

import sys
from types import ModuleType

import pytest
import torch
import transformers
from torch.nn import functional as F

from lrp_loo import explain
from lrp_loo.models.demos import demo_base

TEXT = 'the new phone has a bright screen'
NLI = {0: 'contradiction', 1: 'neutral', 2: 'entailment'}


# --- a zero-shot pipeline, by candidate label


def zero_shot(kind, tokenizer, template=None):
    "A pipeline around a small model with weights large enough that labels differ."
    prefix = 'Bert' if kind == 'BERT' else 'Bart'
    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4)
    if prefix == 'Bart':
        sizes = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64)
        sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4)
        sizes |= dict(encoder_layers=2, decoder_layers=2, decoder_start_token_id=102)
        sizes |= dict(eos_token_id=102, bos_token_id=101, pad_token_id=0)
    config = getattr(transformers, f'{prefix}Config')(
        **sizes,
        vocab_size=30522,
        num_hidden_layers=2,
        num_labels=3,
        id2label=NLI,
        label2id={v: k for k, v in NLI.items()},
    )
    torch.manual_seed(0)
    model = getattr(transformers, f'{prefix}ForSequenceClassification')(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.2)
    given = {} if template is None else dict(hypothesis_template=template)
    given |= dict(model=model, tokenizer=tokenizer)
    return transformers.ZeroShotClassificationPipeline(**given)


@pytest.mark.parametrize('kind', ['BERT', 'BART'])
@pytest.mark.parametrize('template', [None, 'Is it about {}?'])
def test_a_candidate_label_is_explained_by_the_pipeline_s_own_number(
    kind, template, demo
):
    pipe = zero_shot(kind, demo[1], template)
    labels = ['technology', 'sport', 'the sea']
    maps = explain(pipe, None, [(TEXT, label) for label in labels], 'loo')
    own = pipe(TEXT, labels)
    said = torch.tensor([a.logit for a in maps]).softmax(0)
    for label, p in zip(labels, said.tolist()):
        assert own['scores'][own['labels'].index(label)] == pytest.approx(p, abs=1e-5)
    assert len({a.logit for a in maps}) == 3
    for a in maps:
        assert a.target == 2 and a.label == 'entailment'
        assert a.scores.abs().max() > 0


def test_another_number_of_the_label_can_be_asked_for(demo):
    pipe = zero_shot('BERT', demo[1])
    (a,) = explain(pipe, None, [(TEXT, 'sport')], 'loo', target='contradiction')
    assert a.target == 0


# --- sentence-transformers and SetFit


class Transformer(torch.nn.Module):
    "As sentence-transformers': texts become rows for its model."

    def __init__(self, model):
        super().__init__()
        self.auto_model = model


class Pooling(torch.nn.Module):
    pooling_mode = 'mean'


class Normalize(torch.nn.Module):
    pass


class SentenceTransformer(torch.nn.Sequential):
    "What is read of sentence-transformers' object."

    similarity_fn_name, default_prompt_name = 'cosine', None

    def __init__(self, *modules, tokenizer):
        super().__init__(*modules)
        self.tokenizer = tokenizer


for kind in (SentenceTransformer, Transformer, Pooling, Normalize):
    kind.__module__ = 'sentence_transformers.made_here'


@pytest.fixture(scope='module')
def encoder(demo):
    return demo[0].bert


@pytest.fixture(scope='module')
def sentences(encoder, demo):
    return SentenceTransformer(Transformer(encoder), Pooling(), tokenizer=demo[1])


@torch.no_grad()
def embedded(encoder, tokenizer, text):
    enc = tokenizer(text, return_tensors='pt')
    return encoder(**enc)[0].mean(1)


@pytest.mark.parametrize('similarity', ['cosine', 'dot'])
def test_a_pair_s_similarity_is_the_object_s_own(sentences, encoder, demo, similarity):
    pair = (TEXT, 'its display is bright')
    one, other = (embedded(encoder, demo[1], t) for t in pair)
    if similarity == 'cosine':
        one, other = F.normalize(one), F.normalize(other)
    sentences.similarity_fn_name = similarity
    (a,) = explain(sentences, None, [pair], 'loo')
    assert a.logit == pytest.approx(float((one * other).sum()), rel=1e-5)


def test_its_limit_and_its_letters_are_the_tokenizer_s(sentences, demo):
    sentences.similarity_fn_name = 'cosine'
    longer = (TEXT + ' and a battery that lasts for days', 'a phone')
    whole = explain(sentences, None, [longer], 'grad_x_input')[0]
    limit, demo[1].model_max_length = demo[1].model_max_length, 8
    try:
        with pytest.raises(ValueError, match='takes 8'):
            explain(sentences, None, [longer], 'grad_x_input')
    finally:
        demo[1].model_max_length = limit
    assert len(whole) > 16


class SetFitModel:
    "What is read of SetFit's object."

    normalize_embeddings, labels = False, None

    def __init__(self, body, head):
        self.model_body, self.model_head = body, head


SetFitModel.__module__ = 'setfit.modeling'


class SetFitHead(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(384, 2)
        self.temperature, self.eps = 2.0, 1e-2


@pytest.fixture(scope='module')
def fitted(encoder, demo):
    linear_model = pytest.importorskip('sklearn.linear_model')
    texts = ['a bright screen', 'a dim screen', 'a fine phone', 'a dull phone', TEXT]
    x = torch.cat([embedded(encoder, demo[1], t) for t in texts])
    labels = {2: [1, 0, 1, 0, 1], 3: [1, 0, 1, 2, 2]}
    make = linear_model.LogisticRegression
    return x, {n: make().fit(x, own) for n, own in labels.items()}


@pytest.mark.parametrize('n', [2, 3])
def test_a_setfit_model_s_probability_is_its_own(fitted, sentences, n):
    x, heads = fitted
    model = SetFitModel(sentences, heads[n])
    model.labels = ['dim', 'bright', 'neither'][:n]
    own = heads[n].predict_proba(x[-1:])[0]
    (a,) = explain(model, None, [TEXT], 'loo')
    assert a.probability == pytest.approx(own.max(), abs=1e-5)
    assert a.label == model.labels[own.argmax()]
    assert a.scores.abs().min() > 0
    # both classes have scores, each the other's opposite where there are two
    (b,) = explain(model, None, [TEXT], 'loo', target=model.labels[0])
    if n == 2:
        torch.testing.assert_close(a.scores, -b.scores)


def test_a_setfit_head_of_torch_is_scaled_by_its_temperature(sentences, fitted):
    x, _ = fitted
    torch.manual_seed(0)
    head = SetFitHead()
    with torch.no_grad():
        own = (head.linear(x[-1:]) / (head.temperature + head.eps)).softmax(-1)[0]
    (a,) = explain(SetFitModel(sentences, head), None, [TEXT], 'attn_lrp')
    assert a.probability == pytest.approx(float(own.max()), abs=1e-5)


def test_a_head_that_is_not_linear_is_refused(sentences):
    model = SetFitModel(sentences, ModuleType('trees'))
    with pytest.raises(ValueError, match='a linear one is'):
        explain(model, None, [TEXT])


def test_the_real_library_s_object_reads_as_it_does_itself(demo):
    library = pytest.importorskip('sentence_transformers')
    model = library.SentenceTransformer(str(demo_base('minilm')), device='cpu')
    pair = (TEXT, 'its display is bright')
    one, other = model.encode(list(pair), convert_to_tensor=True)
    (a,) = explain(model, None, [pair], 'auto')
    assert a.logit == pytest.approx(float(F.cosine_similarity(one, other, 0)), abs=1e-5)
    assert 'sentence_transformers' in sys.modules
