"""Words of many texts by mean effect: against plain loops, over tokenizers' marks, in pictures and
pages; two summaries compared.
"""

import re
from collections import defaultdict
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from chromium import Chromium
from conftest import needs_browser
from transformers import TextClassificationPipeline

from lrp_loo import compare_summaries, explain, summarize, summarize_texts
from lrp_loo.core import Attribution
from lrp_loo.models.demos import load_demo
from lrp_loo.reports.summary import places_in_text
from lrp_loo.reports.summary_views import MOST_DOTS, MOST_PANELS
from lrp_loo.stats import mean_interval, pearson
from lrp_loo.tasks.pairs import explain_pairs
from lrp_loo.trust.sweep import explain_dataset, read_sweep

TEXTS = [
    "A Café's quiet film, and never dull.",
    "The film's café is dull; the lighthouse-keeper is not.",
    'never a dull minute in this FILM',
    'dull, dull, dull: 2 hours of a film about a film',
    'it is not a film , it is a nap 😀',
]


@pytest.fixture(scope='module')
def demo():
    return load_demo('sst2')


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
    n = len(tokens)
    scores = torch.arange(1.0, n + 1) if scores is None else scores
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(special)] = True
    scores = torch.as_tensor(scores)
    return Attribution(tokens, scores, mask, target, 1.0, 'made', **more)


def content(summary):
    return summary.occurrences[~summary.occurrences.special]


# -------------------------------------------------- the words of a map


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
    s = summarize([made(tokens)], min_count=1)
    assert s.texts == ["I don't crying. Never!!"]
    written = list(content(s).written)
    assert written == ['I', "don't", 'crying', '.', 'Never', '!', '!']
    assert list(content(s).score) == [1, 5, 9, 6, 7, 8, 9]


def test_a_text_that_is_not_these_tokens_is_not_used():
    s = summarize([made(['a', 'b'])], texts=['something else'], min_count=1)
    assert s.texts == ['a b']


@pytest.mark.parametrize('text', TEXTS)
def test_tokens_are_found_whatever_the_vocabulary_did(demo, text):
    model, tokenizer = demo
    (a,) = explain(model, tokenizer, [text])
    pieces = [t.removeprefix('##') for t in a.tokens[1:-1] if t != '[UNK]']
    places = places_in_text(pieces, text.replace('😀', ''))
    enc = tokenizer(text, return_offsets_mapping=True)
    want = [o for o, i in zip(enc['offset_mapping'], enc['input_ids'])]
    known = [tuple(o) for o, t in zip(want, a.tokens) if t[0] != '[']
    assert places == known


def test_words_from_tokens_are_the_words_of_explain(demo, of_words):
    "Gradient methods add pieces up either way."
    from_tokens = summarize(explain(*demo, TEXTS, target=1), texts=TEXTS, min_count=1)
    from_words = summarize(of_words, texts=TEXTS, min_count=1)
    one, two = content(from_tokens), content(from_words)
    # the emoji is [UNK] to the vocabulary: that text is read from its tokens
    for column in ('written', 'start', 'end'):
        a, b = (d[d.text < 4][column].tolist() for d in (one, two))
        assert a == b
    both = one[one.text < 4].score, two[two.text < 4].score
    assert np.allclose(*both, atol=1e-4 * two.score.abs().max())


def test_case_is_folded_and_shown_small_where_it_was_ever_so_written(found):
    assert 'film' in found.words and 'FILM' not in found.words
    assert len(found['FILM']) == len(found['film']) == 5  # film's is a word
    assert "film's" in found.words and "Café's" in found.words


def test_pairs_of_texts_are_read_as_one(demo):
    pair = ('A dull film.', 'A nap, then.')
    s = summarize_texts(*demo, [pair], min_count=1, progress=False)
    assert s.texts == ['A dull film.\nA nap, then.']
    assert len(s['a']) == 2


# ------------------------------------------------------------ the numbers


