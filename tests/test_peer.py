"""Against the reference implementation of AttnLRP and CP-LRP, lxt: its numbers on small seeded
models are kept in fixtures/lxt.json, and held everywhere. Where LRP_LOO_LXT_PYTHON names the
python of an environment with lxt, it computes them again (`peer_lxt.py` says what that needs; it
cannot share an environment with transformers 5).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import TEXTS
from peer_model import IDS, PAIRS, build, checksum

from lrp_loo import explain

PEER = os.environ.get('LRP_LOO_LXT_PYTHON')
HERE = Path(__file__).parent
STORED = json.loads((HERE / 'fixtures' / 'lxt.json').read_text())
FAMILIES = dict.fromkeys(family for family, _ in PAIRS)


@pytest.fixture(scope='module')
def models():
    return {family: build(family) for family in FAMILIES}


@pytest.fixture(scope='module')
def kept():
    "(family, rules) → what lxt said when the fixture was made."
    return {(p['family'], p['rules']): p for p in STORED['pairs']}


@pytest.fixture(scope='module')
def live():
    "(family, rules) → what lxt says now."

    def rows(family, rules):
        command = [PEER, str(HERE / 'peer_lxt.py'), family, rules]
        environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        )
        return json.loads(done.stdout.splitlines()[-1])

    return rows


def assert_ours_are(theirs, model, tokenizer, rules):
    "Logits and scores of every text."
    assert len(theirs['texts']) == len(TEXTS)
    for text, peer in zip(TEXTS, theirs['texts']):
        (ours,) = explain(model, tokenizer, text, method=rules)
        assert abs(ours.logit - peer['logit']) < 1e-6
        scores = torch.tensor(peer['scores'], dtype=torch.double)
        off = (ours.scores.double() - scores).abs().max()
        assert off <= 1e-5 * scores.abs().max()


def test_the_fixture_is_of_these_texts(tokenizer):
    assert STORED['ids'] == IDS == tokenizer(TEXTS)['input_ids']


@pytest.mark.parametrize('family', FAMILIES)
def test_the_fixture_is_of_these_weights(models, kept, family):
    weights = kept[family, 'attn_lrp']['weights']
    assert abs(checksum(models[family]) - weights) < 1e-6 * weights


@pytest.mark.parametrize('family, rules', PAIRS)
def test_our_scores_are_the_reference_packages(models, kept, tokenizer, family, rules):
    theirs = kept[family, rules]
    assert_ours_are(theirs, models[family], tokenizer, rules)


def test_the_two_rule_sets_differ_on_the_fixtures_model(kept):
    "Else the comparison above could not tell them apart."
    for attn, cp in zip(
        kept['llama', 'attn_lrp']['texts'], kept['llama', 'cp_lrp']['texts']
    ):
        a = torch.tensor(attn['scores'])
        b = torch.tensor(cp['scores'])
        assert (a - b).abs().max() > 0.01 * a.abs().max()


@pytest.mark.skipif(not PEER, reason='LRP_LOO_LXT_PYTHON names no environment with lxt')
@pytest.mark.parametrize('family, rules', PAIRS)
def test_the_reference_package_says_the_same_now(
    models, live, tokenizer, family, rules
):
    theirs = live(family, rules)
    assert_ours_are(theirs, models[family], tokenizer, rules)
