"""A stranger's path, timed: a new environment, the wheel, the first explanation, a
model of one's own, an audit's verdict, a picture.

    python benchmarks/stranger.py                 # results/stranger.json
    python benchmarks/stranger.py --torch 2.13.0  # by itself pip takes one with libraries for a GPU

The wheel is built from this clone; the environment is made in a folder that is
removed afterwards. Everything after the installs runs without a network.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lrp_loo.core.files import processor, write_text_atomic

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'stranger.json'
TEXTS = """[
    'A gripping, funny film that never once talks down to us.',
    'Two hours of noise, and nothing to remember afterwards.',
    'The acting is fine, the story is not.',
    'Warm, clever and beautifully shot.',
    'I wanted to leave after ten minutes.',
    'A small triumph, made with patience.',
]"""
IMPORT = 'from lrp_loo import explain'
FIRST = f"""
from lrp_loo import explain, load_demo
model, tokenizer = load_demo('reviews-sst2')
print(explain(model, tokenizer, {TEXTS}[0])[0])
"""
# a classifier that its owner has saved; what it knows does not matter here
SAVE = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification
from transformers import PreTrainedTokenizerFast
words = 'a gripping funny film that never once talks down to us . ,'.split()
words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]
made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, '[UNK]'))
made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
made.post_processor = processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
named = dict(pad='[PAD]', unk='[UNK]', cls='[CLS]', sep='[SEP]', mask='[MASK]')
named = {f'{k}_token': v for k, v in named.items()}
PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained('mine')
size = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4)
config = BertConfig(vocab_size=len(words), intermediate_size=128, **size)
torch.manual_seed(0)
BertForSequenceClassification(config).save_pretrained('mine')
"""
OWN = "from lrp_loo import explain; print(explain('mine', None, 'A funny film.')[0])"
AUDIT = f"""
from lrp_loo import audit
table = audit('reviews-sst2', None, {TEXTS}, progress=False)
print(table.verdict)
"""
PICTURE = """
from lrp_loo import compare, explain
a = explain('reviews-sst2', None, 'A gripping, funny film.')[0]
compare(a).plot().savefig('a.png')
a.save('a.html')
"""
# what a shell is asked: the words, and the exit code
SHELL = {
    'shell: explain --help': (['explain', '--help'], 0),
    'shell: reproduce --help': (['reproduce', '--help'], 0),
    'shell: an unknown method': (['explain', 'A text.', '--method', 'lop'], 2),
    'shell: a text': (['explain', 'A gripping, funny film.'], 0),
}
SIZES = """
import json, sys
from importlib.metadata import distributions
print(json.dumps({d.name: d.version for d in distributions()}))
"""


def megabytes(folder):
    "Of all files below it, links not followed."
    paths = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return round(sum(p.lstat().st_size for p in paths) / 1e6, 1)


class Stranger:
    "An environment, and what was done in it."

    def __init__(self, folder):
        self.folder, self.rows = folder, []
        self.python = folder / 'env' / 'bin' / 'python'

    def did(self, step, words, code=0):
        "A row: the step, its seconds, the last line that it printed."
        env = {k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'CI')}
        if words[1:3] != ['-m', 'pip']:
            env['HF_HUB_OFFLINE'] = '1'
        start = time.perf_counter()
        done = subprocess.run(
            [str(w) for w in words],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
        )
        seconds = round(time.perf_counter() - start, 2)
        if done.returncode != code:
            raise SystemExit(f'stranger: {step}: {done.stderr[-2000:]}')
        said = done.stdout.strip().splitlines()[-1:]
        self.rows.append(dict(i=step, seconds=seconds))
        if said and 'pip' not in words:
            self.rows[-1]['said'] = said[0]
        print(f'{seconds:7.2f} s  {step}', *said, flush=True)

    def pip(self, step, *what):
        "Installed, with the size of the environment afterwards."
        pip = ['-m', 'pip', 'install', '-q', '--disable-pip-version-check']
        self.did(step, [self.python, *pip, *what])
        self.rows[-1]['environment_mb'] = megabytes(self.folder / 'env')

    def runs(self, step, code):
        self.did(step, [self.python, '-c', code])


def path_of(folder, wheel, torch):
    "All steps, in order."
    one = Stranger(folder)
    one.did('environment', [sys.executable, '-m', 'venv', 'env'])
    one.pip('install torch', f'torch=={torch}' if torch else 'torch')
    one.pip('install the wheel', wheel)
    for step in ('import, cold', 'import, again'):
        one.runs(step, IMPORT)
    one.runs('import of torch alone', 'import torch')
    one.runs('first explanation', FIRST)
    for step, (words, code) in SHELL.items():
        one.did(step, [one.python.with_name('lrp_loo'), *words], code)
    one.runs('own model, saved', SAVE)
    one.runs('own model, explained', OWN)
    one.runs('audit and verdict', AUDIT)
    one.pip('install [plot]', f'{wheel}[plot]')
    one.runs('picture', PICTURE)
    found = subprocess.check_output([str(one.python), '-c', SIZES], text=True)
    return one.rows, json.loads(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--torch', help='its version')
    parser.add_argument('--out', type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        build = ['-m', 'pip', 'wheel', '-q', '--no-deps', '-w', folder, ROOT]
        subprocess.run([sys.executable, *map(str, build)], check=True)
        (wheel,) = folder.glob('*.whl')
        rows, versions = path_of(folder, wheel, given.torch)
        config = dict(
            experiment='stranger',
            wheel_mb=round(wheel.stat().st_size / 1e6, 1),
            packages=len(versions),
        )
    names = ('torch', 'transformers', 'numpy', 'pandas', 'lrp_loo')
    versions = {name: versions[name] for name in names}
    found = dict(config=config, versions=versions, processor=processor(), rows=rows)
    write_text_atomic(given.out, json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    main()
