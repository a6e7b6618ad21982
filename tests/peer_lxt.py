"""AttnLRP and CP-LRP scores of the reference package, lxt. Run by test_peer.py in an environment
of its own:

    python peer_lxt.py FAMILY RULES    # prints the rows of one pair of `peer_model.PAIRS`
    python peer_lxt.py --write         # fixtures/lxt.json, every pair

(pip install torchvision 'transformers==4.52.4' lxt==2.1; lxt changes classes of transformers for
good, so each pair has a process of its own.)
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from lxt.efficient import monkey_patch
from lxt.efficient.models import bert, llama
from peer_model import IDS, PAIRS, build, checksum
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama

FIXTURE = Path(__file__).parent / 'fixtures' / 'lxt.json'
PATCHES = {
    ('bert', 'attn_lrp'): (modeling_bert, bert.attnLRP),
    ('llama', 'attn_lrp'): (modeling_llama, llama.attnLRP),
    ('llama', 'cp_lrp'): (modeling_llama, llama.cp_LRP),
}


def explained(model, ids):
    "Gradient × input of the largest logit under lxt's rules."
    words = model.get_input_embeddings()(torch.tensor([ids]))
    x = words.detach().requires_grad_()
    if 'Llama' in type(model).__name__:
        # without ids this class cannot find its last token: the row is read
        # here
        hidden = model.model(inputs_embeds=x).last_hidden_state
        logits = model.score(hidden)[:, -1]
    else:
        logits = model(inputs_embeds=x).logits
    logits.max().backward()
    scores = (x * x.grad).sum(-1)[0]
    return dict(logit=float(logits.max()), scores=scores.tolist())


def rows(family, rules):
    "What lxt says of every text."
    module, patches = PATCHES[family, rules]
    monkey_patch(module, patches)
    model = build(family)
    return dict(
        family=family,
        rules=rules,
        weights=checksum(model),
        texts=[explained(model, ids) for ids in IDS],
    )


def write():
    "The fixture, a process for each pair."
    pairs = []
    for pair in PAIRS:
        command = [sys.executable, __file__, *pair]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        pairs.append(json.loads(done.stdout.splitlines()[-1]))
    packages = ('lxt', 'torch', 'transformers', 'numpy')
    made = dict(
        made_by='python tests/peer_lxt.py --write',
        versions={name: version(name) for name in packages},
        ids=IDS,
        pairs=pairs,
    )
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text(json.dumps(made, indent=1) + '\n')


if __name__ == '__main__':
    if '--write' in sys.argv:
        write()
    else:
        print(json.dumps(rows(*sys.argv[1:])))
