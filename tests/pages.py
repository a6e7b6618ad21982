"What a notebook says: its cells' sources, and what they have printed."

import json
from functools import cache


@cache
def cells_of(
    path,  # of the notebook
) -> list:  # as they are kept, not to be changed
    return json.loads(path.read_text(encoding='utf-8'))['cells']


def sources(
    path,
    kind: str,  # 'markdown' or 'code'
) -> list:  # of str
    return [''.join(c['source']) for c in cells_of(path) if c['cell_type'] == kind]


def printed(
    path,
    *forms: str,  # of an output's data: 'text/markdown', …; 'text' is what it printed
) -> list:  # of str
    outputs = [o for c in cells_of(path) for o in c.get('outputs', ())]
    return [''.join((o | o.get('data', {})).get(f, '')) for o in outputs for f in forms]
