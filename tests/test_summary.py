"Words of many texts by mean effect, against plain loops; two summaries compared."

import html
import re
from html.parser import HTMLParser
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lrp_loo import compare_summaries, explain, summarize, summarize_texts
from lrp_loo.records import Attribution
from lrp_loo.reports.summary import MOST_PANELS, token_spans
from lrp_loo.stats import mean_interval
from lrp_loo.evaluate.sweep import read_sweep, sweep

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


def content(summary):
    return summary.occurrences[~summary.occurrences.special]


MARKED = [
    (['[CLS]', 'light', '##house', '-', 'keeper', '.', '[SEP]'], (0, 6)),
    (['<s>', 'light', 'house', '-', 'keeper', '.', '</s>'], (0, 6)),
    (['▁light', 'house', '-', 'keeper', '.'], ()),
]


@pytest.mark.parametrize('tokens, special', MARKED)
def test_with_the_text_words_are_those_of_the_text(tokens, special):
    a = made(tokens, special=special)
    s = summarize([a], texts=['Lighthouse-Keeper .'], min_count=1)
    assert list(content(s).written) == ['Lighthouse-Keeper', '.']
    own = a.scores[~a.is_special]
    assert list(content(s).score) == [float(own[:-1].sum()), float(own[-1])]


def test_without_the_text_pieces_are_joined_by_their_marks():
    "A byte-level vocabulary marks spaces, so punctuation sticks to words."
    tokens = ['I', 'Ġdon', "'t", 'Ġcry', 'ing', '.', 'ĠNever', '!', '!']
    for texts in (None, ['something else']):
        s = summarize([made(tokens)], texts=texts, min_count=1)
        assert s.texts == ["I don't crying. Never!!"]
        written = list(content(s).written)
        assert written == ['I', "don't", 'crying', '.', 'Never', '!', '!']
        assert list(content(s).score) == [1, 5, 9, 6, 7, 8, 9]


@pytest.mark.parametrize('text', TEXTS)
def test_tokens_are_found_whatever_the_vocabulary_did(demo, text):
    model, tokenizer = demo
    (a,) = explain(model, tokenizer, [text])
    pieces = [t.removeprefix('##') for t in a.tokens[1:-1] if t != '[UNK]']
    places = token_spans(pieces, text.replace('😀', ''))
    enc = tokenizer(text, return_offsets_mapping=True)
    want = [o for o, i in zip(enc['offset_mapping'], enc['input_ids'])]
    known = [tuple(o) for o, t in zip(want, a.tokens) if t[0] != '[']
    assert places == known


def test_case_is_folded_and_shown_small_where_it_was_ever_so_written(found):
    assert 'film' in found.words and 'FILM' not in found.words
    assert len(found['FILM']) == len(found['film']) == 5  # film's is a word
    assert "film's" in found.words and "Café's" in found.words


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
    assert np.allclose(content(s).score, want, atol=1e-4 * scale)


def test_loo_takes_a_word_away_at_once(demo):
    s = summarize_texts(*demo, TEXTS, 'loo', 1, min_count=1, progress=False)
    (a,) = explain(*demo, TEXTS[1:2], 'loo', 1, units='word')
    at = a.tokens.index('lighthouse-keeper')
    (row,) = s['lighthouse-keeper'].to_dict('records')
    assert np.isclose(row['score'], float(a.scores[at]), atol=1e-4)


def test_a_word_leads_to_its_places(found):
    places = found['dull']
    assert len(places) == 6
    assert places.score.is_monotonic_decreasing
    for row in places.itertuples():
        shown = (row.before + row.word + row.after).strip('… ')
        assert shown in TEXTS[row.text]
    some = found.examples('Dull', 3, 'positive')
    assert list(some.score) == [places.score[k] for k in (0, 2, 5)]
    assert 'nowhere' not in found


def test_rows_of_a_sweep_are_maps(demo, tmp_path):
    how = dict(target=1, keep_texts=True, progress=False)
    methods = ['attn_lrp', 'cp_lrp']
    sweep(*demo, TEXTS[:4], tmp_path / 'out', methods, **how)
    rows = read_sweep(tmp_path / 'out')
    s = summarize(rows[rows.method == 'attn_lrp'], min_count=1)
    assert s.texts == TEXTS[:4]
    direct = summarize(explain(*demo, TEXTS[:4], target=1), min_count=1)
    assert s.words[0] == direct.words[0]
    with pytest.raises(ValueError, match='lacks scores'):
        summarize(rows.drop(columns='scores'))


NAMES = [made(['a'], target=1, label=name) for name in ('yes', 'LABEL_1')]
IMAGE = [made(['0,0'], info={'grid': (1, 1)})]
INFINITE = [made(['a', 'b']), made(['a', 'b'])]
INFINITE[1].scores[0] = float('inf')


