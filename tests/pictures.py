"""Pictures of every view, by a headless Chromium, to be looked at.

python tests/pictures.py FOLDER [NAME …]   at 1,280 and 420 pixels, light, dark and printed
"""

import json
import sys
import tempfile
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

import chromium
import torch

import lrp_loo
from lrp_loo.core import Attribution
from lrp_loo.reports.comparison import compare_summaries
from lrp_loo.reports.page import explain_page
from lrp_loo.views import compare

WIDTHS = (1280, 420)
THEMES = ('light', 'dark', 'print')
TEXTS = [
    'A gripping, funny film that never once talks down to us.',
    'The plot is thin and the jokes are old, but the cast is a delight.',
    'Two hours of nothing at all.',
    'Never dull, never loud: a quiet film about a lighthouse-keeper who forgets'
    ' his own name, and about the daughter who has to tell it to him again.',
]
CONSOLE = '#tab=console&method=lrp&bypass=1,3&below=loo'


def own_image():
    "A ring, as the shipped digits' model reads it."
    down, across = torch.meshgrid(*[torch.arange(28.0) - 13.5] * 2, indexing='ij')
    distance = (down**2 + across**2).sqrt()
    return (1 - (distance - 8).abs() / 3).clamp(0, 1)[None]


def with_intervals(a):
    "As a calibration leaves them: half the largest score to either side."
    half = float(a.scores.abs().max()) / 2
    low, high = ([s + d for s in a.scores.tolist()] for d in (-half, half))
    return replace(a, info=a.info | dict(low=low, high=high, confidence=0.9))


def views():
    "Name → a function that makes a page of it, and where in it is looked."
    demo = lrp_loo.load_demo('reviews-sst2')
    decoder = lrp_loo.load_demo('reviews')
    said = 'The film is'

    def of(text=TEXTS[0], **options) -> Attribution:
        return lrp_loo.explain(*demo, text, **options)[0]

    def generation():
        return lrp_loo.explain_generation(*decoder, said, max_new_tokens=10)

    def image():
        return lrp_loo.explain(*lrp_loo.load_demo('mnist'), [own_image()])[0]

    def reviews():
        path = files('lrp_loo') / 'assets' / 'reviews_short.jsonl'
        lines = path.read_text('utf-8').splitlines()
        return [json.loads(line)['text'] for line in lines]

    def summary(method='attn_lrp'):
        return lrp_loo.summarize_texts(*demo, reviews(), method, progress=False)

    def audited():
        return lrp_loo.audit(*demo, reviews()[:12], progress=False)

    def pages():
        return explain_page(*demo, TEXTS[0])

    return {
        'attribution': (of, ''),
        'intervals': (lambda: with_intervals(of(method='removal')), ''),
        'list': (lambda: lrp_loo.explain(*demo, TEXTS), ''),
        'list-own-scales': (lambda: lrp_loo.explain(*demo, TEXTS), '.own'),
        'comparison': (lambda: compare(of(), of(method='attn_lrp')), ''),
        'generation': (generation, ''),
        'generation-chosen': (generation, 'label:nth-of-type(5)'),
        'pairs': (lambda: lrp_loo.explain_pairs(*demo, TEXTS[0])[0], ''),
        'pairs-table': (lambda: lrp_loo.explain_pairs(*demo, TEXTS[0])[0], 'summary'),
        'summary': (summary, 'summary'),
        'summaries': (lambda: compare_summaries(summary(), summary('removal')), ''),
        'audit': (audited, ''),
        'image': (image, ''),
        'page': (pages, ''),
        'page-console': (pages, CONSOLE),
        'page-in-a-page': (
            lambda: f'<iframe srcdoc="{escape(pages())}" width="100%" height="800">',
            '',
        ),
    }


def written(view, path):
    "A view as a file."
    if isinstance(view, str):
        path.write_text(view, encoding='utf-8')
    else:
        view.save(path)


def complaints(browser, width):
    "What is wrong with the page that is shown."
    wide = browser.js('document.documentElement.scrollWidth')
    said = [f'{wide} pixels wide'] if wide > width else []
    return said + browser.errors + browser.offline


def main(folder, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wrong = {}
    with chromium.Chromium() as browser, tempfile.TemporaryDirectory() as pages:
        for name, (make, at) in views().items():
            if names and name not in names:
                continue
            path = Path(pages, f'{name}.html')
            written(make(), path)
            for width in WIDTHS:
                for theme in THEMES:
                    browser.prefers(theme)
                    browser.width(width, 200)
                    browser.open('about:blank')
                    browser.open(path.as_uri() + (at if at[:1] == '#' else ''))
                    if at and at[0] != '#':
                        browser.js(f"document.querySelector('{at}').click()")
                    browser.whole_picture(folder / f'{name}-{width}-{theme}.png')
                    if found := complaints(browser, width):
                        wrong[f'{name}-{width}-{theme}'] = found
                    browser.errors.clear()
            print(name, flush=True)
    for name, found in wrong.items():
        print(f'{name}: {"; ".join(found)}')
    return bool(wrong)


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
