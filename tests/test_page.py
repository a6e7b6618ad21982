"""The interactive page in a browser: what it shows is what the methods gave."""

import os

import chromium
import pytest
import torch
from conftest import needs_browser, shallow_demo

from lrp_loo import explain
from lrp_loo.reports.page import explain_page, page_data
from lrp_loo.stats import pearson
from lrp_loo.views.html import score_colours

pytestmark = needs_browser
TEXT = 'a slow start , but the <b>last</b> act is a quiet triumph'
STATE = "[...document.querySelectorAll('#tokens0 span')].map(e => e.title)"
BELOW = "[...document.querySelectorAll('#tokens1 span')].map(e => e.title)"


@pytest.fixture(scope='module')
def shallow():
    "Three layers, for long texts."
    return shallow_demo(layers=3)


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


OUTSIDE = ' (special token, outside the scale)'


def score(title):
    return float(title.removesuffix(OUTSIDE).rsplit(' ', 1)[1].replace('−', '-'))


def scores(titles):
    return torch.tensor([score(t) for t in titles])


def near(shown, a):
    "Three significant digits are shown."
    assert torch.allclose(scores(shown), a.scores, rtol=6e-3, atol=6e-4), (shown, a)


NAME = "document.querySelector('#name0').textContent"


def explained(demo, method, **options):
    return explain(*demo, [TEXT], method=method, **options)[0]


def test_first_view_is_attn_lrp_above_loo(page, demo):
    c = opened(page)
    near(c.js(STATE), explained(demo, 'attn_lrp'))
    near(c.js(BELOW), explained(demo, 'loo'))


def test_the_sentence_is_shown_as_text(page):
    c = opened(page)
    assert (
        c.js("document.querySelector('#tokens0').textContent")
        == '[CLS] a slow start , but the <b>last</b> act is a quiet triumph'
        ' [SEP]'
    )
    assert c.js("document.querySelectorAll('b').length") == 0


def test_agreement_and_target_are_named(page, demo):
    c = opened(page)
    a, loo = (explained(demo, m) for m in ('attn_lrp', 'loo'))
    r = float(pearson(a.scores[~a.is_special], loo.scores[~a.is_special]))
    assert f'{r:+.3f}'.replace('-', '−') in c.js(NAME)
    assert 'positive' in c.js('document.title')


def test_nothing_fails_and_nothing_is_fetched(page):
    c = opened(page)
    assert c.errors == []
    assert c.offline == []


@pytest.mark.parametrize('method', ['cp_lrp', 'rollout', 'ig'])
def test_methods_switch_by_mouse(page, demo, method):
    c = opened(page)
    c.click(f"[name=method][value={method}]")
    options = {'target': 1} if method == 'rollout' else {}
    near(c.js(STATE), explained(demo, method, **options))
    assert c.js("document.querySelector('#layers').disabled") is True
    assert f'method={method}' in c.js('location.hash')


def test_layers_switch_by_mouse(page, demo):
    c = opened(page)
    for layer in (1, 4):
        c.click(f"#boxes input[value='{layer}']")
    near(c.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=[1, 4]))
    assert 'layer 2, 5' in c.js(NAME)
    assert c.js("document.querySelector('#preset').value") == 'own'
    c.click("#boxes input[value='1']")
    chosen = "document.querySelector('#preset').selectedOptions[0].textContent"
    assert c.js(chosen) == 'layer 5 alone'


def test_by_keyboard_alone(page, demo):
    c = opened(page)
    focus = (
        "document.activeElement.value || document.activeElement.id ||"
        " document.activeElement.textContent"
    )
    c.key('Tab')
    assert c.js(focus) == 'attn_lrp…cp_lrp'
    c.key('ArrowDown')
    assert c.js('location.hash').startswith('#method=loo')
    near(c.js(STATE), explain(*demo, [TEXT], method='loo')[0])
    c.key('ArrowUp')
    c.key('Tab')
    assert c.js('document.activeElement.id') == 'preset'
    c.key('ArrowDown')
    near(
        c.js(STATE), explain(*demo, [TEXT], method='cp_lrp')[0]
    )  # the next entry: all layers
    c.key('Tab')
    assert c.js(focus) == '0'
    c.key(' ')
    near(
        c.js(STATE),
        explain(*demo, [TEXT], method='attn_lrp', bypass_softmax=range(1, 6))[0],
    )
    c.key('Tab', 6)
    assert c.js('document.activeElement.id') == 'below'
    c.key('Tab')
    if not c.js("document.querySelector('#whole').hidden"):
        assert c.js('document.activeElement.id') == 'words'
        c.key('Tab')
    assert c.js(focus) == '[CLS]'
    c.key('ArrowRight', 3)
    assert c.js(focus) == 'start'
    assert c.js("document.querySelector('#said').textContent").startswith('start: ')
    c.key('End')
    assert c.js(focus) == '[SEP]'
    c.key('ArrowRight')
    assert c.js(focus) == '[SEP]'  # there is nothing further
    c.key('Home')
    assert c.js(focus) == '[CLS]'
    assert c.errors == []


