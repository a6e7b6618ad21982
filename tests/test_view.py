"What the views show of special tokens: they are left out of the scale and drawn apart."

import re

import pytest
import torch

from lrp_loo.core import Attribution
from lrp_loo.views import compare
from lrp_loo.views.html import PALETTE


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


MIX = r'color-mix\(in srgb,rgb\((.*?)\) ([\d.e-]+)%'


@pytest.mark.parametrize('page', PALETTE)
def test_tokens_are_readable_on_light_and_dark_paper(page):
    "On what a browser makes of their second background."
    for word in ('a', 'fine', 'film'):
        end, share = re.search(MIX, span_of(word, DARK._repr_html_())).groups()
        paper, share = rgb_of('paper', page), float(share) / 100
        mixed = [
            share * int(c) + (1 - share) * p for c, p in zip(end.split(','), paper)
        ]
        assert contrast(mixed, rgb_of('ink', page)) > 5


@pytest.mark.parametrize('page', PALETTE)
def test_the_palette_can_be_seen(page):
    "Text 4.5 : 1, drawings 3 : 1; one palette for all views."
    for name in ('up', 'down', 'dim', 'ink', 'line'):
        least = 3 if name == 'line' else 4.5
        assert contrast(rgb_of(name, page), rgb_of('paper', page)) > least, name


def test_what_may_be_zero_is_pale():
    a = of([0.1, 2.0, 0.5], special=(0,), tokens='[CLS] fine film')
    a.info |= dict(low=[None, 1.0, -1.0], high=[None, 3.0, 1.0], confidence=0.9)
    page = a._repr_html_()
    assert ' pale"' in span_of('film', page)
    assert ' pale"' not in span_of('fine', page)
    assert 'LOO in [-1, +1] (90%)' in span_of('film', page)


def test_every_box_turns_dark_with_its_page():
    for page in (DARK._repr_html_(), compare(DARK)._repr_html_()):
        assert page.startswith('<div class="lrp-loo"')
        assert page.count('<style>') == page.count('</style>') == 1
        style = re.search('<style>(.*?)</style>', page)[1]
        assert style.count('{') == style.count('}')
        assert '(prefers-color-scheme:dark)' in style
        for chosen in ('data-jp-theme-light=true', 'data-md-color-scheme=default'):
            assert f':not([{chosen}])' in style
