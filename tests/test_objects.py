"""Objects of other libraries, given as they are: each against what it says itself."""

from functools import partial

import pytest
import sentence_transformers as library
import torch
import transformers
from close import assert_close
from torch.nn import functional as F

from lrp_loo import audit, calibrate, explain, explain_entities, explain_labels
from lrp_loo import explain_pairs, explain_windows, load_demo, sweep
from lrp_loo.models.loading import demo_base

PAIR = ('the new phone has a bright screen', 'its display is bright')
LONG = 'A slow and boring film, but the last scene is gripping and funny. ' * 60
NAMES = 'UNFORGETTABLE Wolfgangstadt met McGillicuddy near Lake Como-Ortisei, nobodyish'
TAGS = dict(enumerate(['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']))


NLI = {0: 'contradiction', 1: 'neutral', 2: 'entailment'}


def random_weights(model):
    "Return the model with weights large enough that outputs differ."
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.2)
    return model.eval()


def small_bert(task, **options):
    "Return a small BERT for a task."
    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4)
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, **options)
    return random_weights(getattr(transformers, f'BertFor{task}')(config))


def tagger(tokenizer, **settings):
    "Return a pipeline that tags names."
    model = small_bert('TokenClassification', id2label=TAGS)
    kind = transformers.TokenClassificationPipeline
    return kind(model=model, tokenizer=tokenizer, **settings)


def text_pipe(demo, kind=transformers.TextClassificationPipeline, **settings):
    return kind(model=demo[0], tokenizer=demo[1], **settings)


def zero_shot(kind, tokenizer, template=None, **given):
    "Return a pipeline around a small model."
    names = dict(num_labels=3, id2label=NLI, label2id={v: k for k, v in NLI.items()})
    if kind == 'BERT':
        model = small_bert('SequenceClassification', **names)
    else:
        sizes = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64)
        sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4)
        sizes |= dict(encoder_layers=2, decoder_layers=2, decoder_start_token_id=102)
        sizes |= dict(eos_token_id=102, bos_token_id=101, pad_token_id=0)
        config = transformers.BartConfig(**sizes, **names, vocab_size=30522)
        model = random_weights(transformers.BartForSequenceClassification(config))
    given |= {} if template is None else dict(hypothesis_template=template)
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


def test_a_label_s_words_are_those_of_its_sentence(demo):
    pipe = zero_shot('BERT', demo[1], 'Is {} {{here}}?', multi_label=True)
    (a,) = explain(pipe, None, [(PAIR[0], 'the sea')], 'loo', units='word')
    sentence = 'Is the sea {here}?'
    assert a.info['text'] == (PAIR[0], sentence)
    second = [s[1:] for s in a.info['spans'] if s and s[0] == 1]
    assert [sentence[i:j] for i, j in second] == a.tokens[-len(second) - 1 : -1]
    own = pipe(PAIR[0], ['the sea'])['scores'][0]
    assert_close(own, torch.tensor(a.logit).sigmoid().item())
    assert a.target == (2, 0)


@pytest.mark.parametrize(
    'settings',
    [
        {},
        dict(truncation=True, max_length=32),
        dict(truncation=True, padding='max_length', max_length=64, top_k=2),
        dict(truncation=True, function_to_apply='sigmoid'),
        dict(truncation=True, function_to_apply='none'),
        dict(truncation=True, max_length=20, add_special_tokens=False),
    ],
)
def test_a_text_pipeline_is_explained_with_its_settings(settings, demo):
    pipe = text_pipe(demo, **settings)
    for text in [LONG] * bool(settings) + [LONG[:130], PAIR]:
        calls = []
        hook = pipe.model.register_forward_hook(lambda *x, n=calls: n.append(0))
        for model in ((pipe, None), demo):  # what is shown once a model
            explain(*model, [text], 'grad_x_input', truncation=True)
        calls.clear()
        (a,) = explain(pipe, None, [text], 'grad_x_input')
        n_calls = len(calls)
        explain(demo[0], demo[1], [text], 'grad_x_input', truncation=True)
        hook.remove()
        assert len(calls) - n_calls == n_calls - 1  # one more than the model's
        pair = dict(text=PAIR[0], text_pair=PAIR[1])
        own = pipe(pair if text is PAIR else text, top_k=1)
        (own,) = own if isinstance(own, list) else (own,)
        number = a.logit if a.probability is None else a.probability
        assert a.label == own['label'] and len(a) <= settings.get('max_length', 512)
        assert_close(own['score'], number)
    table = audit(pipe, None, [LONG[:130], PAIR], 'attn_lrp', progress=False)
    assert table.n['attn_lrp'] == 2


def test_a_pipeline_of_its_own_answers_is_refused(demo, tmp_path):
    class Prefixed(transformers.TextClassificationPipeline):
        def preprocess(self, inputs, **options):
            return super().preprocess('Never: ' + inputs, **options)

    pipe = text_pipe(demo, Prefixed)
    runs = (explain, audit, calibrate, explain_windows, explain_labels, explain_pairs)
    for run in (*runs, partial(sweep, out=tmp_path)):
        with pytest.raises(ValueError, match="Prefixed's own call computes"):
            run(pipe, None, [LONG[:130], PAIR[0]])
    pipe = text_pipe(demo, truncation=True, max_length=32)
    (a,) = explain_windows(pipe, None, LONG[:400], 'grad_x_input', overlap=8)
    assert a.tokens == demo[1].tokenize(LONG[:400], add_special_tokens=True)