def test_the_address_says_what_is_shown(page, demo):
    c = opened(page, '#method=lrp&bypass=0,2&below=cp_lrp')
    near(c.js(STATE), explained(demo, 'attn_lrp', bypass_softmax=[0, 2]))
    near(c.js(BELOW), explained(demo, 'cp_lrp'))


def test_an_address_without_sense_gives_the_first_view(page, demo):
    c = opened(page, '#method=nonsense&bypass=99&below=x')
    near(c.js(STATE), explained(demo, 'attn_lrp'))
    assert c.errors == []


def test_narrow_and_long(shallow, tmp_path):
    path = tmp_path / 'long.html'
    path.write_text(
        explain_page(
            *shallow,
            ' '.join(['slow but quiet and'] * 30),
            methods=['attn_lrp', 'cp_lrp'],
        ),
        encoding='utf-8',
    )
    with chromium.Chromium() as c:
        c.width(360)
        c.open(path.as_uri())
        assert c.js('document.documentElement.scrollWidth') <= 360
        assert c.js("document.querySelector('#boxes input').disabled") is False
        assert c.js("document.querySelector('#below').value") == ''
        assert c.errors == []
        if os.environ.get('LRP_LOO_PICTURES'):
            c.picture(os.path.join(os.environ['LRP_LOO_PICTURES'], 'long.png'))


def test_a_long_text_offers_the_sweeps(shallow, tmp_path):
    path = tmp_path / 'longer.html'
    path.write_text(
        explain_page(*shallow, ' '.join(['slow'] * 150), methods=['loo']),
        encoding='utf-8',
    )
    with chromium.Chromium() as c:
        c.open(path.as_uri())
        assert c.js("document.querySelector('#boxes input').disabled") is True
        assert (
            c.js("document.querySelector('#preset option[value=own]').disabled") is True
        )
        c.js(
            "(() => { const p = document.querySelector('#preset'); p.value ="
            " '0,1'; p.dispatchEvent(new Event('change')) })()"
        )
        near(
            c.js(STATE),
            explain(
                *shallow,
                [' '.join(['slow'] * 150)],
                method='attn_lrp',
                bypass_softmax=[0, 1],
            )[0],
        )
        assert c.errors == []


def dark_cls(d):
    "The page's data with a [CLS] that is larger than every word."
    for scores in d['methods'].values():
        scores[0] = 50.0
    for scores in d['sets'].values():
        scores[0] = 50.0
    return d


@pytest.fixture
def with_a_dark_cls(demo, tmp_path, monkeypatch):
    "a page on which [CLS] would hide every word."
    made = page_data(*demo, TEXT, methods=['loo', 'removal'])
    monkeypatch.setattr(
        'lrp_loo.reports.page.page_data', lambda *a, **kw: dark_cls(made)
    )
    path = tmp_path / 'dark.html'
    path.write_text(explain_page(*demo, TEXT), encoding='utf-8')
    with chromium.Chromium() as c:
        c.open(path.as_uri() + '#method=removal')
        yield c


def colours_of(c, row):
    return c.js(
        f"[...document.querySelectorAll('#tokens{row} span')].map(e =>"
        " getComputedStyle(e).backgroundColor)"
    )


def test_special_tokens_do_not_set_the_scale(with_a_dark_cls, demo):
    c = with_a_dark_cls
    (a,) = explain(*demo, [TEXT], method='removal', target=1)
    words = ~a.is_special
    strongest = int(a.scores.where(words, 0).abs().argmax())
    shown = colours_of(c, 0)
    want = score_colours(a.scores, float(a.scores[words].abs().max()))[strongest]
    assert shown[strongest] == 'rgb(%d, %d, %d)' % want
    assert f'largest {a.scores[words].abs().max():.3g}' in c.js(
        "document.querySelector('#name0').textContent"
    )
