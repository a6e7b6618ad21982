"""Objects of other libraries, given as they are: each against what it says itself."""

import sys

import pytest
from close import assert_close
import torch
import transformers
from torch.nn import functional as F

from lrp_loo import explain
from lrp_loo.models.loading import demo_base

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
        assert_close(own['scores'][own['labels'].index(label)], p)
    assert len({a.logit for a in maps}) == 3
    for a in maps:
        assert a.target == 2 and a.label == 'entailment'
        assert a.scores.abs().max() > 0


# --- sentence-transformers


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
    assert_close(a.logit, float((one * other).sum()))


def test_the_real_library_s_object_reads_as_it_does_itself(demo):
    library = pytest.importorskip('sentence_transformers')
    model = library.SentenceTransformer(str(demo_base('minilm')), device='cpu')
    pair = (TEXT, 'its display is bright')
    one, other = model.encode(list(pair), convert_to_tensor=True)
    (a,) = explain(model, None, [pair], 'auto')
    assert_close(a.logit, float(F.cosine_similarity(one, other, 0)))
    assert 'sentence_transformers' in sys.modules
