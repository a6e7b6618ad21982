"The plane with switches of chapter 12, in a browser."

import json
from pathlib import Path

from conftest import needs_browser
import pytest

CHAPTER = Path(__file__).parents[1] / 'nbs' / '12_two_numbers.ipynb'


def plane_of_chapter():
    "Return the HTML that the chapter's cell printed, and its numbers."
    cells = json.loads(CHAPTER.read_text(encoding='utf-8'))['cells']
    outputs = [out for cell in cells for out in cell.get('outputs', ())]
    pages = (''.join(out.get('data', {}).get('text/html', '')) for out in outputs)
    (page,) = (p for p in pages if 'lrp-plane' in p)
    start = page.index('json">') + len('json">')
    return page, json.loads(page[start : page.index('</script>', start)])


def test_every_setting_of_the_switches_has_its_numbers():
    _, data = plane_of_chapter()
    assert len(data['settings']) == 192
    assert data['paper'] == dict(sentences=[0.22, 0.52], reviews=[0.25, 0.26])


@needs_browser
@pytest.mark.parametrize('width', (1280, 420))
def test_dots_and_words_follow_the_switches(browser, tmp_path, width):
    page, data = plane_of_chapter()
    path = tmp_path / 'plane.html'
    path.write_text(f'<!doctype html><meta charset=utf-8>{page}', encoding='utf-8')
    browser.width(width)
    browser.open(path.as_uri())
    words = "document.querySelector('figcaption').textContent"
    dot = "document.querySelector('circle.sentences:not(.ring)').getAttribute('cx')"
    before = browser.js(dot)

    def numbers(name):
        "Return both data sets' pairs of a setting, as the caption writes them."
        pairs = data['settings'][name].values()
        return [f'AttnLRP {a:.2f}, CP-LRP {b:.2f}' for a, b in pairs]

    for text in numbers('MPNet, logit, norm, own, nothing'):
        assert text in browser.js(words)
    browser.click('[name=product]')
    browser.js(
        "for (const [name, value] of [['model', 'MiniLM'], ['divided', 'map']])"
        " document.querySelector(`[name=${name}]`).value = value;"
        "document.querySelector('.lrp-plane form').dispatchEvent(new Event('change'))"
    )
    for text in numbers('MiniLM, logit, product+norm, own, map'):
        assert text in browser.js(words)
    assert browser.js(dot) != before
    assert browser.js("document.querySelectorAll('circle.sentences').length") == 2
    assert browser.js('document.documentElement.scrollWidth') <= width
    assert not browser.errors and not browser.offline


@needs_browser
def test_without_scripts_nothing_of_the_plane_shows(browser, tmp_path):
    page, _ = plane_of_chapter()
    path = tmp_path / 'plane.html'
    path.write_text(page.rpartition('<script>')[0], encoding='utf-8')
    browser.open(path.as_uri())
    assert not browser.js("document.querySelector('.lrp-plane').offsetHeight")
