"""The interactive page in a browser: what it shows is what the methods gave."""

import re
from contextlib import contextmanager
from html import escape
from urllib.parse import unquote

import chromium
import pytest
import torch
from conftest import needs_browser, shallow_demo

from lrp_loo import explain
from lrp_loo.reports.page import explain_page, page_data
from lrp_loo.stats import pearson
from lrp_loo.records.display import display_text, exactness_notes, score_colours

pytestmark = needs_browser
TEXT = 'a slow start , but the <b>last</b> act is a quiet triumph'
STATE = "[...document.querySelectorAll('#tokens0 span')].map(e => e.title)"
BELOW = "[...document.querySelectorAll('#tokens1 span')].map(e => e.title)"


@pytest.fixture(scope='module')
def demo():
    "Four layers have sixteen sets."
    return shallow_demo(layers=4)


@pytest.fixture(scope='module')
def page(demo, tmp_path_factory):
    path = tmp_path_factory.mktemp('page') / 'out.html'
    path.write_text(explain_page(*demo, TEXT), encoding='utf-8')
    with chromium.Chromium() as c:
        yield c, path.as_uri()


def opened(page, state=''):
    c, url = page
    c.open('about:blank')
    c.open(url + state)
    return c


def near(shown, a):
    "Three significant digits are shown."
    outside = ' (special token, outside the scale)'
    said = [t.removesuffix(outside) for t in shown]
    assert [t.endswith(', exact') for t in said] == [
        how == ', exact' for how in exactness_notes(a)
    ]
    words = [t.split(', e')[0].rsplit(' ', 1)[1] for t in said]
    scores = torch.tensor([float(w.replace('−', '-')) for w in words])
    assert torch.allclose(scores, a.scores, rtol=6e-3, atol=6e-4), (shown, a)


NAME = "document.querySelector('#name0').textContent"
CONSOLE = '#tab=console'


def explained(demo, method, **options):
    return explain(*demo, [TEXT], method=method, **options)[0]


def test_first_map_is_auto_and_the_console_has_loo_below(page, demo):
    c = opened(page, '#method=nonsense&bypass=99&below=x')
    assert not c.js("document.querySelector('#second').checkVisibility()")
    c.click('#tab-console')
    assert c.js("document.querySelector('#second').checkVisibility()")
    a, loo = (explained(demo, m) for m in ('auto', 'loo'))
    assert a.spent in c.js(NAME) and not a.exact
    near(c.js(STATE), a)
    near(c.js(BELOW), loo)
    r = float(pearson(a.scores[~a.is_special], loo.scores[~a.is_special]))
    shown = c.js(NAME).split('r with loo ')[1].replace('−', '-')
    assert float(shown) == pytest.approx(r, abs=5e-3)  # three digits
    assert a.label in c.js('document.title')
    # the sentence is shown as text, and nothing is fetched
    said = c.js("document.querySelector('#tokens0').textContent")
    assert said == f'[CLS] {TEXT} [SEP]'
    bold = "[...document.querySelectorAll('b')].map(b => b.textContent.trim())"
    assert 'last' not in c.js(bold)
    assert c.js("document.querySelectorAll('.text b').length") == 0
    assert c.errors == c.offline == []


def test_methods_switch_by_mouse(page, demo):
    c = opened(page, CONSOLE)
    c.click('[name=method][value=ig]')
    near(c.js(STATE), explained(demo, 'ig'))
    assert c.js("document.querySelector('#layers').disabled") is True
    assert 'method=ig' in c.js('location.hash')


def test_layers_switch_by_mouse(page, demo):
    c = opened(page, CONSOLE + '&method=lrp')
    for layer in (1, 3):
        c.click(f"#boxes input[value='{layer}']")
    near(c.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=[1, 3]))
    assert 'layer 2, 4' in c.js(NAME)
    assert c.js("document.querySelector('#preset').value") == 'own'
    c.click("#boxes input[value='3']")
    chosen = "document.querySelector('#preset').selectedOptions[0].textContent"
    assert c.js(chosen) == 'layer 2 alone'


def test_by_keyboard_alone(page, demo):
    c = opened(page)
    focus = (
        "document.activeElement.value || document.activeElement.id ||"
        " document.activeElement.textContent"
    )

    def pressed(*keys):
        for key in keys:
            c.key(key)
        return c.js(focus)

    assert pressed('Tab') == 'tab-answer'
    assert pressed('Tab') == 'a'  # special tokens are the console's
    assert c.js("document.querySelector('#said').textContent").startswith('a: ')
    assert pressed('Home', 'Tab') == 'auto'
    pressed('ArrowDown')
    assert c.js('location.hash').startswith('#method=loo')
    near(c.js(STATE), explained(demo, 'loo'))
    c.js("document.querySelector('#tab-answer').focus()")
    assert pressed('ArrowRight') == 'tab-console'
    assert pressed('Tab') == 'a'
    c.key('ArrowRight', 2)
    assert c.js(focus) == 'start'
    assert c.js("document.querySelector('#said').textContent").startswith('start: ')
    assert pressed('End') == '[SEP]'
    assert pressed('ArrowRight') == '[SEP]'  # there is nothing further
    assert pressed('Home') == '[CLS]'
    assert pressed('Tab') == 'a'  # of the row below
    assert pressed('Tab') == 'loo'
    pressed('ArrowDown', 'ArrowDown')
    assert pressed('ArrowDown') == 'attn_lrp…cp_lrp'
    pressed('Tab')
    assert c.js('document.activeElement.id') == 'preset'
    pressed('ArrowDown')
    near(c.js(STATE), explained(demo, 'cp_lrp'))  # the next entry: all layers
    assert pressed('Tab') == '0'
    pressed(' ')
    near(c.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=range(1, 4)))
    c.key('Tab', 4)
    assert c.js('document.activeElement.id') == 'below'
    assert c.errors == []


