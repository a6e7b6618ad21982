"""The runners' JSON, without the peers themselves."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lrp_lab.contexts import Limits

BENCHMARKS = Path(__file__).resolve().parent.parent / 'benchmarks'
FEW = Limits((30, 180), sentences=(6, 8), words=(30, 50), effect=0)
ITEM = dict(
    prompt='a b', continuation=' c d', prompt_ids=[5, 6], continuation_ids=[7, 8]
)
CONTEXT = dict(
    before='',
    context='One. Two.',
    after='?',
    sentences=[[0, 4], [5, 9]],
    answer=' So.',
    prompt_ids=[1, 2, 3],
    continuation_ids=[4],
)


@pytest.fixture
def protocol(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peer_protocol

    yield peer_protocol
    del sys.modules['peer_protocol']


@pytest.fixture
def driver(protocol):
    import peers

    yield peers
    del sys.modules['peers']


def small():
    torch.manual_seed(0)
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    heads = dict(num_attention_heads=2, num_key_value_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=12, **sizes, **heads)).eval()


def scored(model, tokenizer, item, factor=1.0):
    "A method: one forward and one backward pass."
    ids = torch.tensor([item['prompt_ids'] + item['continuation_ids']])
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=x).logits[0, -1, 0].backward()
    return [[factor, float('nan')], torch.tensor([1.0, 2.0, 3.0])], True


def question(**changed):
    asked = dict(model='m', task='generation', method='one', items=[ITEM])
    return json.dumps(asked | changed)


def runner(protocol):
    made = protocol.Runner(['numpy'], {('generation', 'one'): (scored, 'logit')})
    made.loaded = 'm', (small(), None)
    return made


def test_answer(protocol):
    lines = [question(options=dict(factor=2.5)), '\n', question()]
    out = io.StringIO()
    runner(protocol).run(lines, out)
    first, second = map(json.loads, out.getvalue().splitlines())
    (item,) = first['items']
    assert item['scores'] == [[2.5, None], [1, 2, 3]]
    assert second['items'][0]['scores'][0] == [1, None]
    assert (item['forward'], item['backward'], item['tokens']) == (1, 1, 4)
    assert item['same_tokens'] is True and item['seconds'] > 0
    assert first['explains'] == 'logit' and first['peak_mib'] > 0
    assert set(first['versions']) == {'torch', 'transformers', 'numpy'}


def test_log_probs_are_the_models(protocol):
    model = small()
    with torch.no_grad():
        rows = model(torch.tensor([[5, 6, 7, 8]])).logits[0].log_softmax(-1)
    found = protocol.log_probs(model, ITEM)
    assert found == pytest.approx([rows[1, 7].item(), rows[2, 8].item()])


def test_passes_leave_nothing_behind(protocol):
    model = small()
    before = (model.forward, torch.autograd.grad, torch.autograd.backward)
    with pytest.raises(RuntimeError, match='stop'):
        with protocol.Passes(model):
            raise RuntimeError('stop')
    after = (model.forward, torch.autograd.grad, torch.autograd.backward)
    assert before == after and 'forward' not in vars(model)


@pytest.mark.parametrize(
    'changed, said',
    [
        (dict(task='other'), "task='other' is not known"),
        (dict(method='two'), "no method 'two' for 'generation'"),
        (dict(items=[{}]), 'item 0 lacks'),
        (dict(task='context', items=[ITEM]), 'item 0 lacks'),
        (dict(options=dict(colour=1)), 'colour'),
    ],
)
def test_an_error_is_an_answer(protocol, changed, said):
    asked = runner(protocol)
    answer = asked.answer(question(**changed))
    assert set(answer) == {'error'} and said in answer['error']


def test_a_question_lacks_a_key(protocol):
    with pytest.raises(ValueError, match="lacks .*'items'"):
        protocol.read_question('{"model": "m", "task": "generation"}')


def test_texts_of_both_tasks(protocol):
    assert protocol.prompt_of(ITEM) == 'a b'
    assert protocol.prompt_of(CONTEXT) == 'One. Two.?'
    assert protocol.continuation_of(ITEM) == ' c d'
    assert protocol.continuation_of(CONTEXT) == ' So.'


def test_tokens_summed_over_sentences(protocol):
    "A token's space in front belongs to no sentence."

    def tokenizer(text, return_offsets_mapping):
        assert text == 'One. Two.?'
        return dict(offset_mapping=[(0, 3), (3, 4), (4, 8), (8, 9), (9, 10)])

    scores = torch.tensor([[1.0, 2, 3, 4, 5, 9], [10, 20, 30, 40, 50, 9]])
    sums = protocol.sums_over_sentences(tokenizer, CONTEXT, scores)
    assert sums == [33, 77]


def test_rows_before_each_token(protocol):
    rows = protocol.before_each([[1, 2, 3, 4], [5, 6, 7, 8]], ITEM)
    assert rows == [[1, 2], [5, 6, 7]]


def test_correlation_over_what_is_there(driver):
    assert driver.correlation([1, 2, None], [2, 4, 0, 9]) == pytest.approx(1)
    assert driver.correlation([1, None], [2, 4]) is None
    assert driver.correlation([1, 1, 1], [2, 4, 5]) is None
    assert driver.mean([1, None, 3]) == 2
    assert driver.mean([None]) is None


def test_a_peer_without_an_environment(driver, monkeypatch, capsys):
    variable, _ = driver.PEERS['Captum']
    monkeypatch.delenv(variable, raising=False)
    assert driver.python_of('Captum') is None
    assert f'{variable} names no environment' in capsys.readouterr().err


def test_a_runner_that_does_not_start(driver):
    asked = dict(model='m', task='generation', method='one')
    how = [asked, [ITEM], ITEM, small()]
    answer = driver.measure(sys.executable, 'no_such_runner.py', *how)
    assert answer['error'].startswith('the runner')


FAKE = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    item = dict(scores=[[1, 2], [1, 2, None]], seconds=2.0, forward=1)
    item |= dict(backward=3, tokens=8, same_tokens=False)
    item |= dict(log_probs=asked['options'])
    print(json.dumps(dict(items=[item], peak_mib=1.0, versions={},
                          explains='logit')), flush=True)
"""


