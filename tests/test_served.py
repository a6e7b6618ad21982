"""LOO through a server: exact against the model at hand, what its prefix cache saves, what
it may not say.
"""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from lrp_loo import attribute_context, load_demo
from lrp_loo.asked.units import Units
from lrp_loo.tasks.context import context_units
from lrp_loo.tasks.served import Served, message_units, serve_loo, serve_top

FILMS = 'story acting music ending cast plot script camera title poster'.split()
CONTEXT = ' '.join(
    f'The {film} is number {i}. It rained.' for i, film in enumerate(FILMS)
)
ANSWER = 'a waste of time'
HOW = dict(template='{context} {question} ')
CHAT = (
    '{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}'
    '{% if add_generation_prompt %}<assistant>{% endif %}'
)


class Model:
    "A small random model that keeps the keys and values of its last requests."

    def __init__(self, tokenizer):
        torch.manual_seed(0)
        config = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
        heads = dict(num_attention_heads=2, max_position_embeddings=4096)
        config = LlamaConfig(vocab_size=len(tokenizer), **config, **heads)
        self.llama = LlamaForCausalLM(config).eval()
        self.lock = threading.Lock()
        self.start(1)

    def start(self, keeps):
        "keeps: how many requests it remembers."
        self.keeps, self.kept, self.computed, self.changed = keeps, [], 0, {}

    @torch.no_grad()
    def rows(self, ids, n_read):
        "The last rows of logits, as log-probabilities."
        with self.lock:
            same = [self.shared(ids, known) for known, _ in self.kept]
            n = min(max(same, default=0), len(ids) - n_read)
            cache = DynamicCache(config=self.llama.config)
            if n:
                self.kept.append(self.kept.pop(same.index(max(same))))
                for i, layer in enumerate(self.kept[-1][1].layers):
                    cache.update(layer.keys[:, :, :n], layer.values[:, :, :n], i)
            new = torch.tensor([ids[n:]])
            out = self.llama(input_ids=new, past_key_values=cache, use_cache=True)
            self.computed += len(ids) - n
            self.kept = [*self.kept, (ids, cache)][-self.keeps :]
            return out.logits[0, -n_read:].log_softmax(-1)

    @staticmethod
    def shared(ids, known):
        pairs = enumerate(zip(ids, known))
        return next((i for i, (a, b) in pairs if a != b), min(len(ids), len(known)))

    def answer(self, asked):
        ids = asked['prompt']
        if asked.get('echo'):
            rows = self.rows(ids, self.n_read + 1)
            before = rows[:-1].gather(1, torch.tensor(ids[1 - len(rows) :])[:, None])
            every = [None] * (len(ids) - len(before)) + before[:, 0].tolist()
            out = dict(token_logprobs=[*every, float(rows[-1].max())])
        else:
            (token,) = asked['allowed_token_ids']
            value = float(self.rows(ids, 1)[0, token])
            out = dict(tokens=[f'token_id:{token}'], token_logprobs=[value])
        usage = dict(prompt_tokens=len(ids))
        return dict(choices=[dict(logprobs=out)], usage=usage)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        model = self.server.model
        code, out = 200, model.answer(asked)
        if change := model.changed.get('answer'):
            code, out = change(out)
        said = out if isinstance(out, bytes) else json.dumps(out).encode()
        self.send_response(code)
        self.send_header('Content-Length', str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args):
        pass


@pytest.fixture(scope='module')
def tokenizer():
    _, tokenizer = load_demo('reviews')
    tokenizer.model_max_length = 4096
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture(scope='module')
def server(tokenizer):
    "What is asked, and where."
    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.model = Model(tokenizer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.model, f'http://127.0.0.1:{server.server_address[1]}/v1'
    server.shutdown()
    server.server_close()


def same(found, wanted):
    assert found.tokens == wanted.tokens
    assert found.logit == pytest.approx(wanted.logit, abs=1e-4)
    assert torch.allclose(found.scores, wanted.scores, atol=1e-4)


@pytest.mark.parametrize('how', ['echo', 'forced'])
@pytest.mark.parametrize('at_once', [1, 4])
def test_a_served_model_is_explained_as_the_model_itself(
    server, tokenizer, how, at_once
):
    model, address = server
    asked = context_units(tokenizer, CONTEXT, ANSWER, 'The film is', **HOW)
    model.start(keeps=1)
    model.n_read = len(asked[1])
    a = serve_loo(Served(address, how=how, at_once=at_once), *asked)
    given = (model.llama, tokenizer, CONTEXT, ANSWER, 'The film is')
    loo = attribute_context(*given, method='loo', removal='delete', **HOW)
    same(a, loo)
    assert a.exact and a.scores.abs().max() > 1e-3
    n = len(asked[0]) + len(asked[1])
    if at_once == 1:
        # `forced` never computes the last token's own row
        computed = model.computed + (how == 'forced') * (1 + len(a))
        assert computed / n == pytest.approx(a.passes, abs=0.01)
        assert a.passes < 0.65 * (1 + len(a))


@pytest.mark.parametrize('step, least', [(-1, 1.05), (7, 1.1)])
def test_the_last_gap_goes_first(server, tokenizer, step, least):
    "Of a server that keeps one request's prefix other orders read less."
    model, address = server
    asked = context_units(tokenizer, CONTEXT, ANSWER, 'The film is', **HOW)
    model.n_read = len(asked[1])
    served = Served(address, at_once=1)

    def in_another_order(texts, n_read):
        whole, *others = texts
        order = sorted(range(len(others)), key=lambda i: i * step % len(others))
        found = served([whole, *(others[i] for i in order)], n_read)
        again = dict(zip(order, found[1:]))
        return [found[0], *(again[i] for i in range(len(others)))]

    spent, maps = [], []
    for scorer in (served, in_another_order):
        model.start(keeps=1)
        maps.append(serve_loo(scorer, *asked))
        spent.append(model.computed)
    same(*maps)
    assert spent[1] > least * spent[0]


def test_messages_of_a_long_trace(server, tokenizer):
    model, address = server
    said = [f'The {film} is bad. ' * 30 for film in FILMS]
    roles = ('user', 'assistant')
    trace = [dict(role=roles[i % 2], content=s) for i, s in enumerate(said)]
    ids, answer, units = message_units(tokenizer, trace, ' bad')
    assert len(ids) > 1000 and len(units) == len(FILMS)
    text = tokenizer.decode([t for t, u in zip(ids, units.number) if u == 3])
    assert 'ending' in text and '<assistant>' in text.replace(' ', '')
    assert (units.number[-3:] == -1).any()  # what asks for the answer
    model.start(keeps=2)
    model.n_read = len(answer)
    a = serve_loo(Served(address, at_once=2), ids, answer, units)
    for j in (0, 7):
        left = [t for t, u in zip(ids, units.number.tolist()) if u != j]
        with torch.no_grad():
            rows = model.llama(input_ids=torch.tensor([left + answer])).logits[0]
        row = rows[-len(answer) - 1 : -1].log_softmax(-1)
        value = float(row[range(len(answer)), answer].sum())
        assert float(a.scores[j]) == pytest.approx(a.logit - value, abs=1e-4)
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ValueError, match='no chat template'):
        message_units(bare, trace, 'bad')
    bare.chat_template = '{{ messages | length }}'
    with pytest.raises(ValueError, match='where others follow'):
        message_units(bare, trace, 'bad')
    with pytest.raises(TypeError, match='messages must be a list'):
        message_units(tokenizer, ['bad'], 'bad')