@pytest.mark.parametrize('strategy', ['none', 'simple', 'first', 'max', 'average'])
@pytest.mark.parametrize('is_split', [False, True])
def test_entities_are_the_pipeline_s_own(strategy, is_split, demo):
    pipe = tagger(demo[1], aggregation_strategy=strategy)
    text = NAMES.split() if is_split else NAMES
    (maps,) = explain_entities(pipe, None, [text], 'loo')
    own = pipe(text, is_split_into_words=is_split)
    own = own[0] if is_split else own
    with torch.no_grad():
        enc = demo[1](text, is_split_into_words=is_split, return_tensors='pt')
        logits = pipe.model(**enc).logits[0]
    assert len(own) > 5
    for a, entity in zip(maps, own, strict=True):
        info, position = a.info['entity'], a.info['position']
        assert info['text'] == NAMES[entity['start'] : entity['end']]
        assert info['kind'] == entity.get('entity_group', entity.get('entity'))
        assert info['kind'] in a.label and info['score'] == float(entity['score'])
        assert_close(float(logits[position, a.target]), a.logit)
        if ' ' not in info['text']:  # of one word
            p = logits[slice(*info['tokens'])].softmax(-1)[:, a.target]
            score = dict(max=p.max(), average=p.mean()).get(strategy, p[0])
            if len(p) == 1 or strategy != 'simple':
                assert_close(float(entity['score']), float(score))


def test_a_long_text_of_a_tagger_is_cut_or_refused(demo):
    tokenizer = load_demo('sst2')[1]
    tokenizer.model_max_length = 20
    pipe = tagger(tokenizer, aggregation_strategy='simple')
    (maps,) = explain_entities(pipe, None, NAMES * 3, 'grad_x_input')
    assert len(maps) == len(pipe(NAMES * 3)) and len(maps[0]) == 20
    pipe = tagger(tokenizer, aggregation_strategy='simple', stride=4)
    with pytest.raises(ValueError, match='reads the text in . parts'):
        explain_entities(pipe, None, NAMES * 3)


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
    model.truncate_dim, model.max_seq_length = 16, 12
    for pair in (PAIR, (LONG, PAIR[1])):
        (a,) = explain(model, None, [pair], 'loo')
        own = model.similarity(*model.encode(list(pair), convert_to_tensor=True))
        assert_close(a.logit, float(own))
        assert len(a) <= 24
    model.default_prompt_name = 'query'
    with pytest.raises(ValueError, match="puts its prompt 'query' before"):
        explain(model, None, [PAIR], 'loo')
    dot = dict(similarity_fn_name='dot', truncate_dim=8)
    for options in (dict(similarity_fn_name='manhattan'), dot):
        layers = [*parts, library.models.Normalize()]
        model = library.SentenceTransformer(modules=layers, **how | options)
        with pytest.raises(ValueError, match='manhattan|truncate_dim 8'):
            explain(model, None, [PAIR], 'loo')


@pytest.mark.parametrize('n_dims', [None, 16])
@pytest.mark.filterwarnings('ignore')
def test_one_text_is_explained_by_a_function_of_its_embedding(n_dims):
    model = library.SentenceTransformer(str(demo_base('minilm')), device='cpu')
    model.truncate_dim = n_dims
    (a,) = explain(model, None, PAIR[0], 'loo', lambda x: x['sentence_embedding'][:, 3])
    assert_close(a.logit, float(model.encode(PAIR[0])[3]))
    batch = dict(model.tokenizer(PAIR[0], return_tensors='pt'))
    for i, score in enumerate(a.scores.tolist()):
        mask = torch.ones_like(batch['input_ids']).index_fill(1, torch.tensor(i), 0)
        without = model(batch | dict(attention_mask=mask))['sentence_embedding'][0, 3]
        assert score == pytest.approx(a.logit - without.item(), abs=1e-5)


@pytest.mark.parametrize('n_labels', [1, 3])
@pytest.mark.parametrize('activation', [None, torch.nn.Softmax(-1), torch.nn.Tanh()])
def test_a_cross_encoder_is_explained_by_its_logit(
    n_labels, activation, demo, tmp_path
):
    model = small_bert('SequenceClassification', num_labels=n_labels)
    model.save_pretrained(tmp_path)
    demo[1].save_pretrained(tmp_path)
    how = dict(device='cpu', activation_fn=activation, max_length=12)
    model = library.CrossEncoder(str(tmp_path), **how)
    for pair in (PAIR, (LONG, PAIR[1])):
        (a,) = explain(model, None, [pair], 'loo')
        own = model.predict(pair, convert_to_tensor=True).reshape(-1)[a.target]
        is_probability = (n_labels, activation) == (1, None)
        is_probability |= n_labels == 3 and isinstance(activation, torch.nn.Softmax)
        assert (a.probability is not None) == is_probability
        if is_probability:
            assert_close(float(own), a.probability)
        elif n_labels == 1:
            logit = torch.tensor([a.logit])
            assert_close(float(own), float(model.activation_fn(logit)))
        assert len(a) == 12
    model.default_prompt_name = 'query'
    with pytest.raises(ValueError, match="puts its prompt 'query' before"):
        explain(model, None, [PAIR], 'loo')
