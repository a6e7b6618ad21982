"""The text to change (`explore`): its numbers are those of a text that is masked by
hand, nothing stays behind, and its JavaScript does in a browser what it says.
"""

import gc
import json
import re
import weakref
from pathlib import Path

import chromium
import pytest
import torch
from conftest import needs_browser, random_bert, shallow_demo
from families import random_model
from test_nothing_left import nodes
from transformers import AutoTokenizer

from lrp_loo import Target, explain
from lrp_loo.models.loading import demo_base

widget = pytest.importorskip('lrp_loo.reports.widget', reason='needs anywidget')
explore, EditedText = widget.explore, widget.EditedText

TEXT = 'A gripping, funny film that never once talks down to us.'
LONG = ' '.join([TEXT, 'It drags a little near the end, and then it soars.'] * 3)


@pytest.fixture(scope='module')
def demo():
    "Small, and each word matters."
    model = random_bert(max_position_embeddings=128)
    return model, AutoTokenizer.from_pretrained(demo_base())


def by_hand(model, tokenizer, text, read, *removed):
    "The model's number where these tokens are masked."
    enc = tokenizer(text, return_tensors='pt')
    enc['attention_mask'][0, list(removed)] = 0
    with torch.no_grad():
        return float(read(model(**enc).logits))


def test_a_text_without_two_words_is_masked_by_hand(demo):
    w = explore(*demo, TEXT)
    target, k = w.explanation.target, len(w.explanation)
    a = w.ask([2, 4])

    def read(logits):
        return logits[0, target]

    gone = by_hand(*demo, TEXT, read, 2, 4)
    assert a.target == target and a.exact and w.removed == [2, 4]
    assert abs(a.logit - gone) < 1e-4
    for i in a.is_content.nonzero()[:, 0].tolist():
        assert abs(a.scores[i] - gone + by_hand(*demo, TEXT, read, 2, 4, i)) < 1e-4
    assert not a.is_content[[2, 4]].any() and len(a) == k


def test_the_explained_class_stays_when_the_prediction_turns():
    def predicted(logits):
        return logits[0].argmax()

    demo = random_bert(), AutoTokenizer.from_pretrained(demo_base())
    w = explore(*demo, 'dull, but funny')
    turned = 0
    for i in (1, 2, 3, 4):
        turned += (
            by_hand(*demo, 'dull, but funny', predicted, i) != w.edited.original.target
        )
        assert w.ask([i]).target == w.edited.original.target
    assert turned, 'no word turns this prediction: the test shows nothing'


def test_words_are_removed_whole(demo):
    tokenizer = demo[1]
    w = explore(*demo, 'An unputdownable film.', units='word')
    enc = tokenizer('An unputdownable film.', return_tensors='pt')
    i = w.explanation.tokens.index('unputdownable')
    tokens = [k for k, word in enumerate(enc.word_ids()) if word == 1]
    assert len(tokens) > 1
    target = w.explanation.target

    def read(logits):
        return logits[0, target]

    gone = by_hand(*demo, 'An unputdownable film.', read, *tokens)
    assert abs(w.ask([i]).logit - gone) < 1e-4


@pytest.mark.parametrize('place', [5, -3])
def test_the_row_that_is_read_stays(place):
    "A masked place before it does not move it, and its own token is not removed."
    model = random_model('Llama', 'next token', vocab_size=30522)
    tokenizer = AutoTokenizer.from_pretrained(demo_base())
    text = 'the old harbour was quiet that night'
    w = explore(model, tokenizer, text, Target(position=place))
    at, target = range(len(w.explanation))[place], w.explanation.target
    (explained,) = explain(model, tokenizer, text, target=Target(position=place))
    assert w.explanation.logit == explained.logit

    def read(logits):
        return logits[0, at, target]

    gone = by_hand(model, tokenizer, text, read, 2, 3)
    assert abs(w.ask([2, 3]).logit - gone) < 1e-6
    with pytest.raises(ValueError, match='cannot be removed'):
        w.ask([at])


