"""Objects of other libraries, given as they are: each against what it says itself."""

import pytest
import sentence_transformers as library
import torch
import transformers
from close import assert_close
from torch.nn import functional as F

from lrp_loo import explain
from lrp_loo.models.loading import demo_base

PAIR = ('the new phone has a bright screen', 'its display is bright')


NLI = {0: 'contradiction', 1: 'neutral', 2: 'entailment'}


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
    maps = explain(pipe, None, [(PAIR[0], label) for label in labels], 'loo')
    own = pipe(PAIR[0], labels)
    said = torch.tensor([a.logit for a in maps]).softmax(0)
    for label, p in zip(labels, said.tolist()):
        assert_close(own['scores'][own['labels'].index(label)], p)
    assert len({a.logit for a in maps}) == 3
    for a in maps:
        assert a.target == 2 and a.label == 'entailment'
        assert a.scores.abs().max() > 0


@pytest.mark.parametrize('similarity', ['cosine', 'dot'])
@pytest.mark.parametrize('pooling', ['mean', 'cls'])
@pytest.mark.filterwarnings('ignore')
def test_a_sentence_transformer_reads_as_it_does_itself(similarity, pooling):
    read, *_ = library.SentenceTransformer(str(demo_base('minilm')), device='cpu')
    size = read.get_word_embedding_dimension()
    parts = [read, library.models.Pooling(size, pooling_mode=pooling)]
    how = dict(device='cpu', similarity_fn_name=similarity)
    model = library.SentenceTransformer(modules=parts, **how)
    one, other = model.encode(list(PAIR), convert_to_tensor=True)
    if similarity == 'cosine':
        one, other = F.normalize(one, dim=0), F.normalize(other, dim=0)
    for method in ('loo', 'auto'):
        (a,) = explain(model, None, [PAIR], method)
        assert_close(a.logit, float((one * other).sum()))
    model.default_prompt_name = 'query'
    with pytest.raises(ValueError, match="puts its prompt 'query' before"):
        explain(model, None, [PAIR], 'loo')
