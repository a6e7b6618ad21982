"What the views show, and that a browser shows it: in a narrow window, in light and dark."

import re
from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from conftest import needs_browser

from lrp_loo.records.attribution import Attribution
from lrp_loo.records.attributions import Generation
from lrp_loo.records.pairs import Pairs
from lrp_loo.records.attributions import Attributions, compare
from lrp_loo.records.display import score_colour, terminal_text
from lrp_loo.reports.summary import compare_summaries
from lrp_loo.reports.summary import summarize


CSS = (files('lrp_loo') / 'assets' / 'records.css').read_text('utf-8')
PALETTE = {  # page → name → colour
    page: dict(re.findall(r'--lrp-([\w-]+):(#\w+)', variables))
    for page, variables in re.findall(r'{% set (\w+) %}(.*?){%', CSS)
}


def of(scores, method='by hand', special=(0, -1), tokens='[CLS] a fine film [SEP]'):
    "An explanation by hand; `special`: places of special tokens."
    tokens = tokens.split()
    is_special = torch.zeros(len(tokens), dtype=torch.bool)
    is_special[list(special)] = True
    scores = torch.tensor(scores)
    return Attribution(tokens, scores, is_special, 1, 2.5, method, 'positive')


DARK = of([-9.0, 0.1, 2.0, 0.5, 3.0])  # its [CLS] is larger than every word


def span_of(word, html):
    return re.search(rf'<span title="{re.escape(word)} [^>]*>', html)[0]


def test_r_of_a_map_without_differences_is_not_a_number_that_is_shown():
    flat, loo = of([5.0, 1.0, 1.0, 1.0, 0.0]), of([0.0, 2.0, 1.0, 4.0, 0.0], 'loo')
    page = compare(flat, loo)._repr_html_()
    assert 'r with loo undefined' in page and 'nan' not in page


def luminance(rgb):
    "Of WCAG 2."
    parts = [c / 255 for c in rgb]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def rgb_of(name, page='dark'):
    digits = PALETTE[page][name][1:]
    digits = digits if len(digits) == 6 else ''.join(2 * d for d in digits)
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


MIX = r'color-mix\(in srgb,var\(--lrp-(fill-\w+),rgb\(.*?\)\) ([\d.e-]+)%'


@pytest.mark.parametrize('page', PALETTE)
def test_tokens_are_readable_on_light_and_dark_paper(page):
    "On what a browser makes of their second background."
    for word in ('a', 'fine', 'film'):
        end, share = re.search(MIX, span_of(word, DARK._repr_html_())).groups()
        paper, share = rgb_of('paper', page), float(share) / 100
        mixed = [share * c + (1 - share) * p for c, p in zip(rgb_of(end, page), paper)]
        assert contrast(mixed, rgb_of('ink', page)) > 5


@pytest.mark.parametrize('page', PALETTE)
def test_the_palette_can_be_seen(page):
    "Text 4.5 : 1, drawings 3 : 1; one palette for all views."
    for name in ('up', 'down', 'dim', 'ink', 'line'):
        least = 3 if name == 'line' else 4.5
        assert contrast(rgb_of(name, page), rgb_of('paper', page)) > least, name


def test_a_terminal_can_be_read_on_a_dark_and_on_a_light_ground():
    "Letters on both; a block is never pale, which would shine on a dark ground."
    text = terminal_text(
        of([0.0, 10.0, 5.1, 4.9, 0.0], tokens='[CLS] a fine film [SEP]')
    )
    blocks = re.findall(r'\x1b\[48;2;([\d;]*)m\x1b\[30m(\w+)', text)
    letters = re.findall(r'\x1b\[38;2;([\d;]*)m(\w+)', text)
    assert [word for _, word in blocks + letters] == ['a', 'fine', 'film']
    for colour, _ in blocks:
        assert 4.5 < contrast(tuple(map(int, colour.split(';'))), (0, 0, 0)) < 10
    for ground in ((0, 0, 0), (255, 255, 255)):
        for colour, _ in letters:
            assert contrast(tuple(map(int, colour.split(';'))), ground) > 4.5


# --- in a browser


def generated():
    "Three tokens behind a prompt of two."
    said, scores = ['A', 'Ġquiet'], [[0.5, -1.0], [0.2, 0.4, 2.0], [-3.0, 0, 1.5, 0]]
    steps = []
    for label, row in zip(['Ġfilm', 'Ġthat', 'Ġstays'], scores):
        none = torch.zeros(len(said), dtype=torch.bool)
        steps.append(Attribution(said, torch.tensor(row), none, 7, 3.0, 'loo', label))
        said = [*said, label]
    return Generation(steps)


def with_intervals():
    a = of([0.1, 0.2, 2.0, -0.5, 0.0])
    ends = dict(low=[None, -0.2, 1.0, -1.0, None], high=[None, 0.6, 3.0, 0.5, None])
    return replace(a, info=ends | dict(confidence=0.9))


def many_pairs():
    tokens = [f'lighthouse{i}' for i in range(30)]
    none = torch.zeros(30, dtype=torch.bool)
    main = Attribution(tokens, torch.linspace(-1, 2, 30), none, 1, 0.5, 'removal')
    scores = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))
    return Pairs(main, torch.triu(scores, 1) + torch.triu(scores, 1).T)