def test_a_slider_goes_on_from_what_was_computed(demo):
    "One gradient pass, then one step more a request; a smaller budget is kept."
    held = EditedText(*demo, LONG, passes=3)
    held.seconds_per_pass = 1.0  # as on a slow model
    first, done = held.step((), 3)
    assert done and first is held.original and first.passes == 3 and not first.exact
    steps = []
    while not steps or not done:
        a, done = held.step((), 9)
        held.seconds_per_pass = 1.0
        steps.append(a)
    assert [a.passes for a in steps] == sorted(a.passes for a in steps)
    assert 3 < len(steps) <= 6 and 8 < steps[-1].passes <= 9
    assert held.step((), 3)[0] is first
    *_, exact = held.steps((), None)
    (loo,) = explain(*demo, LONG, method='loo')
    content = loo.is_content
    assert exact.exact and torch.allclose(
        exact.scores[content], loo.scores[content], atol=1e-4
    )


@pytest.mark.parametrize(
    'asked, said',
    [
        (dict(removed=[99], passes=None), '99 cannot be removed'),
        (dict(removed=[2], passes=2), 'passes=2 is less than'),
    ],
)
def test_what_the_kernel_refuses_is_said_and_the_picture_stays(demo, asked, said):
    w = explore(*demo, TEXT)
    before = w.answer
    w.query = asked | dict(request='x')
    assert said in w.answer['error'] and w.answer['done']
    changed = dict(request='x', error=w.answer['error'])
    assert w.answer == before | changed
    w.query = dict(removed=[2], passes=None, request='y')
    assert w.answer['error'] == '' and w.answer['removed'] == [2]


def test_what_it_does_not_take():
    "Images; texts in place of one; it says what is taken."
    with pytest.raises(ValueError, match='explore accepts'):
        explore(*shallow_demo('mnist', 1), torch.zeros(3, 14, 14))


def test_nothing_stays_behind(without_the_rest):
    model, tokenizer = random_bert(), AutoTokenizer.from_pretrained(demo_base())
    before = nodes()
    w = explore(model, tokenizer, TEXT, passes=3)
    for request in ([2], [2, 4], []):
        w.query = dict(removed=request, passes=5, request=str(request))
        assert w.answer['error'] == ''
    assert len(w.edited.maps) <= 2
    w.close()
    del w
    gc.collect()
    assert nodes() == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model = weakref.ref(model)
    gc.collect()
    assert model() is None, 'a closed view keeps its model'


# ------------------------------------------------------------------ the browser

PAGE = """<!doctype html><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>CSS</style><body data-jp-theme-light="LIGHT"><div id="el"></div>"""
# what anywidget hands to `render`, without a Jupyter around it
MODEL = """
window.traits = STATE; window.heard = {}; window.requests = [];
window.model = {
  get: name => traits[name],
  set: (name, value) => { traits[name] = value },
  save_changes: () => requests.push(traits.query),
  on: (name, f) => { heard[name] = f },
  off: (name) => { delete heard[name] },
};
window.clean = widget.render({model, el: document.getElementById('el')});
0"""


class Page:
    "The widget's JavaScript, with its kernel in this process."

    def __init__(self, c, folder, w, light=True):
        self.c, self.w = c, w
        page = PAGE.replace('CSS', w._css).replace('LIGHT', str(light).lower())
        path = Path(folder) / 'widget.html'
        path.write_text(page, encoding='utf-8')
        c.open('about:blank')
        c.open(path.as_uri())
        state = json.dumps(dict(answer=w.answer, query=w.query, static_id=w.static_id))
        # as no module: a page of a file may import none
        source = w._esm.replace('export default', 'window.widget =')
        c.js(f'(() => {{ {source} }})(), 0')
        c.js(MODEL.replace('STATE', state))

    def requests(self):
        return self.c.js('requests.splice(0)')

    def answer(self):
        "The kernel answers what was asked until nothing is; the requests."
        seen = []
        while asked := self.requests():
            assert len(asked) == 1, 'a request is sent while another is out'
            seen += asked
            self.w.query = asked[0]
            shown = json.dumps(self.w.answer)
            self.c.js(f"traits.answer = {shown}; heard['change:answer']()")
        return seen

    def word(self, text):
        "A selector of a word."
        at = [w['text'] for w in self.w.answer['words']].index(text)
        return f'.words > span:nth-child({at + 1}) button'

    def text(self, css):
        return self.c.js(f'document.querySelector({css!r}).textContent')

    def pressed(self):
        return self.c.js(
            "[...document.querySelectorAll('.words [aria-pressed=true]')]"
            '.map(b => b.textContent)'
        )


@pytest.fixture(scope='module')
def browser():
    with chromium.Chromium() as c:
        yield c


