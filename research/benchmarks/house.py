"""What the house weighs: rooms, lines, functions, notebooks, tests; the Python
calls of a short explanation; CPU seconds of imports and commands.

python research/benchmarks/house.py [--out results/house.json]
"""

import argparse
import cProfile
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from lrp_loo import explain, load_demo
from lrp_loo.trust.results import Results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests'))

from rooms import House  # noqa: E402
from tracked import tracked  # noqa: E402

TEXT = 'a gripping , funny film'
# what `explain` of the demo model cannot do without
NEEDED = (
    'import torch; from transformers import AutoTokenizer,'
    ' BertForSequenceClassification'
)


def cpu_seconds(words, rounds=7):
    "Of a process, user and system, warm: the median."

    def one():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            words, check=True, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(
            getattr(after, k) - getattr(before, k) for k in ('ru_utime', 'ru_stime')
        )

    return statistics.median(one() for _ in range(rounds + 1))


def python_calls(method):
    "Of a warm `explain` of one short text, as the profiler counts them."
    model, tokenizer = load_demo('sst2')
    for _ in range(3):
        explain(model, tokenizer, [TEXT], method=method)
    with cProfile.Profile() as profile:
        explain(model, tokenizer, [TEXT], method=method)
    return pstats.Stats(profile).total_calls


def lines(*patterns):
    paths = tracked(*patterns)
    return sum(len(p.read_text(encoding='utf-8').splitlines()) for p in paths)


def rows():
    house = House()
    arrows = sum(map(len, house.arrows.values()))
    floors = max(house.floors.values())
    yield dict(what='rooms', rooms=len(house.arrows), floors=floors, arrows=arrows)
    paper = [m for m in house.tree if m.startswith('paper.')]
    library = [m for m in house.tree if m not in paper]
    yield dict(what='library', **house.weights(library))
    yield dict(what='paper', **house.weights(paper))
    yield dict(what='tests', lines=lines('tests/*.py'))
    yield dict(what='notebooks', outside_the_lab=len(tracked('nbs/**/*.ipynb')))
    for method in ('attn_lrp', 'loo'):
        yield dict(what=f'explain, {method}', calls=python_calls(method))
    command = str(Path(sys.executable).with_name('lrp_loo'))
    for what, words in {
        'torch and the model classes': [sys.executable, '-c', NEEDED],
        'from lrp_loo import explain': [
            sys.executable,
            '-c',
            'from lrp_loo import explain',
        ],
        'lrp_loo --help': [command, '--help'],
        'lrp_loo explain TEXT': [command, 'explain', TEXT],
    }.items():
        yield dict(what=what, cpu_seconds=round(cpu_seconds(words), 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', default=ROOT / 'research' / 'results' / 'house.json')
    args = parser.parse_args()
    config = dict(experiment='house', cpus=os.cpu_count())
    results = Results(args.out, config, fresh=True)
    for i, row in enumerate(rows()):
        results.add(dict(i=i) | row)
        print(row)


if __name__ == '__main__':
    main()