def of_words():
    "The summary of two texts, by a method with other scores."
    scores = torch.tensor([0.0, -1.0, 0.3, 2.0, 0.0]) / 7
    maps = [WIDE, replace(WIDE, scores=scores)]
    others = [replace(a, scores=a.scores + a.scores.sin(), method='ig') for a in maps]
    return [summarize(some, min_count=2) for some in (maps, others)]


WIDE = of(
    [0.0, 0.1234, 1.234, -0.0567, 0.0], tokens='[CLS] but forgettable minutes [SEP]'
)
LONG = of([0.1] * 40, tokens=' '.join(['[CLS]', *['word'] * 38, '[SEP]']))
VIEWS = dict(
    attribution=DARK,
    intervals=with_intervals(),
    list=Attributions([DARK, LONG]),
    comparison=compare(DARK, replace(DARK, method='loo')),
    generation=generated(),
    pairs=many_pairs(),
    reasons=Attributions([WIDE, LONG]).reasons(),
    words=of_words()[0],
    compared=compare_summaries(*of_words()),
)


@pytest.fixture
def shown(browser, tmp_path):
    "Opens a record's file, 420 pixels wide, with all of it unfolded."

    def open_it(record, scheme='light'):
        path = tmp_path / 'a.html'
        record.save(path)
        browser.prefers(scheme)
        browser.width(420)
        browser.open(path.as_uri())
        browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
        return browser

    return open_it


def colour_of(c, selector):
    "(red, green, blue) from 0 to 255, of a background."
    style = f"getComputedStyle({selector}).backgroundColor"
    said = re.findall(r'[\d.]+', c.js(style).replace('srgb', ''))
    scale = 255 if c.js(style).startswith('color(') else 1
    return tuple(round(scale * float(part)) for part in said[:3])


@needs_browser
@pytest.mark.parametrize('name', VIEWS)
@pytest.mark.parametrize('scheme', [*PALETTE, 'print'])
def test_nothing_is_cut_in_a_narrow_window_light_or_dark(shown, name, scheme):
    "What is wider than its box can be scrolled to with the keyboard, if not on paper."
    c = shown(VIEWS[name], scheme)
    assert c.js('document.documentElement.scrollWidth') <= 420
    seen = 'true' if scheme == 'print' else "!e.closest('.scroll[tabindex]')"
    cut = (
        "[...document.querySelectorAll('.lrp-loo *')].filter(e => e.checkVisibility()"
        f" && e.getBoundingClientRect().right > 420 && {seen})"
        ".map(e => e.outerHTML)"
    )
    assert c.js(cut) == []
    paper = rgb_of('paper', scheme.replace('print', 'light'))
    assert colour_of(c, "document.querySelector('.lrp-loo')") == paper
    assert c.errors == c.offline == []


@needs_browser
def test_a_list_of_one_method_has_one_scale_and_methods_have_their_own(shown):
    weak = of([0.0, 0.1, 0.5, -0.2, 0.0])
    fine = "document.querySelectorAll('.map')[{}].querySelectorAll('.t')[2]".format
    c = shown(Attributions([DARK, weak]))
    common = [colour_of(c, fine(k)) for k in (0, 1)]
    assert common == [score_colour(score, 2.0) for score in (2.0, 0.5)]
    c = shown(compare(DARK, replace(weak, method='loo')))
    assert [colour_of(c, fine(k)) for k in (0, 1)] == [score_colour(1.0, 1.0)] * 2


@needs_browser
def test_a_row_of_a_generation_has_the_strongest_tokens_in_their_colours(shown):
    g = generated()
    c = shown(g)
    row = (
        "document.querySelectorAll('.steps tbody tr')[{}].querySelectorAll('.t')".format
    )
    for step, a in enumerate(g):
        top = a.top(5)
        assert c.js(f'{row(step)}.length') == len(top)
        for k, token in enumerate(top):
            want = score_colour(token.score, abs(top[0].score))
            found = colour_of(c, f'{row(step)}[{k}]')
            assert max(abs(x - y) for x, y in zip(found, want)) <= 2, (step, k)
            title = c.js(f'{row(step)}[{k}].title')
            name = a.tokens[token.place]  # as in the vocabulary
            assert title.startswith(f'{name} {token.score:+.4f}')


@needs_browser
def test_intervals_are_seen_without_a_pointer(shown):
    c = shown(with_intervals())
    rows = "[...document.querySelectorAll('.numbers tr')].map(r => r.innerText)"
    rows = [' '.join(row.split()) for row in c.js(rows)]
    assert rows == ['fine +2 +1 to +3', 'film -0.5 -1 to +0.5', 'a +0.2 -0.2 to +0.6']
    line = c.js("document.querySelector('.ends').getBoundingClientRect().toJSON()")
    bar = c.js("document.querySelector('.bar').getBoundingClientRect().toJSON()")
    # the axis goes from −1 to 3
    assert line['left'] == pytest.approx(bar['left'] + bar['width'] / 2, abs=2)
    assert line['right'] == pytest.approx(bar['right'], abs=2)
