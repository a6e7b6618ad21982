"""Anything that answers texts with numbers: exact LOO of a function against loops by hand,
the texts that it was asked counted.
"""

import math
import re
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import URLError

import nbformat
import numpy as np
import pytest
import torch

from lrp_loo import attribute_context, audit, explain, explain_pairs, load, load_demo
from lrp_loo.records.results import Results
from lrp_loo.methods.functions import plain_text

PAGE = Path(__file__).parent.parent / 'nbs' / 'guide' / 'functions.ipynb'
TEXTS = [
    'A dull (but short) story, saved by two.',
    'Fine, fine film',
    'Fine, fine film',
]
QUIET = dict(progress=False)


class Counted:
    "A function of texts that keeps what it was asked."

    def __init__(self, f):
        self.f, self.requests = f, []

    def __call__(self, texts):
        self.requests.append(list(texts))
        return np.array([self.f(text) for text in texts])

    @property
    def asked(self):
        return [text for request in self.requests for text in request]


@pytest.fixture(scope='module')
def demo_reviews():
    return load_demo('reviews')


def odd(text):
    "Numbers with all their bits, of two classes."
    return [math.sin(len(text)) / 3, math.log(2 + sum(map(ord, text))) / 7]


def one(text):
    return odd(text)[1]


# each unit of TEXTS[0], and the text without it as a writer would have it
WITHOUT = {
    'A': 'dull (but short) story, saved by two.',
    'dull': 'A (but short) story, saved by two.',
    '(': 'A dullbut short) story, saved by two.',
    'but': 'A dull (short) story, saved by two.',
    'short': 'A dull (but) story, saved by two.',
    ')': 'A dull (but short story, saved by two.',
    'story': 'A dull (but short), saved by two.',
    ',': 'A dull (but short) story saved by two.',
    'saved': 'A dull (but short) story, by two.',
    'by': 'A dull (but short) story, saved two.',
    'two': 'A dull (but short) story, saved by.',
    '.': 'A dull (but short) story, saved by two',
}


def test_a_deleted_word_takes_its_space_along():
    text = plain_text(TEXTS[0], 'word')
    removed = {name: text.without([k]) for k, name in enumerate(text.names)}
    assert removed == WITHOUT


@pytest.mark.parametrize(
    ('text', 'units', 'removed', 'rest'),
    [
        ('A dull story', 'word', [0, 1], 'story'),
        ('A dull story', 'word', [1, 2], 'A'),
        ('A dull story', 'word', [0, 2], 'dull'),
        ('One. Two.\n\nThree.', 'sentence', [1], 'One.\n\nThree.'),
        ('One. Two.\n\nThree.', 'sentence', [0, 1], 'Three.'),
        ('“Good film”', [(1, 5)], [0], '“film”'),
        ('so so good', [[(0, 2), (3, 5)], (6, 10)], [0], 'good'),
        ('面白い映画', [(0, 3), (3, 5)], [0], '映画'),
    ],
)
def test_several_units_are_deleted(text, units, removed, rest):
    assert plain_text(text, units).without(removed) == rest


@pytest.mark.parametrize('target', [None, 0, 1, (1, 0)])
@pytest.mark.parametrize('replacement', [None, '[MASK]'])
def test_loo_is_a_loop_by_hand_to_the_bit(target, replacement):
    function = Counted(odd)
    maps = explain(
        function,
        None,
        TEXTS,
        'loo',
        target,
        5,
        units='word',
        replacement=replacement,
        **QUIET,
    )
    row = odd(TEXTS[0])
    index = row.index(max(row)) if target is None else target

    def f(text):
        numbers = odd(text)
        return numbers[1] - numbers[0] if index == (1, 0) else numbers[index]

    (a, *_), by_hand = maps, []
    end = 0
    for word, without in WITHOUT.items():
        start = TEXTS[0].index(word, end)
        end = start + len(word)
        if replacement:
            without = TEXTS[0][:start] + replacement + TEXTS[0][end:]
        by_hand.append(f(TEXTS[0]) - f(without))
    assert a.tokens == list(WITHOUT)
    assert a.scores.tolist() == by_hand
    assert (a.logit, a.target, a.exact) == (f(TEXTS[0]), index, True)
    assert maps[1].scores.equal(maps[2].scores)


def test_equal_texts_are_asked_once_and_one_is_asked_again_alone():
    function = Counted(odd)
    maps = explain(function, None, TEXTS, batch_size=7, units='word', **QUIET)
    again = [request for request in function.requests if len(request) == 1]
    asked = list(function.asked)
    asked.remove(again[0][0])
    # three of the four variants of 'Fine, fine film' are different
    assert len(asked) == len(set(asked)) == 1 + 12 + 1 + 4
    assert [len(r) for r in function.requests] == [7, 1, 7, 4]
    assert [a.passes for a in maps] == [13, 5, 5]
    same = Counted(one)
    (a,) = explain(same, None, 'very very good', units='word', **QUIET)
    assert set(same.asked) == {'very very good', 'very good', 'very very'}
    assert a.passes == 3