def naive_table(maps):
    "class, word → text → scores, by plain loops."
    table = defaultdict(lambda: defaultdict(list))
    for i, a in enumerate(maps):
        for token, score, out in zip(a.tokens, a.scores, a.is_special):
            if not out:
                key = (a.label or f'target {a.target}', token.casefold())
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
        texts = naive[row['class'], row['word'].casefold()].values()
        means = np.array([np.mean(s) for s in texts])
        assert np.isclose(row['mean'], means.mean())
        sizes = [np.mean(np.abs(s)) for s in texts]
        assert np.isclose(row['mean_abs'], np.mean(sizes))
        signs = [np.mean(np.array(s) > 0) for s in texts]
        assert np.isclose(row['positive'], np.mean(signs))
        assert row['texts'] == len(means)
        assert row['count'] == sum(map(len, texts))
        assert np.allclose([row['low'], row['high']], mean_interval(means))


def test_intervals_cover_the_mean_they_are_of():
    "A share of 95 % of 300 draws, within three standard errors."
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        maps = [made(['w'], [rng.normal(0.3)]) for _ in range(8)]
        (row,) = summarize(maps).to_frame().to_dict('records')
        hits += row['low'] <= 0.3 <= row['high']
    assert hits / 300 > 0.95 - 3 * (0.95 * 0.05 / 300) ** 0.5


def test_groups_of_ones_own():
    maps = [made(['w'], [x]) for x in (1.0, 2.0, -1.0, -2.0)]
    s = summarize(maps, by_class=[1, 1, 0, 0], min_count=2)
    table = s.to_frame().set_index('class')
    assert dict(table['mean']) == {'0': -1.5, '1': 1.5}
    assert s.classes == ['0', '1']


# ------------------------------------------------- from a model, from files


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


def test_a_pipeline_is_taken(demo, found):
    model, tokenizer = demo
    pipe = TextClassificationPipeline(model=model, tokenizer=tokenizer)
    s = summarize_texts(pipe, None, TEXTS, target=1, min_count=1, progress=False)
    assert s.words == found.words


def test_rows_of_a_sweep_are_maps(demo, tmp_path):
    loaded = (*demo, 'demo')
    explain_dataset(
        TEXTS[:4],
        tmp_path / 'out',
        ['attn_lrp', 'cp_lrp'],
        loaded,
        target=1,
        keep_texts=True,
        progress=False,
    )
    rows = read_sweep(tmp_path / 'out')
    s = summarize(rows[rows.method == 'attn_lrp'], min_count=1)
    assert s.texts == TEXTS[:4]
    direct = summarize(explain(*demo, TEXTS[:4], target=1), min_count=1)
    assert s.words[0] == direct.words[0]
    with pytest.raises(ValueError, match='attn_lrp, cp_lrp'):
        summarize(rows)
    with pytest.raises(ValueError, match='lacks scores'):
        summarize(rows.drop(columns='scores'))
    with pytest.raises(ValueError, match='models a, b'):
        summarize(rows.assign(model=['a', 'b'] * 4))


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
    with pytest.raises(KeyError, match='nowhere'):
        found['nowhere']
    with pytest.raises(TypeError, match='got int'):
        found[3]


# --------------------------------------------------------- what is refused


def units(n=1):
    return {'unit_of_token': list(range(n))}