def planted(ids, units, which):
    "A scorer to which some units matter much, the others hardly."
    number = dict(zip(ids, units.number.tolist()))
    weight = dict.fromkeys(which, 3.0)

    def score(texts, n_read):
        found = []
        for text in texts:
            there = {number[t] for t in text[:-n_read]} - {-1}
            found.append([sum(weight.get(u, u / 1000) for u in there) - 9] * n_read)
        return found

    return score


def of_numbers(n):
    "A prompt of n units of two tokens, none of which is anywhere else."
    units = Units(torch.arange(2 * n) // 2, [*map(str, range(n))], torch.zeros(n))
    return list(range(100, 100 + 2 * n)), [7], units


def test_the_search_asks_where_something_is():
    "Twelve groups of four: those that matter are looked into."
    known = []
    for turn in range(9):
        ids, answer, units = of_numbers(48)
        scorer = planted(ids, units, [turn, 47 - turn])
        known.append([serve_loo(scorer, ids, answer, units, g) for g in (4, 1)])
    scorer = planted(ids, units, [17, 30])
    loo = serve_loo(scorer, ids, answer, units)
    top = serve_top(scorer, ids, answer, units, 2, known)
    assert top.settled and sorted(top.which) == [17, 30]
    assert loo.scores[[17, 30]].tolist() == [3.0, 3.0]
    assert len(top.exact) < 12
    assert top.attribution.passes < 0.6 * loo.passes
    assert top.attribution.info['exact_passes'] == loo.passes
    few = serve_top(scorer, ids, answer, units, 2, known, most=1)
    assert (len(few.exact), few.settled) == (1, False)
    with pytest.raises(ValueError, match='take 1 to 47'):
        serve_top(scorer, ids, answer, units, 48, known)


def with_logprobs(**changed):
    def change(out):
        out['choices'][0]['logprobs'] |= changed
        return 200, out

    return change


ANSWERS = [
    ('echo', lambda out: (400, dict(error='no such model')), 'refused .400.*no such'),
    ('echo', lambda out: (200, b'<html>'), 'no JSON'),
    ('echo', lambda out: (200, dict(choices=[])), 'gave no log-prob'),
    (
        'echo',
        lambda out: (200, dict(choices=[dict(logprobs=None)])),
        'gave no log-prob',
    ),
    ('echo', lambda out: (200, out | dict(usage=dict(prompt_tokens=3))), 'and read 3'),
    ('echo', with_logprobs(token_logprobs=[-1.0]), 'gave 1 log-prob'),
    ('forced', with_logprobs(tokens=['token_id:1']), "take how='echo'"),
    ('forced', with_logprobs(token_logprobs=[0.0]), 'was certain'),
    ('forced', with_logprobs(token_logprobs=[float('nan')]), 'gave nan'),
    ('forced', with_logprobs(token_logprobs=[]), 'and gave'),
]


@pytest.mark.parametrize('how, change, said', ANSWERS)
def test_what_a_server_may_not_say(server, tokenizer, how, change, said):
    model, address = server
    asked = context_units(tokenizer, 'It is dull. It ends.', 'bad', **HOW)
    model.start(keeps=1)
    model.n_read = len(asked[1])
    model.changed['answer'] = change
    with pytest.raises(ValueError, match=said):
        serve_loo(Served(address, how=how), *asked)


def test_nobody_at_the_address(tokenizer):
    asked = context_units(tokenizer, 'It is dull. It ends.', 'bad', **HOW)
    with pytest.raises(ValueError, match='does not answer'):
        serve_loo(Served('http://127.0.0.1:9/v1'), *asked)
    ids, answer, units = asked
    alone = [t for t, u in zip(ids, units.number.tolist()) if u == 0]
    units.number = torch.zeros(len(alone), dtype=torch.long)
    units.names = units.names[:1]
    with pytest.raises(ValueError, match='nothing stands before'):
        serve_loo(Served('http://127.0.0.1:9/v1'), alone, answer, units)