@pytest.mark.parametrize('kind', ['list', 'float32', 'tensor', 'column'])
def test_what_a_function_may_return(kind):
    def function(texts):
        numbers = [one(text) for text in texts]
        if kind == 'tensor':
            return torch.tensor(numbers, requires_grad=True)
        if kind == 'column':
            return np.array(numbers)[:, None]
        return numbers if kind == 'list' else np.array(numbers, kind)

    (a,) = explain(function, None, TEXTS[0], units='word', **QUIET)
    assert a.target.endswith('function') and a.number_called == 'number'
    wanted = [one(TEXTS[0]) - one(text) for text in WITHOUT.values()]
    assert a.scores.tolist() == pytest.approx(wanted, abs=1e-6)


def test_a_record_is_shown_and_read_again(tmp_path):
    (a,) = explain(Counted(one), None, TEXTS[0], units='word', **QUIET)
    a.save(tmp_path / 'a.json')
    assert load(tmp_path / 'a.json').scores.equal(a.scores)
    assert 'saved' in a._repr_html_() and 'number' in repr(a)
    frame = a.to_frame()
    spans = zip(frame.start, frame.end)
    assert [TEXTS[0][start:end] for start, end in spans] == a.tokens


# 'fine' alone changes the answer
SENTENCES = [
    'It is fine.',
    *['Nothing else happens here.'] * 5,
    'The end comes at last.',
]
LONG = ' '.join(SENTENCES)


def praise(text):
    return 1.0 * ('fine' in text) + 1e-3 * len(text)


@pytest.mark.parametrize('passes', [3, 8, 12, 20, 1000])
def test_a_budget_asks_sentences_before_words(passes):
    function = Counted(praise)
    (a,) = explain(function, None, LONG, units='word', passes=passes, **QUIET)
    (loo,) = explain(Counted(praise), None, LONG, 'loo', units='word', **QUIET)
    asked = set(function.asked)
    assert len(asked) == a.passes <= passes
    groups = a.info.get('together', [])
    assert sorted(sum(groups, a.exact_units)) == [*range(len(a))]
    for k in a.exact_units:
        assert a.scores[k] == loo.scores[k]
    for group in groups:
        without = plain_text(LONG, 'word').without(group)
        share = (praise(LONG) - praise(without)) / len(group)
        assert a.scores[group].tolist() == pytest.approx([share] * len(group))
    fine = a.tokens.index('fine')
    assert (fine in a.exact_units) == (passes >= 12)
    if passes == 8:  # each sentence, and no word
        assert len(groups) == 7 and not a.exact_units
    if groups:
        n = sum(map(len, groups))
        assert f'{n} of {len(a)} units removed only in groups' in repr(a)
    else:
        assert a.exact and 'groups' not in repr(a)


def refused(error, *words, function=None, texts=TEXTS[0], **options):
    options = dict(units='word') | QUIET | options
    with pytest.raises(error) as e:
        explain(function or Counted(one), None, texts, **options)
    for word in words:
        assert word in str(e.value)
    return e.value


def test_what_needs_the_inside_is_refused_by_name():
    call = "explain(function, None, texts, units='word')"
    for method in ('removal', 'attn_lrp', 'cp_lrp', 'ig', 'rollout', 'grad_x_input'):
        refused(ValueError, repr(method), call, method=method)
    refused(ValueError, 'method', "'loo'", method='lo')
    refused(ValueError, "'word' or 'sentence'", 'token', units='token')
    refused(TypeError, "device='cpu'", device='cpu')
    refused(TypeError, 'n_steps=3', 'replacement', n_steps=3)
    refused(ValueError, 'passes', 'at least 3', passes=2)
    refused(ValueError, 'target=1', '0 to 0', target=1)
    refused(ValueError, '1 texts, 2 units', units=['word', 'word'], texts=TEXTS[:1])
    refused(TypeError, 'a text must be a str', texts=[('a', 'b')])
    with pytest.raises(ValueError, match="'removal'.*explain_pairs"):
        explain_pairs(one, None, TEXTS[0], 'removal')
    with pytest.raises(TypeError, match='answer='):
        attribute_context(one, None, TEXTS, 'fine')
    with pytest.raises(TypeError, match=re.escape(call)):  # it takes no tokenizer
        explain(one, load_demo('sst2')[1], TEXTS)


