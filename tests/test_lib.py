"Each notebook of nbs/lib is the source of one module, and says first what it is for."

import re
from collections import Counter

import pytest
from pages import cells_of, sources
from tracked import tracked

PAGES = {p.stem: p for p in tracked('nbs/lib/*.ipynb')}


@pytest.mark.parametrize('name', PAGES)
def test_a_page_says_first_what_its_module_is_for(name):
    assert cells_of(PAGES[name])[0]['cell_type'] == 'markdown'
    title, line, *_ = sources(PAGES[name], 'markdown')[0].split('\n\n')
    assert title.startswith('# ') and line.startswith('> ')


def test_a_module_has_one_notebook():
    homes = Counter(
        match[1]
        for path in PAGES.values()
        for source in sources(path, 'code')
        if (match := re.search(r'#\|\s*default_exp (\S+)', source))
    )
    assert max(homes.values()) == 1
    assert sum(homes.values()) == len(PAGES)
