"""The interactive page in a browser: what it shows is what the methods gave."""

import re
from html import escape

import pytest
import torch
from conftest import needs_browser, shallow_demo

from lrp_loo import explain
from lrp_loo.records.display import (
    NO_REASON,
    display_text,
    exactness_notes,
    score_colour,
)
from lrp_loo.reports.page import explain_page, page_data
from lrp_loo.core.stats import pearson

pytestmark = needs_browser
TEXT = 'a slow start , but the <b>last</b> act is a quiet triumph of very plain words and deeds'
STATE = "[...document.querySelectorAll('#tokens span')].map(e => e.title)"
NAME = "document.querySelector('#name').textContent"
CHOOSE = (
    "(() => {{ const s = document.querySelector('#set'); s.value = '{}';"
    " s.dispatchEvent(new Event('change')) }})()"
).format


@pytest.fixture(scope='module')
def demo():
    return shallow_demo(layers=4)


@pytest.fixture(scope='module')
def path(demo, tmp_path_factory):
    path = tmp_path_factory.mktemp('page') / 'out.html'
    path.write_text(explain_page(*demo, TEXT), encoding='utf-8')
    return path


@pytest.fixture
def page(browser, path):
    browser.open(path.as_uri())
    return browser


def near(shown, a):
    "Three significant digits are shown."
    said = [re.sub(r' \(.*outside the scale\)', '', t) for t in shown]
    assert [t.endswith(', exact') for t in said] == [
        how == ', exact' for how in exactness_notes(a)
    ]
    words = [t.split(', e')[0].rsplit(' ', 1)[1] for t in said]
    scores = torch.tensor([float(w.replace('−', '-')) for w in words])
    assert torch.allclose(scores, a.scores, rtol=6e-3, atol=6e-4), (shown, a)


def explained(demo, method, **options):
    return explain(*demo, [TEXT], method=method, **options)[0]


def test_the_page_opens_with_auto_and_its_r_with_loo(page, demo):
    a, loo = (explained(demo, m) for m in ('auto', 'loo'))
    assert a.spent in page.js(NAME) and not a.exact
    near(page.js(STATE), a)
    r = float(pearson(a.scores[~a.is_special], loo.scores[~a.is_special]))
    shown = page.js(NAME).split('r with loo ')[1].replace('−', '-')
    assert float(shown) == pytest.approx(r, abs=5e-3)  # three digits
    answer = page.js("document.querySelector('h1').textContent")
    assert answer.startswith(f"The model's answer: {a.label}, with a probability of")
    assert float(answer.split()[-1]) == pytest.approx(a.probability, abs=6e-4)
    # the sentence is shown as text, and nothing is fetched
    said = page.js("document.querySelector('#tokens').textContent")
    assert said == f'[CLS] {TEXT} [SEP]'
    assert page.js("document.querySelectorAll('.text b').length") == 0
    assert page.errors == page.offline == []


def test_methods_and_layers_switch_by_mouse(page, demo):
    page.click('[name=method][value=ig]')
    near(page.js(STATE), explained(demo, 'ig'))
    layers = "document.querySelector('#layers').checkVisibility()"
    assert not page.js(layers)
    page.click('[name=method][value=lrp]')
    assert page.js(layers)
    near(page.js(STATE), explained(demo, 'attn_lrp'))
    for name, bypass in {
        'the first 2': [0, 1],
        'the last 1': [3],
        'layer 2 alone, from 0': [2],
        'all (CP-LRP)': range(4),
    }.items():
        page.js(CHOOSE(name))
        near(page.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=bypass))
        assert name in page.js(NAME)


def test_by_keyboard_alone(page, demo):
    focus = "document.activeElement.value || document.activeElement.textContent"

    def pressed(*keys):
        for key in keys:
            page.key(key)
        return page.js(focus)

    said = "document.querySelector('#said').textContent"
    assert pressed('Tab') == '[CLS]' and page.js(said).startswith('[CLS] ')
    assert pressed('ArrowRight', 'ArrowRight') == 'slow'
    assert page.js(said).startswith('slow ')
    assert pressed('End') == pressed('ArrowRight') == '[SEP]'  # there is no further one
    assert pressed('Home') == '[CLS]'
    assert pressed('Tab') == 'auto'
    pressed('ArrowDown')
    near(page.js(STATE), explained(demo, 'loo'))
    assert page.errors == []


def test_the_strongest_stand_in_numbers_and_one_in_a_sentence(page, demo):
    unit = "document.querySelector('#unit').textContent"

    def check(a):
        top, shown = a.top(8), display_text(a)
        rows = page.js(
            "[...document.querySelectorAll('#strongest tr')].map(r => r.innerText.split('\\t'))"
        )
        assert [row[0].partition(' (')[0] for row in rows] == [
            shown[t.place][1] for t in top
        ]
        numbers = [float(row[-1].replace('−', '-')) for row in rows]
        assert numbers == pytest.approx([t.score for t in top], rel=6e-3, abs=6e-4)
        assert page.js(unit).startswith(f'“{shown[a.largest.place][1]}”')
        return rows

    assert check(explained(demo, 'auto')) == []  # all are below 5 % of the lead
    assert 'without it the logit' in page.js(unit)
    assert page.js(unit).endswith(f'So {NO_REASON}.')
    page.click('[name=method][value=cp_lrp]')
    assert len(check(explained(demo, 'cp_lrp'))) == 8
    assert page.js(unit).endswith('CP-LRP attributes this much of the logit to it.')


def test_inside_another_page_and_narrow_it_complains_of_nothing(browser, path):
    inner = escape(path.read_text(encoding='utf-8'))
    outer = path.with_name('outer.html')
    outer.write_text(f'<iframe srcdoc="{inner}" width="900" height="700"></iframe>')
    browser.open(outer.as_uri())
    inside = "document.querySelector('iframe').contentDocument"
    browser.js(f"{inside}.querySelector('[value=cp_lrp]').click()")
    assert 'CP-LRP' in browser.js(f"{inside}.querySelector('#name').textContent")
    browser.width(360)
    browser.open(path.as_uri())
    assert browser.js('document.documentElement.scrollWidth') <= 360
    browser.width(1000)
    assert browser.errors == []


def test_special_tokens_do_not_set_the_scale(demo, browser, tmp_path, monkeypatch):
    made = page_data(*demo, TEXT, method=['cp_lrp'])
    made['methods']['cp_lrp'][0] = 50.0  # a [CLS] that would hide every word
    monkeypatch.setattr('lrp_loo.reports.page.page_data', lambda *a, **kw: made)
    (a,) = explain(*demo, [TEXT], method='cp_lrp')
    strongest = a.top(1)[0]
    path = tmp_path / 'a.html'
    path.write_text(explain_page(*demo, TEXT), encoding='utf-8')
    browser.open(path.as_uri())
    shown = browser.js(
        "[...document.querySelectorAll('#tokens span')].map(e =>"
        " getComputedStyle(e).backgroundColor)"
    )
    mixed = re.findall(r'[\d.]+', shown[strongest.place].removeprefix('color(srgb '))
    want = score_colour(strongest.score, abs(strongest.score))
    assert tuple(round(255 * float(c)) for c in mixed) == want
    assert f'largest {abs(strongest.score):.3g}' in browser.js(NAME)