def test_wrong_answers_are_refused_with_what_was_seen():
    refused(ValueError, '14 rows for 13 texts', function=lambda t: [0.5] * (len(t) + 1))
    nan = refused(ValueError, 'nan', function=lambda t: [float('nan')] * len(t))
    assert 'A dull' in str(nan)
    refused(TypeError, "'high'", '(13, classes)', function=lambda t: 'high')
    calls = []

    def other_classes(texts):
        calls.append(texts)
        return np.ones((len(texts), 1 + len(calls)))

    refused(ValueError, '3 numbers', '2 for one', function=other_classes)
    random = np.random.default_rng(0)
    noise = refused(
        ValueError,
        'asked again',
        'deterministic',
        function=lambda t: random.random(len(t)),
    )
    assert len(re.findall(r'\[0\.\d+\]', str(noise))) == 2
    # a number that depends on the other texts of a request
    refused(ValueError, 'alone', function=lambda t: [one(x) * len(t) for x in t])


class Stops(Counted):
    "A function that is interrupted at its n-th request."

    def __init__(self, f, n, error):
        super().__init__(f)
        self.n, self.error = n, error

    def __call__(self, texts):
        if len(self.requests) == self.n:
            raise self.error
        return super().__call__(texts)


@pytest.mark.parametrize('error', [KeyboardInterrupt(), ConnectionError('server')])
def test_nothing_is_lost_where_a_run_stops(tmp_path, error):
    call = dict(units='word', batch_size=4, **QUIET)
    stopped = Stops(odd, 3, error)
    results = Results(tmp_path / 'rows.json', {})
    with pytest.raises(type(error)) as e:
        explain(stopped, None, TEXTS, results=results, **call)
    assert '8 texts were answered before, 10 are left' in e.value.__notes__[0]
    e.value.__notes__.clear()
    # another process goes on
    rest = Counted(odd)
    maps = explain(
        rest, None, TEXTS, results=Results(tmp_path / 'rows.json', {}), **call
    )
    first, *others = rest.requests
    assert first[0] in stopped.asked  # one of the kept is asked again
    assert len(sum(others, [])) == 10
    assert not set(sum(others, [])) & set(stopped.asked)
    whole = explain(Counted(odd), None, TEXTS, **call)
    for a, b in zip(maps, whole):
        assert a.scores.equal(b.scores) and a.logit == b.logit
    # the file has no text
    stored = (tmp_path / 'rows.json').read_text()
    assert 'story' not in stored
    with pytest.raises(ValueError, match='asked again'):  # rows of another function
        explain(
            lambda texts: [[0.1, 0.2]] * len(texts),
            None,
            TEXTS,
            results=Results(tmp_path / 'rows.json', {}),
            **call,
        )
    with pytest.raises(type(error)) as e:
        explain(Stops(odd, 3, error), None, TEXTS, **call)
    assert "results='rows.json'" in e.value.__notes__[0]
    e.value.__notes__.clear()


def test_pairs_are_inclusion_and_exclusion_by_hand():
    text, f = 'It is not good', lambda t: float('good' in t) * (1 - 2 * ('not' in t))
    function = Counted(f)
    (pairs,) = explain_pairs(function, None, text, units='word')
    rest = {(2, 3): f('It is'), (1, 3): f('It not'), (0, 2): f('is good')}
    alone = dict(
        zip(range(4), ('is not good', 'It not good', 'It is good', 'It is not'))
    )
    for (i, j), both in rest.items():
        # I = f(x) − f(x without i) − f(x without j) + f(x without both)
        assert pairs.scores[i, j] == f(text) - f(alone[i]) - f(alone[j]) + both
    assert pairs.strongest(1)[0][:2] == (2, 3)
    assert len(set(function.asked)) == pairs.main.passes == 1 + 4 + 6


def test_a_context_is_a_prompt_of_the_function():
    passages = ['The film is good.', 'Nobody came.', 'It rained.']
    template = 'Read: {context}\nAnswer: {question}'
    function = Counted(one)
    a = attribute_context(
        function, None, passages, question='Was it?', template=template, **QUIET
    )
    prompt = 'Read:{}\nAnswer: Was it?'.format

    whole, *rest = (
        one(prompt(f' {text}'))
        for text in (
            'The film is good.\n\nNobody came.\n\nIt rained.',
            'The film is good.\n\nIt rained.',
            'The film is good.\n\nNobody came.',
        )
    )
    first = one(prompt('\n\nNobody came.\n\nIt rained.'))  # with the space before it
    by_hand = [whole - number for number in (first, *rest)]
    assert a.scores.tolist() == by_hand
    assert a.tokens[1] == '[2] Nobody came.' and a.logit == whole
    b = attribute_context(one_of_each, None, ' '.join(passages), **QUIET)
    assert b.tokens == passages


def one_of_each(texts):
    return [one(text) for text in texts]


