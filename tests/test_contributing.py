"CONTRIBUTING's table: each thing added as a reader would, and found."

import re
from dataclasses import replace
from pathlib import Path

import families
import pytest
import torch
from conftest import TEXTS, random_bert
from test_removals import Neighbour

import lrp_loo.methods.table as methods
from lrp_loo import explain
from lrp_loo.cli import main
from lrp_loo.loo import leave_one_out
from lrp_loo.lrp import lrp_rules
from lrp_loo.lrp.composite import attn_lrp
from lrp_loo.lrp.rules import identity_rule
from lrp_loo.lrp.table import RULES, activation
from lrp_loo.models.encoding import encode
from lrp_loo.records.display import display_tokens, scale_top

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / 'docs' / 'CONTRIBUTING.md').read_text(encoding='utf-8')
TABLE = re.findall(r'^\| (a \w+) \| (.*?) \| .*? \| `(\w+)` \|$', TEXT, re.M)


def test_every_row_names_a_file_and_a_test():
    things = ['a rule', 'a method', 'a removal', 'a family', 'a view']
    assert [thing for thing, *_ in TABLE] == things
    for _, file, test in TABLE:
        assert (ROOT / file.strip('`')).exists(), file
        assert callable(globals()[test])


class WrittenGELU(torch.nn.Module):
    "With an operation that has no rule."

    def forward(self, x):
        return x * (0.5 * (1 + torch.erf(x * 2**-0.5)))


def operations_without_rule(model, enc, rules):
    "Those that carried gradient."
    x = model.get_input_embeddings()(enc['input_ids']).requires_grad_()
    with lrp_rules(model, rules) as watched:
        out = model(inputs_embeds=x, attention_mask=enc['attention_mask'])
    out.logits[0, 0].backward()
    return {str(operation) for operation in watched.without_rule()}


@pytest.mark.filterwarnings('ignore')
def test_a_rule(tokenizer, monkeypatch):
    "Without one the operation is named; for one run alone, and for all."
    model = random_bert(layers=1)
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = WrittenGELU()
    model.requires_grad_(False)
    enc = encode(model, tokenizer, TEXTS[0])
    assert 'erf' in operations_without_rule(model, enc, attn_lrp())
    mine = attn_lrp().with_rule('erf', identity_rule)
    assert operations_without_rule(model, enc, mine) == set()
    monkeypatch.setitem(RULES, 'erf', activation)
    assert operations_without_rule(model, enc, attn_lrp()) == set()


def test_a_method(demo, monkeypatch, capsys):
    "Half of gradient × input, in Python and on the command line."
    original = methods.METHODS['grad_x_input']

    def run(*args, **options):
        scores = original(*args, **options)
        return replace(scores, scores=scores.scores / 2)

    record = methods.Method(run, label='halved', colour='C5')
    monkeypatch.setitem(methods.METHODS, 'halved', record)
    (mine,) = explain(*demo, TEXTS[0], method='halved')
    (whole,) = explain(*demo, TEXTS[0], method='grad_x_input')
    assert torch.allclose(2 * mine.scores, whole.scores)
    assert main(['explain', 'a fine film', '--method', 'halved']) == 0
    assert capsys.readouterr().out.startswith('halved')


def test_a_removal(tokenizer):
    model = random_bert(layers=1)
    enc = encode(model, tokenizer, TEXTS[0])
    scores, logits, target = leave_one_out(model, enc, removal=Neighbour())
    ids = enc['input_ids'].clone()
    ids[0, 2] = ids[0, 1]
    with torch.no_grad():
        without = model(**enc | dict(input_ids=ids)).logits[0, target]
    assert torch.allclose(scores[2], logits[target] - without, atol=1e-5)


def test_a_family(monkeypatch):
    bert = families.FAMILIES['BERT']
    config = bert.config | dict(intermediate_size=96)
    wide = replace(bert, config=config)
    monkeypatch.setitem(families.FAMILIES, 'wide BERT', wide)
    assert ('wide BERT', 'class') in families.family_tasks()
    row = families.family_row('wide BERT', 'class')
    assert row['uncovered'] == 0
    assert row['cp conserved to'] < 1e-6


def test_a_view(demo):
    "A line a token, a star for each fifth of relevance."
    (a,) = explain(*demo, 'a fine film', method='cp_lrp')
    words = [text for _, text in display_tokens(a.tokens)]
    fifths = (5 * a.scores.abs() / scale_top(a)).round().int().tolist()
    lines = [f'{word} {"*" * min(5, n)}' for word, n in zip(words, fifths)]
    assert len(lines) == len(a.tokens)
    assert sum(line.endswith('*****') for line in lines[1:-1]) >= 1
