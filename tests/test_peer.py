"""Against the reference implementation of AttnLRP and CP-LRP, lxt: its numbers on small seeded
models are kept in fixtures/lxt.json (`peer_model.py` makes them).
"""

import json
from pathlib import Path

import pytest
import torch
from conftest import TEXTS
from peer_model import IDS, PAIRS, build, checksum

from lrp_loo import explain

STORED = json.loads((Path(__file__).parent / 'fixtures' / 'lxt.json').read_text())
# (family, rules) → what lxt said when the fixture was made
KEPT = {(p['family'], p['rules']): p for p in STORED['pairs']}


@pytest.fixture(scope='module')
def models():
    return {family: build(family) for family, _ in PAIRS}


def test_the_fixture_is_of_these_texts_and_weights(models, tokenizer):
    assert STORED['ids'] == IDS == tokenizer(TEXTS)['input_ids']
    for (family, _), kept in KEPT.items():
        assert checksum(models[family]) == pytest.approx(kept['weights'], rel=1e-6)
    # else the comparison below could not tell the rule sets apart
    both = (KEPT['llama', rules]['texts'] for rules in ('attn_lrp', 'cp_lrp'))
    for texts in zip(*both):
        a, b = (torch.tensor(text['scores']) for text in texts)
        assert (a - b).abs().max() > 0.01 * a.abs().max()


@pytest.mark.parametrize('family, rules', PAIRS)
def test_our_scores_are_the_reference_packages(models, tokenizer, family, rules):
    theirs = KEPT[family, rules]['texts']
    assert len(theirs) == len(TEXTS)
    for text, peer in zip(TEXTS, theirs):
        (ours,) = explain(models[family], tokenizer, text, method=rules)
        assert abs(ours.logit - peer['logit']) < 1e-6
        scores = torch.tensor(peer['scores'], dtype=torch.double)
        off = (ours.scores.double() - scores).abs().max()
        assert off <= 1e-5 * scores.abs().max()
