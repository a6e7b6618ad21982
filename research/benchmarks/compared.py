"""The same sentence through LXT, SHAP and inseq (results/compared.json).

    python research/benchmarks/compared.py

An environment variable names each peer's python; how the environment is made
stands at its function in peer_sentence.py. All must be there: the file holds
one sentence through each. Captum needs no environment of its own, and chapter
82 runs it itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lrp_loo import load_demo
from lrp_loo.core.files import write_text_atomic

HERE = Path(__file__).parent
OUT = HERE.parents[1] / 'results' / 'compared.json'
# of the classifier; of the language model, with what it goes on with
SENTENCE = ['a warm and funny film']
PROMPT = ['I expected little, and the film was', ' funny']
PEERS = {  # peer → the variable that names its python, a demo model, its words
    'lxt': ('LRP_LOO_LXT_PYTHON', 'sst2', SENTENCE),
    'shap': ('LRP_LOO_SHAP_PYTHON', 'sst2', SENTENCE),
    'inseq': ('LRP_LOO_INSEQ_PYTHON', 'reviews', PROMPT),
}


def asked(peer):
    "What a peer says of its sentence."
    variable, demo, words = PEERS[peer]
    python = os.environ.get(variable)
    if not python:
        sys.exit(f'{peer}: {variable} names no python (see peer_sentence.py)')
    with tempfile.TemporaryDirectory() as folder:
        for part in load_demo(demo):
            part.save_pretrained(folder)
        call = [python, str(HERE / 'peer_sentence.py'), peer, folder, *words]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f'{peer} failed; what it said stands above')
    said = json.loads(done.stdout.splitlines()[-1])
    return dict(model=demo, text=''.join(words[:1]), **said)


def main():
    found = {peer: asked(peer) for peer in PEERS}
    write_text_atomic(OUT, json.dumps(found, indent=1) + '\n')
    for peer, said in found.items():
        print(peer, said['versions'][peer], said['scores'])


if __name__ == '__main__':
    main()
