"The messages of advice.toml come, and doing what they say works."

import contextlib
import copy
import pkgutil
import re
import tomllib
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import datasets  # noqa: F401
import pytest
import small_models
import test_vision_language as seen
import torch
import transformers
from bad_world import World, bert, question_answering
from encoder_decoders import encoder_decoder

import lrp_loo
from lrp_loo.core.tensors import pad_batch
from lrp_loo.loo.removals import Removal
from lrp_loo.models.loading import demo_base
from lrp_loo.models.encoding import encode
from lrp_loo.records.results import Results
from lrp_loo.evaluate.sweep import sweep

HERE = Path(__file__).parent
ROWS = tomllib.loads((HERE / 'advice.toml').read_text(encoding='utf-8'))

T = 'a fine film'
LONG = 'word ' * 100


class Around(torch.nn.Module):
    "A module around a model."

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.eval()

    def logits(self, input_ids, attention_mask):
        return self.model(input_ids, attention_mask).logits


def around(forward, **more):
    "A class of those, with this forward."
    return type('Around', (Around,), dict(forward=forward, **more))


def named(answer):
    "A forward that takes what models take."

    def forward(self, input_ids, attention_mask):
        return answer(self, input_ids, attention_mask)

    return forward


def row_more(self, ids, mask):
    "A row in front that is no token's."
    x = self.model(ids, mask).last_hidden_state
    return torch.cat([x[:, :1], x], 1)


def detached(self, ids, mask):
    "A gradient ends before the head."
    x = self.model.bert(ids, mask).last_hidden_state
    return self.model.classifier(torch.nn.functional.gelu(x[:, 0].detach()))


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise AssertionError('no way back here')


class AsImageModel(Around):
    def get_input_embeddings(self):
        return self.model.patches

    def forward(self, pixel_values):
        return self.model(pixel_values)


Scored = around(named(lambda self, *x: dict(scores=self.logits(*x))))
AsTuple = around(named(lambda self, *x: (self.logits(*x),)))
AsObject = around(named(lambda self, *x: SimpleNamespace(scores=self.logits(*x))))
Renamed = around(lambda self, tokens, mask: self.logits(tokens, mask))
Named = around(named(lambda self, *x: self.model(*x)))
RowMore, Detached = around(named(row_more)), around(named(detached))
NoWayBack = around(named(lambda self, *x: Refuses.apply(self.logits(*x))))
NoTable = around(
    Named.forward, get_input_embeddings=lambda self: self.model.bert.embeddings
)


class Attending(torch.nn.Module):
    "One attention of one's own."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(30522, 8)
        self.out = torch.nn.Linear(8, 2)
        self.eval()

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)[:, None]
        hidden = (attention_mask == 0)[:, None, None, :]
        z = (x @ x.mT).masked_fill(hidden, -torch.inf)
        return self.out((z.softmax(-1) @ x)[:, 0, 0])


class Seer(torch.nn.Module):
    "As image models outside of transformers are: a tensor in, a tensor out."

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(3, 8, 4, 4)
        self.out = torch.nn.Linear(8, 3)
        self.eval()

    def forward(self, x):
        x = self.patches(x).flatten(2).mT[:, None]
        o = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return self.out((x + o).mean((1, 2)))


class Mute(Removal):
    name = 'mute'


class Own(Removal):
    name = 'own'

    def inputs(self, model, enc, keep):
        rows = {k: v.expand(len(keep), -1) for k, v in enc.items()}
        return rows | dict(attention_mask=keep.long())


SMALL = dict(vocab_size=30522, hidden_size=16, num_hidden_layers=2)
SMALL |= dict(num_attention_heads=2, intermediate_size=32)
CHAT = '{% for m in messages %}{{ m.content }} {% endfor %}'
TAGS = {0: 'O', 1: 'B-LOC'}
FLEXED = dict(SMALL, attn_implementation='flex_attention')


def random(kind, config, **options):
    "A model of transformers with random weights."
    torch.manual_seed(0)
    config = getattr(transformers, f'{config}Config')(**options)
    return getattr(transformers, kind)._from_config(config).eval()


def gpt2(pad=None):
    sizes = dict(n_embd=16, n_layer=2, n_head=2, n_positions=64, vocab_size=30522)
    tokens = dict(bos_token_id=101, eos_token_id=102, pad_token_id=pad)
    return random('GPT2ForSequenceClassification', 'GPT2', **sizes, **tokens)


def changed(model, step):
    step(model)
    return model


def made_in_inference_mode():
    with torch.inference_mode():
        return bert()


def loaded(meta):
    model = type(meta)(meta.config).eval()
    return changed(model, lambda m: m.load_state_dict(bert().state_dict()))


def of_llava(*without):
    "A model, its tokenizer, what a processor makes of an image in a text."
    model, enc = seen.IN_TEXT['llava']()
    enc = {k: v for k, v in enc.items() if k not in without}
    return model.eval(), seen.tokenizer_of(), enc


def zero_shot(entailment='entailment'):
    "A pipeline that asks whether a text entails a sentence with a label in it."
    names = {0: 'contradiction', 1: 'neutral', 2: entailment}
    of = dict(id2label=names, label2id={v: k for k, v in names.items()}, num_labels=3)
    model = random('BertForSequenceClassification', 'Bert', **SMALL, **of)
    tokenizer = lrp_loo.load_demo('sst2')[1]
    return transformers.ZeroShotClassificationPipeline(model=model, tokenizer=tokenizer)