@pytest.mark.parametrize(
    'maps, says',
    [
        (NAMES, 'two models'),
        (IMAGE, 'of an image'),
        (INFINITE, 'map 1 .made. .* not finite'),
    ],
    ids=['names', 'image', 'inf'],
)
def test_what_cannot_be_averaged_is_named(maps, says):
    with pytest.raises(ValueError, match=says):
        summarize(maps)


def test_of_many_classes_those_of_most_texts_are_shown(tmp_path):
    maps = [made(['w'], [1.0], target=k) for k in range(6) for _ in range(k + 1)]
    s = summarize(maps, min_count=1)
    assert s.bar().axes[-1].get_title(loc='left') == 'target 5, 6 texts'
    for classes, n in ((None, MOST_PANELS), (s.classes, 6)):
        assert len(s.bar(classes=classes).axes) == n
        page = saved(s, tmp_path, classes=classes)
        assert page.count('<section>') == n
        assert ('2 more classes not shown' in page) == (classes is None)


def saved(made, folder, **options):
    "The page of a summary."
    made.save(folder / 'a.html', **options)
    return (folder / 'a.html').read_text(encoding='utf-8')


def test_differences_are_those_of_a_plain_loop(demo, of_words, found):
    loo = summarize_texts(*demo, TEXTS, 'loo', 1, min_count=1, progress=False)
    both = compare_summaries(found, loo)
    other = explain(*demo, TEXTS, 'loo', 1, units='word')
    one, two = (
        torch.cat([a.scores[~a.is_special] for a in maps]).double().numpy()
        for maps in (of_words, other)
    )
    gap = one / np.sqrt((one**2).mean()) - two / np.sqrt((two**2).mean())
    (at,) = [i for i, t in enumerate(content(found).word) if t == 'minute']
    row = both.words.set_index('word').loc['minute']
    assert np.isclose(row.difference, gap[at], atol=1e-3)


def test_texts_of_other_classes_are_left_out_and_named():
    one = [made(['a', 'b', 'c'], [1.0, 2.0, 4.0 + k]) for k in range(4)]
    two = [made(['a', 'b', 'c'], [1.0, 2.0, 9.0 + k]) for k in range(3)]
    two.append(made(['a', 'b', 'c'], [-9.0, 2.0, 5.0], target=1))
    first, second = (summarize(m, min_count=1) for m in (one, two))
    both = compare_summaries(first, second, names=('old', 'new'))
    last = both.texts.iloc[-1]
    assert (last['class'], last.other_class) == ('target 0', 'target 1')
    assert np.isnan(last.r)
    assert both.mean_r['n'] == 3
    assert set(both.words.texts) == {3}
    assert '1 without one' in repr(both) and 'old and new' in repr(both)


class Page(HTMLParser):
    "The names of its tags and of their attributes."

    def __init__(self, page):
        super().__init__()
        self.names = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names |= {tag, *(name for name, _ in attrs)}


def test_what_words_classes_and_methods_hold_is_text(tmp_path):
    units = dict(label='<i>', info={'unit_of_token': [0, 1, 2]})
    maps = [made(['<script>', '"><b/onload=x>', 'film'], **units) for _ in range(5)]
    for a in maps:
        a.method = '<u>'
    s = summarize(maps, texts=['<script> "><b/onload=x> film'] * 5)
    both = compare_summaries(s, s, names=('<s>', 'b'))
    for page, said in (
        (saved(s, tmp_path), ['script', 'i', 'u']),
        (saved(both, tmp_path), ['s', 'script']),
    ):
        assert not {*said, 'onload'} & Page(page).names
        assert all(f'<{tag}>' in html.unescape(page) for tag in said)


def test_bars_are_as_long_as_means(found):
    block = found._repr_html_()
    widths = re.findall(r'class="(up|down)" x="\S+" y="\S+" width="(\S+)"', block)
    means = found.top(12)['positive']['mean']
    shown = [float(w) * (1 if kind == 'up' else -1) for kind, w in widths]
    ratio = np.array(shown) / means.to_numpy()
    assert np.allclose(ratio, ratio[0], rtol=0.02, atol=0.02 * ratio[0])


def test_beeswarm_has_a_dot_for_each_occurrence(found):
    (ax,) = found.beeswarm(6).axes
    words = found.top(6)['positive'].word
    dots = sum(len(c.get_offsets()) for c in ax.collections)
    assert dots == sum(len(found[w]) for w in words)
    shown = [t.get_text().split('  ')[0] for t in ax.get_yticklabels()]
    assert shown == list(words)
