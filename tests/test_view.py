"What the views show of special tokens: they are left out of the scale and drawn apart."

import re

import matplotlib.pyplot as plt
import pytest
import torch

from lrp_loo.core import Attribution
from lrp_loo.view import compare, score_colours, terminal_text

STRONGEST = score_colours(torch.tensor([1.0]))[0]


def of(scores, method='by hand', special=(0, -1), tokens='[CLS] a fine film [SEP]'):
    "An explanation by hand; `special`: places of special tokens."
    tokens = tokens.split()
    is_special = torch.zeros(len(tokens), dtype=torch.bool)
    is_special[list(special)] = True
    return Attribution(
        tokens, torch.tensor(scores), is_special, 1, 2.5, method, 'positive'
    )


@pytest.fixture
def dark():
    return of([-9.0, 0.1, 2.0, 0.5, 3.0])  # its [CLS] is larger than every word


def span_of(word, html):
    return re.search(rf'<span title="{re.escape(word)} [^>]*>', html)[0]


def test_the_largest_word_has_the_strongest_colour_in_html(dark):
    assert f'background:rgb{STRONGEST}' in span_of('fine', dark._repr_html_())


def test_special_tokens_have_no_colour_for_their_size_in_html(dark):
    page = dark._repr_html_()
    for token in ('[CLS]', '[SEP]'):
        assert 'background:var(--lrp-paper,#fff);' in span_of(token, page)
    assert 'left out of the scale' in page


def test_the_legend_ends_at_the_largest_word(dark):
    page = dark._repr_html_()
    assert 'lowers it −2 ' in page
    assert ' +2 raises it' in page


def test_special_tokens_alone_keep_their_colours():
    page = of([1.0, -0.5], special=(0, 1), tokens='[CLS] [SEP]')._repr_html_()
    assert f'background:rgb{STRONGEST}' in span_of('[CLS]', page)
    assert 'left out of the scale' not in page


def test_a_comparison_names_the_largest_word(dark):
    assert 'largest 2<' in compare(dark)._repr_html_()


def test_r_of_two_words_is_not_shown():
    words = dict(special=(0,), tokens='[CLS] fine film')
    page = compare(
        of([5.0, 1.0, 2.0], **words), of([0.0, 2.0, 1.0], 'loo', **words)
    )._repr_html_()
    assert 'r with loo undefined (2 content tokens)' in page
    assert not re.search(r'r with loo [+-]', page)


def test_r_of_a_map_without_differences_is_not_a_number_that_is_shown():
    page = compare(
        of([5.0, 1.0, 1.0, 1.0, 0.0]), of([0.0, 2.0, 1.0, 4.0, 0.0], 'loo')
    )._repr_html_()
    assert 'r with loo undefined' in page
    assert 'nan' not in page


def test_bars_keep_the_axis_of_the_words(dark):
    fig = dark.plot()
    low, high = fig.axes[0].get_ylim()
    assert low > -1
    assert high < 3
    plt.close(fig)


def test_a_special_bar_that_leaves_the_axis_names_its_value(dark):
    fig = dark.plot()
    said = ' '.join(t.get_text() for t in fig.axes[0].texts)
    assert '-9' in said
    assert '+3' in said
    plt.close(fig)


def test_the_largest_word_has_the_strongest_colour_in_a_terminal(dark):
    assert f"48;2;{';'.join(map(str, STRONGEST))}m\x1b[30mfine" in terminal_text(dark)


def test_special_tokens_have_no_background_in_a_terminal(dark):
    before = terminal_text(dark).split('[CLS]')[0]
    assert '48;2' not in before


# dark pages, print


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


def rgb_of(name, style):
    digits = re.search(rf'--lrp-{name}:#([0-9a-f]+)', style)[1]
    digits = digits if len(digits) == 6 else ''.join(2 * d for d in digits)
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


def mixed(style, paper):
    "What a browser makes of a token's second background."
    end, share = re.search(
        r'color-mix\(in srgb,rgb\((.*?)\) ([\d.e-]+)%', style
    ).groups()
    share = float(share) / 100
    return tuple(
        share * int(c) + (1 - share) * p for c, p in zip(end.split(','), paper)
    )


@pytest.mark.parametrize('word', ['a', 'fine', 'film'])
def test_tokens_are_readable_on_light_and_dark_paper(dark, word):
    page = dark._repr_html_()
    style = span_of(word, page)
    assert contrast(mixed(style, (255, 255, 255)), (17, 17, 17)) > 5
    paper, ink = rgb_of('paper', page), rgb_of('ink', page)
    assert contrast(mixed(style, paper), ink) > 5


def test_lines_and_special_tokens_are_seen_on_dark_paper(dark):
    page = dark._repr_html_()
    paper = rgb_of('paper', page)
    for name in ('up', 'down', 'dim'):
        assert contrast(rgb_of(name, page), paper) > 4.5


def test_on_white_both_ways_to_say_a_colour_agree(dark):
    style = span_of('fine', dark._repr_html_())
    plain = re.search(r'background:rgb\((.*?)\)', style)[1]
    for said, made in zip(plain.split(','), mixed(style, (255, 255, 255))):
        assert abs(int(said) - made) <= 1


def test_a_page_says_itself_that_it_is_light(dark):
    page = dark._repr_html_()
    assert '@media screen and (prefers-color-scheme:dark)' in page
    for chosen in ('data-jp-theme-light=true', 'data-md-color-scheme=default'):
        assert f':not([{chosen}])' in page
    assert 'print-color-adjust:exact' in page


def test_every_box_turns_dark_with_its_page(dark):
    for page in (dark._repr_html_(), compare(dark)._repr_html_()):
        assert page.startswith('<div class="lrp-loo"')
        assert page.count('<style>') == page.count('</style>') == 1
        style = re.search('<style>(.*?)</style>', page)[1]
        assert style.count('{') == style.count('}')
