"""What comes of bad input: every call of bad_input.toml is made, and its answer compared with the
answer that it must get.

    python tests/bad_input.py            # what is wrong
    python tests/bad_input.py --write    # and results/bad-input.json and .md
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

from bad_world import Said, World

from lrp_loo.core.files import versions, write_text_atomic

RESULTS = Path(__file__).parents[1] / 'results'
TABLE = Path(__file__).with_name('bad_input.toml')


@dataclass(frozen=True)
class Case:
    "A call, and what must come of it."

    name: str  # what is wrong
    call: str
    # the name of an exception; or 'exit 1', the command line's; or 'works'
    expected: str
    # words of the message; where the call works, a condition on `out`
    must: object

    @classmethod
    def of_row(cls, name, row):
        "A row of the table."
        call = one_line(row['call'])
        if 'works' in row:
            return cls(name, call, 'works', one_line(row['works']))
        if 'exit' in row:
            return cls(name, call, f'exit {row["exit"]}', row['says'])
        return cls(name, call, row['raises'], row['says'])


def one_line(text):
    "Lines of a call in several lines, joined by a space."
    return ' '.join(text.strip('\n').split('\n'))


CASES = [
    Case.of_row(name, row)
    for name, row in tomllib.loads(TABLE.read_text(encoding='utf-8')).items()
]

# ------------------------------------------------------------ the answers


@dataclass(frozen=True)
class Answer:
    "What came of a call."

    came: str  # 'works', 'exit 1', an exception's name
    message: str = ''
    wrong: str = ''  # what is wrong with it, '' where nothing is


def evaluated(code, world, **more):
    "A call or a condition in the names of the world."
    names = world.names_in(re.findall(r'\w+', code))
    return eval(code, names | more)


def answer(case, world):
    "Make the call, and compare what comes with what must come."
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter('ignore')
            out = evaluated(case.call, world)
    except Exception as error:
        return answer_of_error(case, error, str(world['tmp']))
    if case.expected == 'works' and evaluated(case.must, world, out=out):
        return Answer('works')
    return Answer('works', wrong=f'the call worked and {case.must} does not hold')


def answer_of_error(case, error, folder):
    "An exception, or what the command line said."
    came = type(error).__name__
    if isinstance(error, Said):
        came = f'exit {error.code}'
    message = str(error).replace(folder, 'TMP').strip()
    return Answer(came, message, what_is_wrong(case, error, came, message))


def what_is_wrong(case, error, came, message):
    "The first thing that is not as it must be."
    if case.expected == 'works':
        return 'an error'
    # errors of the system come in many classes
    system = case.expected == 'OSError' and isinstance(error, OSError)
    if came != case.expected and not system:
        return f'{case.expected} is wanted'
    missing = [words for words in case.must if words not in message]
    if missing:
        return ', '.join(f'{words!r} is missing' for words in missing)
    # code 2 comes with the usage
    if came != 'exit 2' and ('\n' in message or 'Traceback' in message):
        return 'more than one line'
    return ''


def row(case, world):
    "A case with its answer, as it is written, and what is wrong with it."
    a = answer(case, world)
    written = dict(
        name=case.name,
        given=case.call,
        expected=case.expected,
        must=case.must,
        came=a.came,
        message=a.message,
    )
    return written, a.wrong


# ------------------------------------------------------------ the page


def cell(text):
    "A text as a table in Markdown shows it."
    return text.replace('|', '\\|').replace('\n', ' ').replace('<', '&lt;')


def cut(text, n=400):
    "The first n characters."
    return text if len(text) <= n else f'{text[:n]} …'


def what_came(r):
    "The last column."
    if r['came'] == 'works':
        return f"works: `{cell(r['must'])}`"
    return f"{r['came']}: {cell(cut(r['message']))}"


def as_markdown(d):
    "The answers as a page."
    named = ', '.join(f'{k} {v}' for k, v in d['versions'].items() if v)
    lines = [
        '# What comes of bad input',
        '',
        (
            f"{len(d['rows'])} calls that cannot be right, or look so, and what"
            " came of each. Made by `python tests/bad_input.py --write`, held"
            " by `tests/test_bad_input.py`."
        ),
        (
            f"Versions: {named}."
            " `TMP` is a folder of the test's own; `m, tok` are the demo model"
            " for SST-2, `lm, lm_tok` the small language model."
        ),
        '',
        '| given | call | what came |',
        '|---|---|---|',
    ]
    for r in d['rows']:
        name, call = cell(r['name']), cell(r['given'])
        lines.append(f'| {name} | `{call}` | {what_came(r)} |')
    return '\n'.join(lines) + '\n'


def as_json(d):
    "A row in a line."
    head = json.dumps(dict(versions=d['versions']), indent=1)[:-2]
    rows = ['  ' + json.dumps(r, ensure_ascii=False) for r in d['rows']]
    return head + ',\n "rows": [\n' + ',\n'.join(rows) + '\n ]\n}\n'


# ------------------------------------------------------------ the command


def main(write):
    "Make every call; the exit code says whether anything is wrong."
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder)
        found = [row(case, world) for case in CASES]
    n_wrong = 0
    for r, wrong in found:
        if wrong:
            n_wrong += 1
            print(f"{r['name']}: {wrong}\n    {r['given']}")
            print(f"    {r['came']}: {r['message'][:600]}")
    print(len(found), 'cases,', n_wrong, 'wrong')
    if write and not n_wrong:
        d = dict(versions=versions(), rows=[r for r, _ in found])
        write_text_atomic(RESULTS / 'bad-input.json', as_json(d))
        write_text_atomic(RESULTS / 'bad-input.md', as_markdown(d))
    return int(n_wrong > 0)


if __name__ == '__main__':
    sys.exit(main('--write' in sys.argv))