def test_audit_measures_a_budget():
    texts = [f'{LONG} {k} fine' for k in range(6)]
    methods = dict(loo=('loo', {}), auto=('auto', dict(passes=20)), ig=('ig', {}))
    table = audit(Counted(praise), None, [*texts, texts[0]], methods, **QUIET)
    assert table.loc['loo', 'loo_r'] == pytest.approx(1)
    assert table.loc['auto', 'passes'] <= 20 < table.loc['loo', 'passes']
    assert "needs the inside of a model" in table.loc['ig', 'refused']
    assert 'auto' in table.verdict and 'Counted' in table.verdict
    assert any('1 ' in line and 'cop' in line for line in table.lines)


@pytest.fixture
def served(demo_reviews):
    "The names of the guide's page on functions, with its server around a small model."
    names = dict(load_demo=lambda name: demo_reviews)
    cells = [c.source for c in nbformat.read(PAGE, 4).cells if c.cell_type == 'code']
    for part in ('class Completions', 'def answer_log_prob'):
        (source,) = [cell for cell in cells if part in cell]
        exec(compile(source, str(PAGE), 'exec'), names)
    yield names
    names['server'].shutdown()
    names['server'].server_close()


def test_a_served_answer_is_explained_as_by_the_model_itself(served, demo_reviews):
    model, tokenizer = demo_reviews
    passages = ['The plot is dull.', 'Nobody laughed.']
    a = attribute_context(
        served['answer_log_prob'], None, passages, template='{context} It was', **QUIET
    )
    ids = tokenizer(served['ANSWER'], add_special_tokens=False)['input_ids']

    @torch.no_grad()
    def by_hand(prompt):
        row = tokenizer(prompt)['input_ids'] + ids
        rows = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
        n = len(row) - len(ids)
        return sum(float(rows[n + i - 1, token]) for i, token in enumerate(ids))

    whole = by_hand('The plot is dull.\n\nNobody laughed. It was')
    rest = [by_hand(f'{p} It was') for p in reversed(passages)]
    assert a.scores.tolist() == pytest.approx([whole - x for x in rest], abs=1e-5)
    assert a.logit == pytest.approx(whole, abs=1e-5)


def test_a_server_that_stops_in_the_middle_loses_nothing(served, tmp_path):
    function, requests = served['answer_log_prob'], []
    call = dict(units='word', batch_size=3, **QUIET)

    def stops(prompts):
        if len(requests) == 3:  # not before its port is closed
            served['server'].shutdown()
            served['server'].server_close()
        requests.append(list(prompts))
        return function(prompts)

    results = Results(tmp_path / 'rows.json', {})
    whole = explain(function, None, TEXTS[0], **call)[0]
    with pytest.raises(URLError) as e:
        explain(stops, None, TEXTS[0], results=results, **call)
    assert '6 texts were answered before, 7 are left' in e.value.__notes__[0]
    # started again, on another port
    served['server'] = ThreadingHTTPServer(('127.0.0.1', 0), served['Completions'])
    served['URL'] = f"http://127.0.0.1:{served['server'].server_port}"
    Thread(target=served['server'].serve_forever, daemon=True).start()
    rest = []

    def counted(prompts):
        rest.extend(prompts)
        return function(prompts)

    results = Results(tmp_path / 'rows.json', {})
    (a,) = explain(counted, None, TEXTS[0], results=results, **call)
    assert len(rest) == 1 + 7 and rest[0] in sum(requests[:3], [])
    assert a.scores.equal(whole.scores)


def test_sets_of_a_function_are_those_of_all_subsets():
    text, f = 'so fine so good', lambda t: float('fine' in t or 'good' in t)
    (a,) = explain(Counted(f), None, f'It is {text}', units='word', sets=0.9, **QUIET)
    # either word keeps the answer, both must go
    assert [a.tokens[k] for k in a.necessary] == ['fine', 'good']
    assert [a.tokens[k] for k in a.sufficient] in (['fine'], ['good'])
    assert a.total_effect == 1.0 and a.is_redundant
    assert not a.scores.any()


def test_a_path_keeps_the_answers_like_results(tmp_path):
    path, first, again = tmp_path / 'r.json', Counted(odd), Counted(odd)
    for function in (first, again):
        call = (function, None, TEXTS)
        maps = explain(*call, units='word', results=str(path), **QUIET)
    assert len(again.asked) == 1 and again.asked[0] in first.asked
    whole = explain(Counted(odd), None, TEXTS, units='word', **QUIET)
    assert all(a.scores.equal(b.scores) for a, b in zip(maps, whole))
    audit(Counted(odd), None, TEXTS, ['loo'], results=path, **QUIET)
    assert len(Results(path, {}).rows) == len(first.requests) - 1
    with pytest.raises(TypeError, match='results must be the path of a JSON file'):
        explain(Counted(odd), None, TEXTS, units='word', results=5, **QUIET)