TWO_MODELS = [
    made(['a'], input_ids=torch.tensor([5])),
    made(['b'], input_ids=torch.tensor([5])),
]
TWO_NAMES = [made(['a'], target=1, label=name) for name in ('yes', 'LABEL_1')]
IMAGE = [made(['0,0'], info={'grid': (1, 1)})]
REFUSED = {
    'nothing': ([], {}, 'at least one'),
    'two vocabularies': (TWO_MODELS, {}, 'two models'),
    'one class with two names': (TWO_NAMES, {}, 'two models'),
    'an image': (IMAGE, {}, 'of an image'),
    'two options': (
        [made(['a'], info={'embeddings': e}) for e in ('word', 'sum')],
        {},
        'embeddings word and sum',
    ),
    'two classes in one': (
        [made(['a']), made(['a'], target=1)],
        {'by_class': False},
        'by_class=True',
    ),
    'groups of two classes': (
        [made(['a']), made(['a'], target=1)],
        {'by_class': ['x', 'y']},
        'such as target=0',
    ),
    'too few groups': ([made(['a'])], {'by_class': []}, 'got 0 for 1'),
    'too few texts': ([made(['a'])], {'texts': []}, 'got 0 texts for 1'),
    'sentences': ([made(['a b'], info=units())], {}, "'a b' is no word"),
    'words as tokens': ([made(['a'], info=units())], {'unit': 'token'}, "unit='token'"),
    'words and tokens': (
        [made(['a'], info=units()), made(['a'])],
        {},
        'the same units',
    ),
    'an unknown unit': ([made(['a'])], {'unit': 'letter'}, "'letter'"),
    'no number': ([made(['a'])], {'min_count': 0}, 'min_count must be'),
    'too rare': ([made(['a'])], {}, 'the most frequent stands in 1'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_averaged_is_named(name):
    maps, options, says = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(says)):
        summarize(maps, **options)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_scores_that_are_not_finite_are_refused(bad):
    maps = [made(['a', 'b']), made(['a', 'b'])]
    maps[1].scores[0] = bad
    with pytest.raises(ValueError, match='map 1 .made. .* not finite'):
        summarize(maps)


def test_what_is_no_list_of_maps_is_refused(demo, of_words):
    (pairs,) = explain_pairs(*demo, [TEXTS[2]])
    for given in (of_words[0], pairs, 'a text', TEXTS, [pairs]):
        with pytest.raises(TypeError, match='Attribution'):
            summarize(given)


def test_texts_that_cannot_be_summarized_are_refused_before_any_work():
    with pytest.raises(ValueError, match='texts is empty'):
        summarize_texts(None, None, [])
    with pytest.raises(TypeError, match='one str'):
        summarize_texts(None, None, 'a text')
    with pytest.raises(TypeError, match='text 1 must be a str, got int'):
        summarize_texts(None, None, ['a', 3])
    with pytest.raises(ValueError, match='there are 2 texts'):
        summarize_texts(None, None, ['a', 'b'])
    with pytest.raises(ValueError, match="'letter'"):
        summarize_texts(None, None, ['a'] * 5, unit='letter')
    with pytest.raises(ValueError, match='one target for all texts'):
        summarize_texts(None, None, ['a'] * 5, target=[0] * 5)


# --------------------------------------------------------------- pictures


def test_beeswarm_has_a_dot_for_each_occurrence(found):
    (ax,) = found.beeswarm(6).axes
    words = found.top(6)['positive'].word
    dots = sum(len(c.get_offsets()) for c in ax.collections)
    assert dots == sum(len(found[w]) for w in words)
    shown = [t.get_text().split('  ')[0] for t in ax.get_yticklabels()]
    assert shown == list(words)


def test_dots_at_one_place_do_not_cover_one_another():
    maps = [made(['w'], [0.5]) for _ in range(30)]
    (ax,) = summarize(maps).beeswarm().axes
    heights = ax.collections[0].get_offsets()[:, 1]
    assert len(set(np.round(heights, 6))) == 30
    assert np.abs(heights).max() <= 0.4 + 1e-9


def test_of_a_frequent_word_some_dots_are_drawn_and_both_ends():
    x = np.linspace(-1, 2, 4 * MOST_DOTS)
    maps = [made(['w'] * len(x), x)] * 5
    (ax,) = summarize(maps).beeswarm().axes
    drawn = np.concatenate([c.get_offsets()[:, 0] for c in ax.collections])
    assert len(drawn) == MOST_DOTS
    assert (drawn.min(), drawn.max()) == (-1, 2)


def test_of_many_classes_those_of_most_texts_are_drawn():
    maps = [made(['w'], [1.0], target=k) for k in range(6) for _ in range(k + 1)]
    s = summarize(maps, min_count=1)
    drawn = [ax.get_title(loc='left') for ax in s.bar().axes]
    assert len(drawn) == MOST_PANELS
    assert drawn[-1] == 'target 5, 6 texts'
    assert len(s.bar(classes=s.classes).axes) == 6
    assert len(s.bar(classes='target 0').axes) == 1


def test_a_page_says_how_many_classes_it_leaves_out(tmp_path):
    maps = [made(['w'], [1.0], target=k) for k in range(6)]
    s = summarize(maps, min_count=1)
    s.save(tmp_path / 'words.html')
    page = (tmp_path / 'words.html').read_text(encoding='utf-8')
    assert page.count('<section>') == MOST_PANELS
    assert '2 more classes not shown' in page
    s.save(tmp_path / 'words.html', classes=s.classes)
    page = (tmp_path / 'words.html').read_text(encoding='utf-8')
    assert page.count('<section>') == 6 and 'not shown' not in page


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow():
    maps = [made(['w', 'v'], [x, 1.0]) for x in (9.0, -9.0, 3.0, -2.0, 1.0)]
    (ax,) = summarize(maps).bar().axes
    arrows = [line.get_marker() for line in ax.lines]
    assert arrows.count('<') == arrows.count('>') == 1


def test_dollars_are_no_mathematics():
    maps = [made(['$a_1$'], [1.0], label='$x^2$', info=units())] * 5
    s = summarize(maps)
    s.bar().canvas.draw()
    s.beeswarm().canvas.draw()


# -------------------------------------------------------------- comparison


def scaled(summary, factor):
    "The same summary in another unit."
    rows = summary.occurrences.assign(score=summary.occurrences.score * factor)
    return type(summary)(rows, summary.texts, 'other', summary.unit, summary.min_count)


def test_r_and_differences_are_those_of_a_plain_loop(demo, of_words, found):
    loo = summarize_texts(*demo, TEXTS, 'loo', 1, min_count=1, progress=False)
    both = compare_summaries(found, loo)
    other = explain(*demo, TEXTS, 'loo', 1, units='word')
    r = both.texts.set_index('text').r
    for i, (a, b) in enumerate(zip(of_words, other)):
        words = ~a.is_special
        want = float(pearson(a.scores[words], b.scores[words]))
        assert np.isclose(r[i], want, atol=1e-3)
    one, two = (
        torch.cat([a.scores[~a.is_special] for a in maps]).double().numpy()
        for maps in (of_words, other)
    )
    gap = one / np.sqrt((one**2).mean()) - two / np.sqrt((two**2).mean())
    (at,) = [i for i, t in enumerate(content(found).word) if t == 'minute']
    row = both.words.set_index('word').loc['minute']
    assert np.isclose(row.difference, gap[at], atol=1e-3)
    assert both.words.difference.abs().is_monotonic_decreasing


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


def test_what_cannot_be_compared_is_named(found):
    words = [made(['a', 'b'])] * 2
    two = summarize(words, min_count=1)
    other = summarize([made(['a', 'c'])] * 2, min_count=1)
    tokens = summarize(words, unit='token', min_count=1)
    classes = summarize([made(['a', 'b'], target=1)] * 2, min_count=1)
    zero = summarize([made(['a', 'b'], [0.0, 0.0])] * 2, min_count=1)
    for second, says in {
        found: 'got 2 texts and 5',
        other: 'text 0 has other words',
        tokens: 'words and of tokens',
        classes: 'the same target',
        zero: 'all scores of a summary are 0',
    }.items():
        with pytest.raises(ValueError, match=says):
            compare_summaries(two, second)
    with pytest.raises(ValueError, match='names='):
        compare_summaries(two, two, names=['one'])
    with pytest.raises(TypeError, match='got list'):
        compare_summaries(two, words)


def test_scatter_names_the_words_furthest_apart():
    maps = random_maps()
    other = random_maps(seed=0)
    for a in other:
        a.scores *= torch.linspace(0.5, 1.5, len(a))
    both = compare_summaries(summarize(maps), summarize(other))
    texts, words = both.scatter(3).axes
    assert sum(b.get_height() for b in texts.patches) == both.texts.r.count()
    named = sorted(t.get_text() for t in words.texts)
    assert named == sorted(both.words.word[:3])


# -------------------------------------------------------------------- page


VOID = {'meta', 'br'}


class Page(HTMLParser):
    "Tags in order, and the text; a tag that is not closed is an error."

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.text = ''
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


EVIL = 'a <script>alert("x")</script> & \'b\' <img src=x onerror=y> film'


@pytest.fixture
def evil(tmp_path):
    "A page of texts, words, classes and a method that would be markup."
    maps = [
        made(['<script>', '"><b>', 'film'], label='<i>', info=units(3))
        for _ in range(5)
    ]
    for a in maps:
        a.method = '<u>'
    path = tmp_path / 'evil.html'
    summarize(maps, texts=['<script> "><b> film'] * 5).save(path)
    return path.read_text(encoding='utf-8')


def test_what_a_text_holds_is_text(demo, tmp_path, evil):
    s = summarize_texts(*demo, [EVIL] * 5, progress=False)
    s.save(tmp_path / 'words.html')
    page = (tmp_path / 'words.html').read_text(encoding='utf-8')
    for one in (page, evil):
        assert not {'script', 'img', 'i', 'u'} & set(Page(one).tags)
    assert '<script>alert("x")</script>' in Page(page).text
    assert '<script>' in Page(evil).text and '<u>' in Page(evil).text
    assert '<i>, 5 texts' in Page(evil).text


def test_a_page_needs_nothing_else(found, tmp_path):
    found.save(tmp_path / 'words.html')
    page = (tmp_path / 'words.html').read_text(encoding='utf-8')
    parsed = Page(page)
    names = {name for name, _ in parsed.attributes}
    assert not names & {'src', 'href', 'srcset', 'action', 'onclick'}
    assert not re.search(r'url\(|@import|https?:', page)
    assert "default-src 'none'" in page


def test_bars_are_as_long_as_means(found):
    block = found._repr_html_()
    widths = re.findall(r'class="(up|down)" x="\S+" y="\S+" width="(\S+)"', block)
    means = found.top(12)['positive']['mean']
    shown = [float(w) * (1 if kind == 'up' else -1) for kind, w in widths]
    ratio = np.array(shown) / means.to_numpy()
    assert np.allclose(ratio, ratio[0], rtol=0.02, atol=0.02 * ratio[0])


def test_a_page_is_for_dark_and_narrow_screens_and_for_paper(found):
    block = found._repr_html_()
    assert '(prefers-color-scheme:dark)' in block
    assert '@container (max-width:34em)' in block
    assert '@media print' in block and 'details-content' in block
    assert block.count('{') == block.count('}')
    assert ':focus-visible' in block


def test_a_comparison_is_a_page_too(found, evil, tmp_path):
    both = compare_summaries(found, scaled(found, 2.0), names=('<s>', 'b'))
    both.save(tmp_path / 'both.html')
    page = (tmp_path / 'both.html').read_text(encoding='utf-8')
    parsed = Page(page)
    assert 's' not in parsed.tags and '<s>' in parsed.text
    assert parsed.tags.count('table') == 2
    assert 'mean r 1.00' in both._repr_html_()


@needs_browser
def test_no_word_of_a_comparison_is_broken_on_a_narrow_page(found, tmp_path):
    both = compare_summaries(found, scaled(found, 2.0), names=('one', 'two'))
    both.save(tmp_path / 'both.html')
    with Chromium(480, 900) as browser:
        browser.width(480)
        browser.open((tmp_path / 'both.html').as_uri())
        heights = browser.js(
            "[...document.querySelectorAll('th, td')].map(e =>"
            " e.clientHeight / parseFloat(getComputedStyle(e).lineHeight))"
        )
        wide = browser.js('document.documentElement.scrollWidth - window.innerWidth')
    heads = heights[: len(both.words.columns)]
    assert max(heads) < 2  # one line each
    assert wide <= 0  # the table scrolls, not the page
