"""Pictures of what the gallery cannot hold as it is: the widget with a kernel
behind it, the page of a data set.

python docs/screens.py   draws them again, in docs/static/screens/
"""

import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / 'tests'), str(ROOT)]

from chromium import Chromium  # noqa: E402
from test_widget import Page  # noqa: E402

from lrp_loo import load_demo, load_texts, summarize_texts  # noqa: E402
from lrp_loo.reports.widget import explore  # noqa: E402

TEXT = 'A gripping, funny film that never once talks down to us.'
WIDTH = 760
LOW = 200  # any page is higher


def picture(browser, name):
    "As high as the page is."
    browser.js("document.body.style.fontFamily = 'sans-serif'")
    browser.width(WIDTH, LOW)
    browser.width(WIDTH, browser.js('document.documentElement.scrollHeight'))
    browser.picture(DOCS / 'static' / 'screens' / f'{name}.png')


def main():
    model, tokenizer = load_demo('sst2')
    texts = load_texts('sst2', 'embedded', limit=60).texts
    with Chromium() as browser, tempfile.TemporaryDirectory() as folder:
        browser.width(WIDTH, LOW)
        browser('Emulation.setScrollbarsHidden', hidden=True)
        page = Page(browser, folder, explore(model, tokenizer, TEXT))
        browser.click(page.word('funny'))
        page.answer()
        picture(browser, 'widget')
        summary = summarize_texts(model, tokenizer, texts, progress=False)
        path = Path(folder) / 'summary.html'
        summary.save(path)
        browser.open(path.as_uri())
        picture(browser, 'summary')


if __name__ == '__main__':
    main()