def whisper():
    "A small decoder of sounds."
    return encoder_decoder('WhisperForConditionalGeneration')


def started(model):
    "It says by which token its decoder starts."
    model.config.decoder_start_token_id = 0
    return model


SIZES = dict(vocab_size=30522, hidden_size=32, intermediate_size=64)
SIZES |= dict(num_hidden_layers=2, num_attention_heads=4)


def hybrid():
    "Attention in one layer, a state space in the other."
    more = dict(attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=4)
    return random(
        'JambaForCausalLM',
        'Jamba',
        **SIZES,
        num_key_value_heads=2,
        num_experts=1,
        **more,
    )


def convolved():
    "A convolution beside attention."
    return random(
        'ConvBertForSequenceClassification', 'ConvBert', **SIZES, embedding_size=32
    )


def entered(*contexts):
    with contextlib.ExitStack() as stack:
        for c in contexts:
            stack.enter_context(c)


def taken(pattern, call):
    "The number that a message names."
    with pytest.raises(ValueError) as e:
        call()
    return float(re.search(pattern, str(e.value))[1]) + 0.01


def kept_rows(run):
    kept = Results(None, {})
    run(kept)
    return kept.rows


def of_removal(model, tokenizer, method='removal', **options):
    "A calibration of a few texts."
    few = [T, 'it drags', 'two dull hours']
    options |= dict(progress=False)
    return lrp_loo.calibrate(model, tokenizer, few, method, **options)


FEW = [T, 'no jokes']


def words(model, tokenizer, method='attn_lrp', texts=FEW, target=1, **more):
    how = dict(target=target, min_count=1, progress=False)
    return lrp_loo.summarize_texts(model, tokenizer, texts, method, **how, **more)


def sweep_of(text, folder, model, tokenizer, name=None):
    how = dict(name=name, progress=False)
    sweep(model, tokenizer, [text], folder, 'cp_lrp', **how)
    return folder


def of_sentences(kind):
    folder = str(demo_base('minilm'))
    return getattr(pytest.importorskip('sentence_transformers'), kind)(folder)


def library_names():
    "Return {name: object} of everything public in the library's modules."
    names = {}
    for module in pkgutil.walk_packages(lrp_loo.__path__, 'lrp_loo.'):
        if '.cli' not in module.name and '.paper' not in module.name:
            found = import_module(module.name)
            names |= {n: getattr(found, n) for n in getattr(found, '__all__', ())}
    return names


NAMES = library_names() | {k: v for k, v in globals().items() if k[:2] != '__'}
NAMES |= dict(
    hidden_end=lambda enc: enc | dict(attention_mask=torch.tensor([[1, 1, 1, 0, 1]])),
    hidden_middle=lambda enc: (
        enc | dict(attention_mask=torch.tensor([[1, 1, 0, 1, 1]]))
    ),
    copied=copy.deepcopy,
    multiple_choice=lambda: random('BertForMultipleChoice', 'Bert', **SMALL),
    tagger=lambda **k: random('BertForTokenClassification', 'Bert', **SMALL | k),
    chatting=lambda tok: changed(
        copy.deepcopy(tok), lambda tok: setattr(tok, 'chat_template', CHAT)
    ),
    flexed=lambda: random('BertForSequenceClassification', 'Bert', **FLEXED),
    with_attention=lambda m, x: changed(m, lambda m: m.set_attn_implementation(x)),
    build=small_models.build,
    sentences=lambda: of_sentences('SentenceTransformer'),
    pipe=lambda task, m, tok: transformers.pipeline(task, model=m, tokenizer=tok),
    fill_mask=lambda **settings: transformers.FillMaskPipeline(
        random('BertForMaskedLM', 'Bert', **SMALL),
        lrp_loo.load_demo('sst2')[1],
        **settings,
    ),
    both=lambda m, tok: pad_batch(tok, [encode(m, tok, t) for t in (T, 'no')]),
    maps=lambda *of, **options: lrp_loo.explain(*of[:2], FEW, *of[2:], **options),
)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp('advice'))
    ids = torch.tensor([[101, 1037, 2986, 2143, 102]])
    made |= dict(
        ids=ids,
        mask=torch.ones_like(ids),
        digit=torch.rand(1, 28, 28),
        image=torch.rand(3, 8, 8),
        seer=Seer(),
        attending=Attending(),
        compiled=torch.compile(bert()),
    )
    made['qa'] = question_answering()
    return made


def evaluated(code, world):
    "A call, or several with commas in between, or one for each of some."
    names = world.names_in(re.findall(r'\w+', code))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return eval(f'[{code}]', NAMES | names)


CASES = [
    pytest.param(message, marks=[pytest.mark.slow] if 'slow' in row else [])
    for message, row in ROWS.items()
]


@pytest.mark.parametrize('message', CASES)
def test_the_message_comes_and_its_advice_works(world, message):
    row = ROWS[message]
    with pytest.raises(Exception) as e:
        evaluated(row['wrong'], world)
    pattern = re.escape(message).replace(re.escape('{}'), '.*')
    assert re.search(pattern, str(e.value), re.S)
    assert len(str(e.value).strip().splitlines()) == 1
    words = row.get('takes', '')  # of the message, and of the call that follows it
    assert words in str(e.value) and words in row['follow'][0]
    for code in row['follow']:
        evaluated(code, world)
