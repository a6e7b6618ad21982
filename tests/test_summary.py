"Words of many texts by mean effect, against plain loops; two summaries compared."

import html
from html.parser import HTMLParser
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lrp_loo import compare_summaries, explain, summarize, summarize_texts
from lrp_loo.records.attribution import Attribution
from lrp_loo.reports.summary import MOST_PANELS
from lrp_loo.core.stats import mean_interval

TEXTS = [
    "A Café's quiet film, and never dull.",
    "The film's café is dull; the lighthouse-keeper is not.",
    'never a dull minute in this FILM',
    'dull, dull, dull: 2 hours of a film about a film',
    'it is not a film , it is a nap 😀',
]


@pytest.fixture(scope='module')
def of_words(demo):
    return explain(*demo, TEXTS, units='word', target=1)


@pytest.fixture(scope='module')
def found(demo):
    return summarize_texts(*demo, TEXTS, target=1, min_count=1, progress=False)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close('all')


def made(tokens, scores=None, target=0, special=(), **more):
    "A map of one's own."
    scores = range(1, len(tokens) + 1) if scores is None else scores
    mask = torch.tensor([i in special for i in range(len(tokens))])
    scores = torch.as_tensor(scores, dtype=torch.float64)
    return Attribution(tokens, scores, mask, target, 1.0, 'made', **more)


MARKED = [
    (['[CLS]', 'light', '##house', '-', 'keeper', '.', '[SEP]'], (0, 6)),
    (['<s>', 'light', 'house', '-', 'keeper', '.', '</s>'], (0, 6)),
]


@pytest.mark.parametrize('tokens, special', MARKED)
def test_with_the_text_words_are_those_of_the_text(tokens, special):
    places = [(0, 5), (5, 10), (10, 11), (11, 17), (18, 19)]
    spans = [None, *((0, *place) for place in places), None]
    info = dict(text='Lighthouse-Keeper .', spans=spans)
    a = made(tokens, special=special, info=info)
    s = summarize([a], min_count=1)
    assert list(s.occurrences.word) == ['lighthouse-keeper', '.']
    own = a.scores[~a.is_special]
    assert list(s.occurrences.score) == [float(own[:-1].sum()), float(own[-1])]
    assert s.examples('lighthouse-keeper').word[0] == 'Lighthouse-Keeper'


def test_without_the_text_pieces_are_joined_by_their_marks():
    "A byte-level vocabulary marks spaces, so punctuation sticks to words."
    tokens = ['I', 'Ġdon', "'t", 'Ġcry', 'ing', '.', 'ĠNever', '!', '!']
    s = summarize([made(tokens)], min_count=1)
    assert s.texts == ["I don't crying. Never!!"]
    assert list(s.occurrences.word) == ['i', "don't", 'crying', '.', 'never', '!', '!']
    assert list(s.occurrences.score) == [1, 5, 9, 6, 7, 8, 9]


def test_maps_of_tokens_have_the_words_of_maps_of_words(demo, of_words):
    "As they were written, whatever the vocabulary did to case and accents."
    by_token = summarize(explain(*demo, TEXTS, target=1), min_count=1)
    by_word = summarize(of_words, min_count=1)
    assert by_token.texts == by_word.texts == TEXTS
    assert list(by_token.occurrences.word) == list(by_word.occurrences.word)
    assert len(by_word.examples('FILM')) == 5  # film's is a word
    assert {"film's", "café's", '😀'} <= set(by_word.to_frame().word)


def naive_table(maps):
    "class, word → text → scores, by plain loops."
    table = defaultdict(lambda: defaultdict(list))
    for i, a in enumerate(maps):
        for token, score, out in zip(a.tokens, a.scores, a.is_special):
            if not out:
                key = (f'target {a.target}', token.casefold())
                table[key][i].append(float(score))
    return table


def random_maps(n=40, seed=0):
    rng = np.random.default_rng(seed)
    words = ['Good', 'good', 'bad', 'film', 'a', 'the']
    return [
        made(
            list(rng.choice(words, 12)),
            rng.normal(size=12),
            target=int(rng.integers(2)),
            info={'unit_of_token': list(range(12))},
        )
        for _ in range(n)
    ]


def test_numbers_are_those_of_a_plain_loop():
    maps = random_maps()
    table = summarize(maps, min_count=1).to_frame()
    naive = naive_table(maps)
    assert len(table) == len(naive)
    for row in table.to_dict('records'):
        texts = [np.array(s) for s in naive[row['class'], row['word']].values()]
        means = np.array([s.mean() for s in texts])
        want = dict(
            mean=means.mean(),
            mean_abs=np.mean([np.abs(s).mean() for s in texts]),
            positive=np.mean([(s > 0).mean() for s in texts]),
            texts=len(texts),
            count=sum(map(len, texts)),
        )
        for name, number in want.items():
            assert np.isclose(row[name], number), name
        assert np.allclose([row['low'], row['high']], mean_interval(means))


