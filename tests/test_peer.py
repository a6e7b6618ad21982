"""Against the reference implementation of AttnLRP, where one is at hand: set LRP_LOO_LXT_PYTHON to the python of an environment with lxt 2.1
(pip install torch==2.13.0 'transformers==4.52.4' lxt==2.1; it cannot share an environment with transformers 5).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import TEXTS, random_bert

from lrp_loo import explain
from lrp_loo.models import encode

PEER = os.environ.get('LRP_LOO_LXT_PYTHON')


@pytest.mark.skipif(
    not PEER, reason='LRP_LOO_LXT_PYTHON names no environment with lxt'
)
def test_attn_lrp_is_the_reference_packages(tokenizer, tmp_path):
    model = random_bert(layers=3)
    model.save_pretrained(tmp_path / 'model')
    model = model.double()
    ids = [encode(model, tokenizer, t)['input_ids'][0].tolist() for t in TEXTS]
    (tmp_path / 'ids.json').write_text(json.dumps(ids))
    subprocess.run(
        [
            PEER,
            str(Path(__file__).with_name('peer_lxt.py')),
            str(tmp_path / 'model'),
            str(tmp_path / 'ids.json'),
            str(tmp_path / 'out.json'),
        ],
        check=True,
    )
    for text, peer in zip(
        TEXTS, json.loads((tmp_path / 'out.json').read_text())
    ):
        ours = explain(model, tokenizer, text, method='attn_lrp')[0]
        theirs = torch.tensor(peer['scores'], dtype=torch.double)
        print(
            text,
            'relative difference',
            float(
                (ours.scores.double() - theirs).abs().max() / theirs.abs().max()
            ),
        )
        assert abs(ours.logit - peer['logit']) < 1e-6
        assert (
            ours.scores.double() - theirs
        ).abs().max() <= 1e-5 * theirs.abs().max()