def test_the_first_tab_is_for_whoever_knows_no_method(page, demo):
    c = opened(page)
    a = explained(demo, 'auto')
    said = c.js("document.querySelector('h1').textContent")
    assert said.startswith(f"The model's answer: {a.label}, with a probability of")
    assert float(said.split()[-2]) == pytest.approx(100 * a.probability, abs=0.06)
    # special tokens, layers and r are not seen, though they are there
    seen = (
        "[...document.querySelectorAll('#tokens0 span')].map(e => e.checkVisibility())"
    )
    assert c.js(seen) == a.is_content.tolist()
    for part in ('#layers', '#below', '#what', '.switched', '#name0 .lab'):
        assert not c.js(f"document.querySelector('{part}').checkVisibility()"), part
    # the strongest stand below in numbers, and one of them in a sentence
    rows = c.js(
        "[...document.querySelectorAll('#strongest tr')].map(r => r.innerText.split('\\t'))"
    )
    top = a.top(8)
    assert [row[0] for row in rows] == [a_word(a, t) for t in top]
    numbers = [float(row[-1].replace('−', '-')) for row in rows]
    assert numbers == pytest.approx([t.score for t in top], rel=6e-3, abs=6e-4)
    unit = c.js("document.querySelector('#unit').textContent")
    assert unit.startswith(f'“{a_word(a, top[0])}”') and 'without it the logit' in unit
    c.click('[name=method][value=cp_lrp]')
    unit = c.js("document.querySelector('#unit').textContent")
    assert unit.endswith('CP-LRP attributes this much of the logit to it.')
    assert c.js("document.querySelector('#methods').innerText").count('Leaves out') == 2


def a_word(a, token):
    "As the reader wrote it."
    return display_text(a)[token.place][1]


def test_inside_another_page_it_complains_of_nothing(page, tmp_path):
    c, url = page
    text = unquote(url.removeprefix('file://'))
    with open(text, encoding='utf-8') as f:
        inner = escape(f.read())
    outer = tmp_path / 'outer.html'
    outer.write_text(f'<iframe srcdoc="{inner}" width="900" height="700"></iframe>')
    c.open(outer.as_uri())
    inside = "document.querySelector('iframe').contentDocument"
    c.js(f"{inside}.querySelector('[value=cp_lrp]').click()")
    assert 'CP-LRP' in c.js(f"{inside}.querySelector('#name0').textContent")
    assert c.errors == []


def test_the_address_says_what_is_shown(page, demo):
    c = opened(page, '#method=lrp&bypass=0,2&below=cp_lrp')
    near(c.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=[0, 2]))
    near(c.js(BELOW), explained(demo, 'cp_lrp'))


@contextmanager
def page_at(path, *asked, state='', **options):
    "A browser at the page of a text of one's own."
    path.write_text(explain_page(*asked, **options), encoding='utf-8')
    with chromium.Chromium() as c:
        c.open(path.as_uri() + state)
        yield c


def test_narrow(demo, tmp_path):
    methods = ['attn_lrp', 'cp_lrp']
    with page_at(tmp_path / 'a.html', *demo, TEXT, method=methods) as c:
        c.width(360)
        c.open((tmp_path / 'a.html').as_uri())
        assert c.js('document.documentElement.scrollWidth') <= 360
        assert c.js("document.querySelector('#below').value") == ''
        assert c.errors == []


def test_a_long_text_offers_the_sweeps(demo, tmp_path):
    text = ' '.join(['slow'] * 130)
    with page_at(tmp_path / 'a.html', *demo, text, method=['rollout']) as c:
        for off in ('#boxes input', '#preset option[value=own]'):
            assert c.js(f"document.querySelector('{off}').disabled") is True
        c.js(
            "(() => { const p = document.querySelector('#preset'); p.value ="
            " '0,1'; p.dispatchEvent(new Event('change')) })()"
        )
        options = dict(method='attn_lrp', bypass_softmax=[0, 1])
        near(c.js(STATE), explain(*demo, text, **options)[0])
        assert c.errors == []


def test_special_tokens_do_not_set_the_scale(demo, tmp_path, monkeypatch):
    monkeypatch.setattr('lrp_loo.reports.page.MAX_FOR_ALL_SETS', (1, 128))
    made = page_data(*demo, TEXT, method=['loo', 'removal'])
    for scores in (*made['methods'].values(), *made['sets'].values()):
        scores[0] = 50.0  # a [CLS] that would hide every word
    monkeypatch.setattr('lrp_loo.reports.page.page_data', lambda *a, **kw: made)
    (a,) = explain(*demo, [TEXT], method='removal')
    words = ~a.is_special
    largest = float(a.scores[words].abs().max())
    strongest = int(a.scores.where(words, 0).abs().argmax())
    want = score_colours(a.scores, largest)[strongest]
    with page_at(tmp_path / 'a.html', *demo, TEXT, state='#method=removal') as c:
        shown = c.js(
            "[...document.querySelectorAll('#tokens0 span')].map(e =>"
            " getComputedStyle(e).backgroundColor)"
        )
        mixed = re.findall(r'[\d.]+', shown[strongest].removeprefix('color(srgb '))
        assert tuple(round(255 * float(c)) for c in mixed) == want
        assert f'largest {largest:.3g}' in c.js(NAME)