def test_maps_come_back_in_order_whatever_their_length(demo, of_words):
    s = summarize_texts(
        *demo, TEXTS, target=1, min_count=1, batch_size=1, progress=False
    )
    want = torch.cat([a.scores[~a.is_special] for a in of_words]).numpy()
    scale = np.abs(want).max()
    assert np.allclose(s.occurrences.score, want, atol=1e-4 * scale)


def test_loo_takes_a_word_away_at_once(demo):
    s = summarize_texts(*demo, TEXTS, 'loo', 1, min_count=1, progress=False)
    (a,) = explain(*demo, TEXTS[1:2], 'loo', 1, units='word')
    at = a.tokens.index('lighthouse-keeper')
    (row,) = s.examples('lighthouse-keeper').to_dict('records')
    assert np.isclose(row['score'], float(a.scores[at]), atol=1e-4)


def test_a_word_leads_to_its_places(found):
    places = found.examples('dull')
    assert len(places) == 6
    assert places.score.is_monotonic_decreasing
    for row in places.itertuples():
        shown = (row.before + row.word + row.after).strip('… ')
        assert shown in TEXTS[row.text]
    some = found.examples('Dull', 3)
    assert list(some.score) == [places.score[k] for k in (0, 2, 5)]
    with pytest.raises(KeyError, match='nowhere'):
        found.examples('nowhere')


def test_a_mean_is_of_one_model_and_of_texts():
    names = [made(['a'], info=dict(model=name, weights=name)) for name in 'ab']
    with pytest.raises(ValueError, match='of different models'):
        summarize(names)
    with pytest.raises(ValueError, match='of an image'):
        summarize([made(['0,0'], info={'grid': (1, 1)})])


def test_of_many_classes_those_of_most_texts_are_drawn():
    maps = [made(['w'], [1.0], target=k) for k in range(6) for _ in range(k + 1)]
    s = summarize(maps, min_count=1)
    assert s.bar().axes[-1].get_title(loc='left') == 'target 5, 6 texts'
    for classes, n in ((None, MOST_PANELS), (s.classes, 6)):
        assert len(s.bar(classes=classes).axes) == n


def test_bars_are_as_long_as_means(found):
    (ax,) = found.bar(6).axes
    top = found.top(6)['positive']
    assert np.allclose([bar.get_width() for bar in ax.patches], top['mean'])
    shown = [t.get_text().split('  ')[0] for t in ax.get_yticklabels()]
    assert shown == list(top.word)


def test_differences_are_those_of_a_plain_loop(demo, of_words, found):
    loo = summarize_texts(*demo, TEXTS, 'loo', 1, min_count=1, progress=False)
    both = compare_summaries(found, loo)
    other = explain(*demo, TEXTS, 'loo', 1, units='word')
    one, two = (
        torch.cat([a.scores[~a.is_special] for a in maps]).double().numpy()
        for maps in (of_words, other)
    )
    gap = one / np.sqrt((one**2).mean()) - two / np.sqrt((two**2).mean())
    (at,) = [i for i, t in enumerate(found.occurrences.word) if t == 'minute']
    row = both.words.set_index('word').loc['minute']
    assert np.isclose(row.difference, gap[at], atol=1e-3)


def test_texts_of_other_classes_are_left_out_and_named():
    one = [made(['a', 'b', 'c'], [1.0, 2.0, 4.0 + k]) for k in range(4)]
    two = [made(['a', 'b', 'c'], [1.0, 2.0, 9.0 + k]) for k in range(3)]
    two.append(made(['a', 'b', 'c'], [-9.0, 2.0, 5.0], target=1))
    first, second = (summarize(m, min_count=1) for m in (one, two))
    both = compare_summaries(first, second)
    last = both.texts.iloc[-1]
    assert (last['class'], last.other_class) == ('target 0', 'target 1')
    assert np.isnan(last.r)
    assert both.mean_r['n'] == 3
    assert set(both.words.texts) == {3}
    assert '1 without one' in repr(both) and 'first and second' in repr(both)


class Page(HTMLParser):
    "The names of its tags and of their attributes."

    def __init__(self, page):
        super().__init__()
        self.names = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names |= {tag, *(name for name, _ in attrs)}


def test_what_words_classes_and_methods_hold_is_text(tmp_path):
    words = ['<script>', '"><b/onload=x>', 'film']
    units = dict(label='<i>', info={'unit_of_token': [0, 1, 2]})
    maps = [made(words, [1.0, 2.0, 3.0 + k], **units) for k in range(5)]
    for a in maps:
        a.method = '<u>'
    s = summarize(maps)
    for a in maps:
        a.method = '<s>'
    both = compare_summaries(s, summarize(maps))
    for record, said in ((s, ['script', 'i', 'u']), (both, ['s', 'script'])):
        record.save(tmp_path / 'a.html')
        page = (tmp_path / 'a.html').read_text(encoding='utf-8')
        assert not {*said, 'onload'} & Page(page).names
        assert all(f'<{tag}>' in html.unescape(page) for tag in said)