@pytest.fixture
def page(browser, demo, tmp_path):
    return Page(browser, tmp_path, explore(*demo, TEXT))


@needs_browser
def test_a_word_is_removed_by_mouse_and_put_back(page):
    a = page.w.explanation
    assert page.text('.spent') == a.spent and f'{a.logit:.3f}' in page.text('.number')
    assert page.text('.words').split() != [] and page.pressed() == []
    page.c.click(page.word('funny'))
    assert page.answer() and page.pressed() == ['funny']
    b = page.w.explanation
    assert b is not a and b.info['removed'] == [4]
    assert f'without funny: logit {b.logit:.3f}' in page.text('.number')
    title = page.c.js(f'document.querySelector({page.word("film")!r}).title')
    assert f'{float(b.scores[b.tokens.index("film")]):+.4f}' in title
    page.c.click(page.word('gripping'))
    page.answer()
    assert page.pressed() == ['gripping', 'funny']
    page.c.click('.back')
    page.answer()
    assert page.pressed() == [] and page.w.removed == []
    assert page.c.errors == page.c.offline == []


@needs_browser
def test_words_are_chosen_by_keyboard(page):
    page.c.key('Tab')
    page.c.key('ArrowRight', 4)
    assert page.c.js('document.activeElement.textContent') == 'funny'
    page.c.key(' ')
    page.answer()
    assert page.pressed() == ['funny']
    page.c.key('Home')
    page.c.key(' ')  # [CLS]
    assert page.requests() == []
    assert 'stays' in page.text('.state')
    assert page.c.js('document.activeElement.textContent') == '[CLS]'


@needs_browser
def test_a_slider_that_is_dragged_queues_nothing(browser, demo, tmp_path):
    w = explore(*demo, LONG, passes=3)
    page = Page(browser, tmp_path, w)
    most = w.answer['max_passes']
    assert not w.explanation.exact and 'expected r' in page.text('.spent')
    page.c.js("document.querySelector('.budget input').focus()")
    page.c.key('ArrowRight', 6)
    (first,) = page.requests()  # the others wait, and only the last is sent
    assert first['passes'] == 4
    w.edited.seconds_per_pass = widget.STEP_SECONDS  # as on a slow model
    page.c.js(f"requests.push({json.dumps(first)})")
    seen = page.answer()
    assert {r['passes'] for r in seen} == {4, 9}
    assert page.text('.budget output') == f'9 of {most} passes'
    page.c.key('End')
    assert len(page.answer()) >= 1
    assert w.explanation.exact and page.text('.budget output') == 'exact'
    assert page.text('.spent').startswith('LOO, exact')


@needs_browser
def test_a_refusal_is_shown_in_words(page, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError('out of <b>memory</b>')

    monkeypatch.setattr(widget, 'explain_batch', broken)
    page.c.click(page.word('funny'))
    page.answer()
    assert page.text('.state') == 'out of <b>memory</b>'
    assert page.pressed() == []  # the picture is of what was computed
    monkeypatch.undo()
    page.c.click(page.word('funny'))
    page.answer()
    assert page.text('.state') == '' and page.pressed() == ['funny']


@needs_browser
def test_a_kernel_that_is_silent_is_said(page):
    page.c.js('window.now = Date.now; Date.now = () => now() + waited; waited = 0')
    page.c.click(page.word('funny'))
    page.c.js('waited = 9000')
    while 'computes' not in page.text('.state'):
        pass
    assert 'run the cell again' in page.text('.state')


@needs_browser
@pytest.mark.parametrize('width, light', [(1280, True), (420, False)])
def test_nothing_is_cut(browser, demo, tmp_path, width, light):
    w = explore(*demo, LONG)
    w.ask([2, 4])
    browser.width(width)
    try:
        page = Page(browser, tmp_path, w, light)
        wide = page.c.js('document.documentElement.scrollWidth')
        assert wide <= width
        cut = page.c.js(
            "[...document.querySelectorAll('.lrp-live *')].filter(e =>"
            ' e.getBoundingClientRect().right > innerWidth).length'
        )
        assert cut == 0
        ink, paper = page.c.js(
            "(s => [s.color, s.backgroundColor])(getComputedStyle("
            "document.querySelector('.lrp-live')))"
        )
        ink, paper = (int(re.search(r'\d+', rgb)[0]) for rgb in (ink, paper))
        assert (ink < paper) == light
    finally:
        browser('Emulation.clearDeviceMetricsOverride')