@pytest.mark.parametrize('off, error', [(0.0, None), (0.5, 'another model')])
def test_measure(driver, tmp_path, off, error):
    "A runner in a process of its own; the log-probabilities tell the model."
    runner = tmp_path / 'runner.py'
    runner.write_text(FAKE)
    item = ITEM | dict(log_probs=[-1.0, -2.0])
    asked = dict(options=[-1.0, -2.0 + off])
    how = [asked, [item, item], ITEM, small()]
    answer = driver.measure(sys.executable, runner, *how)
    if error:
        assert error in answer['error']
        return
    row = driver.cost(answer)
    assert (row['seconds'], row['forward'], row['backward']) == (2, 1, 3)
    assert row['n_items'] == 2 and row['in_passes'] > 0
    assert row['same_tokens'] == 0
    said = dict(by='A', method='b', explains='logit', r_mask=0.5)
    assert '2 read as OTHER TOKENS' in driver.in_a_line(said | row)


def test_our_answer(driver):
    model = small()
    answer = driver.our_answer(model, [ITEM], lambda item: scored(model, None, item)[0])
    (item,) = answer['items']
    assert (item['forward'], item['backward'], item['tokens']) == (1, 1, 4)
    assert item['in_passes'] > 0


def test_a_row_replaces_its_own(driver, capsys):
    "And stands where the order says."
    from lrp_loo.trust.results import Results

    results = Results(None, {})
    order = [('A', 'b', {}), ('A', 'c', {}), ('A', 'c', dict(n=8))]
    row = dict(by='A', error='no')
    for method, more in (('c', dict(options=dict(n=8))), ('b', {}), ('c', {})):
        driver.keep(results, row | dict(method=method) | more, order)
    driver.keep(results, row | dict(method='b', error='why'), order)
    assert {r['i']: r['error'] for r in results.rows} == {0: 'why', 1: 'no', 2: 'no'}
    assert 'A b: why' in capsys.readouterr().out


# ---- ours, asked as the peers are


def context_item():
    "A context of the decoder that ships with the package."
    from lrp_loo import load_demo
    from lrp_loo.asked.units import text_spans
    from lrp_loo.tasks.context import continuation_ids, prompt_ids

    _, tokenizer = load_demo('reviews')
    text = 'The plot is thin. The jokes are old. But the ending moved me.'
    before, after, answer = 'So they say: ', ' In short, it was', ' a good film'
    prompt = before + text + after
    return dict(
        before=before,
        context=text,
        after=after,
        question='',
        sentences=[list(span) for span in text_spans(text, 'sentence')],
        answer=answer,
        prompt_ids=prompt_ids(tokenizer, prompt),
        continuation_ids=continuation_ids(tokenizer, prompt, answer),
    )


@pytest.fixture
def study(driver):
    import contexts_study

    yield contexts_study
    for name in ('contexts_study', 'peer_ours'):
        sys.modules.pop(name, None)


def test_ours_in_a_process_of_its_own_gives_the_same_scores(study):
    import peer_ours
    from peer_protocol import Runner

    from lrp_loo import attribute_context, load_demo

    model, tokenizer = load_demo('reviews')
    item = context_item()
    runner = Runner(['torch'], peer_ours.METHODS, peer_ours.Uncounted)
    runner.loaded = 'reviews', (model, tokenizer)
    for method in ('loo', 'removal+rows'):
        question = dict(model='reviews', task='context', method=method)
        answer = runner.answer(json.dumps(question | dict(items=[item])))
        (found,) = answer['items']
        assert found['same_tokens']
        assert answer['explains'] == 'log-prob'
        a = attribute_context(
            model,
            tokenizer,
            item['context'],
            item['answer'],
            method=method,
            template=f"{item['before']}{{context}}{item['after']}",
        )
        assert found['scores'] == a.scores.tolist()


def test_ours_explains_each_generated_token_as_the_peers_do(study):
    import peer_ours
    from peer_protocol import Runner

    from lrp_loo import explain_generation, load_demo

    model, tokenizer = load_demo('reviews')
    said = dict(prompt='The plot is', continuation=' thin and slow')
    ids = tokenizer(said['prompt'] + said['continuation'])['input_ids']
    n = len(tokenizer(said['prompt'])['input_ids'])
    item = said | dict(prompt_ids=ids[:n], continuation_ids=ids[n:])
    runner = Runner(['torch'], peer_ours.METHODS, peer_ours.Uncounted)
    runner.loaded = 'reviews', (model, tokenizer)
    for method, options in (('loo', {}), ('removal+rows', dict(n_rows=2, rest=False))):
        question = dict(model='reviews', task='generation', method=method)
        question |= dict(options=options, items=[item])
        (found,) = runner.answer(json.dumps(question))['items']
        steps = explain_generation(model, tokenizer, *said.values(), method, **options)
        assert found['same_tokens']
        assert found['scores'] == [a.scores.tolist() for a in steps]
        # nothing is counted: a counting forward would take the long ways
        assert found['forward'] is None


def test_ours_runs_in_this_environment(driver, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', 'somewhere')
    assert driver.python_of(driver.OURS) == sys.executable
    assert driver.runner_of(driver.OURS) == 'peer_ours.py'
    seen = {}

    def popen(words, env, **options):
        seen[words[0]] = env.get('PYTHONPATH')
        raise FileNotFoundError

    monkeypatch.setattr(driver.subprocess, 'Popen', popen)
    for python in (sys.executable, 'peer/bin/python'):
        with pytest.raises(FileNotFoundError):
            driver.Peer(python, 'runner.py').__enter__()
    assert seen == {sys.executable: 'somewhere', 'peer/bin/python': None}


def test_what_was_not_counted_is_not_said(driver):
    item = dict(seconds=1.0, in_passes=2.0, same_tokens=True)
    item |= dict.fromkeys(('forward', 'backward', 'tokens'))
    row = driver.cost(dict(items=[item]))
    assert row['forward'] is None
    said = driver.in_a_line(dict(by='A', method='b', explains='x') | row)
    assert 'forward' not in said and said.endswith("2 passes' time")


def test_a_context_is_asked_again_as_the_study_asked(study, monkeypatch):
    from lrp_loo import load_demo

    model, tokenizer = load_demo('reviews')
    made = study.contexts_within(
        tokenizer, study.KINDS_OF_CONTEXTS['contexts-planted'](None, 3, FEW)[0], FEW, 1
    )
    ((_, context),), _ = made
    monkeypatch.setattr(study, 'greedy_answer', lambda *asked: 'a good film')
    item = study.item_of(model, tokenizer, context, 'a good film')
    n_tokens = len(item['prompt_ids'] + item['continuation_ids'])
    row = dict(i=0, n_tokens=n_tokens, log_prob=sum(item['log_probs']))
    assert study.asked_again(model, tokenizer, context, row) == item
    for change in (dict(n_tokens=n_tokens + 1), dict(log_prob=-99.0)):
        with pytest.raises(ValueError, match='another one than the study'):
            study.asked_again(model, tokenizer, context, row | change)


def test_limits_are_read_as_they_were(study):
    kept = json.loads(json.dumps(dict(config=dict(limits=FEW._asdict()))))
    assert study.limits_of(kept) == FEW
