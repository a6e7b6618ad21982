"""Exact LOO in bfloat16: the numbers of a forward by hand, an error measured on the
text's own tokens, and where it is taken.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import random_bert
from families import random_model

from lrp_loo import audit, explain, load_demo
from lrp_loo.cli import main
from lrp_loo.core.stats import agreement
from lrp_loo.evaluate.sweep import read_sweep, sweep
from lrp_loo.loo import LEAST_UNITS, multiplies_bfloat16
from lrp_loo.models.call import computed_in
from lrp_loo.models.encoding import encode

TEXT = 'A slow start, but the last act is a quiet triumph that nobody will soon forget.'
TEXTS = [TEXT, 'Not one scene of this generous film feels borrowed, and it stays.']
CPU = torch.device('cpu')


def one_by_one(model, enc, target, dtype=None):
    "f(x), and f without each token, by one masked batch in torch.autocast."
    n = enc['input_ids'].shape[1]
    mask = torch.cat([torch.ones(1, n), 1 - torch.eye(n)]).long()
    inputs = {k: v.expand(n + 1, -1) for k, v in enc.items()} | dict(
        attention_mask=mask
    )
    with torch.no_grad(), torch.autocast('cpu', dtype, enabled=dtype is not None):
        logits = model(**inputs).logits.float()
    values = logits.reshape(n + 1, -1)[:, target]
    return values[0], values[1:]


# ---- values


@pytest.mark.parametrize('removal', [None, 'delete', 'zero_embedding'])
def test_f_is_in_float32_and_so_are_the_tokens_called_exact(removal):
    model, tokenizer = load_demo('sst2')
    options = {} if removal is None else dict(removal=removal)
    a, b = (
        explain(model, tokenizer, TEXT, 'loo', precision=p, **options)[0]
        for p in ('float32', 'bfloat16')
    )
    assert abs(a.logit - b.logit) <= 1e-5 * abs(a.logit)
    assert b.exact_units and not b.exact and a.exact
    assert torch.allclose(a.scores[b.exact_units], b.scores[b.exact_units], atol=1e-4)
    others = [i for i in range(len(a)) if i not in b.exact_units]
    assert not torch.allclose(a.scores[others], b.scores[others], atol=1e-4)


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_scores_are_those_of_a_forward_by_hand(name):
    model, tokenizer = load_demo(name)
    enc = encode(model, tokenizer, TEXT)
    a = explain(model, tokenizer, TEXT, 'loo', precision='bfloat16')[0]
    f, _ = one_by_one(model, enc, a.target)
    _, values = one_by_one(model, enc, a.target, torch.bfloat16)
    others = [i for i in range(len(a)) if i not in a.exact_units]
    # other numbers of rows in a product may round otherwise
    close = torch.isclose(a.scores, f - values, atol=0.02 * float(a.scores.abs().max()))
    assert close[others].all()


def test_a_language_models_head_is_in_float32():
    model = random_model('Llama', 'next token', 'sdpa', dtype=torch.float32)
    ids = torch.randint(5, 190, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        hidden = model.base_model(ids).last_hidden_state
        rounded = model(ids).logits
    with torch.no_grad(), computed_in(model, torch.bfloat16):
        logits = model(ids).logits
    head = model.get_output_embeddings()
    expected = torch.nn.functional.linear(hidden.float(), head.weight.detach())
    assert logits.dtype is torch.float32 and rounded.dtype is torch.bfloat16
    assert torch.allclose(logits, expected, atol=1e-6)
    assert not torch.allclose(rounded.float(), expected, atol=1e-6)


def test_units_and_special_tokens():
    model, tokenizer = load_demo('sst2')
    a = explain(model, tokenizer, TEXT, 'loo', units='word', precision='bfloat16')[0]
    b = explain(model, tokenizer, TEXT, 'loo', units='word')[0]
    largest = b.scores.abs().masked_fill(~b.is_content, -1).topk(2).indices.tolist()
    assert {*largest} < {*a.exact_units} and len(a.exact_units) == 3
    assert not a.is_special[a.exact_units].any()


def test_a_template_has_no_part_in_the_error():
    model, tokenizer = load_demo('sst2')
    options = dict(template='I say : {text} That was all', precision='bfloat16')
    a = explain(model, tokenizer, 'not bad at all , a triumph', 'loo', **options)[0]
    assert a.is_content[a.exact_units].all()


# ---- the error


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_the_error_is_measured_on_the_texts_own_tokens(name):
    model, tokenizer = load_demo(name)
    maps = explain(model, tokenizer, TEXTS, 'loo', precision='bfloat16')
    for a, b in zip(maps, explain(model, tokenizer, TEXTS, 'loo')):
        error = (a.scores - b.scores)[b.is_content].abs().max()
        error = float(error / b.scores[b.is_content].abs().max())
        assert 0 < a.expected_error < 0.1 and error < 4 * a.expected_error
        r = agreement(a.scores, b.scores, ~b.is_content)
        assert 0.99 < a.expected_r < 1 and abs(r - a.expected_r) < 0.005
        assert a.info['precision'] == 'bfloat16' and 'bfloat16' in repr(a)
        assert 'LOO in bfloat16' in a._repr_html_()


def test_a_coarser_rounding_has_a_larger_expected_error():
    "The error is no constant: a model that rounds to a tenth in bfloat16 shows it."
    model, tokenizer = load_demo('sst2')
    before = explain(model, tokenizer, TEXT, 'loo', precision='bfloat16')[0]

    def coarse(classifier, args, out):
        return (out * 4).round() / 4 if out.dtype is torch.bfloat16 else out

    hook = model.classifier.register_forward_hook(coarse)
    after = explain(model, tokenizer, TEXT, 'loo', precision='bfloat16')[0]
    hook.remove()
    assert after.expected_error > 3 * before.expected_error
    assert after.expected_r < before.expected_r
    same = sorted({*after.exact_units} & {*before.exact_units})
    assert torch.allclose(after.scores[same], before.scores[same], atol=1e-4)


# ---- within a budget


def test_a_budget_takes_all_tokens_in_bfloat16_where_they_fit():
    model, tokenizer = load_demo('sst2')
    text = f'{TEXT} {TEXT}'
    a = explain(model, tokenizer, text, precision='bfloat16')[0]
    assert a.info['precision'] == 'bfloat16' and len(a.exact_units) == 3
    assert a.passes < len(a) and a.info['exact_passes'] > a.passes
    long = explain(model, tokenizer, ' '.join([TEXT] * 6), precision='bfloat16')[0]
    assert long.info['precision'] == 'float32' and 'estimated' in long.spent
    plain = explain(model, tokenizer, ' '.join([TEXT] * 6))[0]
    assert torch.equal(long.scores, plain.scores)


# ---- float32 stays as it is


def test_float32_is_the_default_and_unchanged():
    model, tokenizer = load_demo('sst2')
    for method in ('loo', 'auto'):
        a, b = (
            explain(model, tokenizer, TEXTS, method, **options)
            for options in ({}, dict(precision='float32'))
        )
        for x, y in zip(a, b):
            assert torch.equal(x.scores, y.scores) and x.logit == y.logit
            assert x.exact_units == y.exact_units and 'precision' not in x.info


def test_nothing_stays_behind():
    model, tokenizer = load_demo('sst2')
    before = {k: v.clone() for k, v in model.state_dict().items()}
    n_hooks = sum(len(m._forward_hooks) for m in model.modules())
    explain(model, tokenizer, TEXT, 'loo', precision='bfloat16')
    assert not torch.is_autocast_enabled('cpu')
    assert sum(len(m._forward_hooks) for m in model.modules()) == n_hooks
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(
        v.equal(after[k]) and v.dtype == after[k].dtype for k, v in before.items()
    )


# ---- where 'auto' takes it


PROGRAM = """
import torch
from lrp_loo.loo import multiplies_bfloat16
print(multiplies_bfloat16(torch.device('cpu')))
"""
LIMITS = [('ATEN_CPU_CAPABILITY', 'default'), ('ONEDNN_MAX_CPU_ISA', 'AVX512_CORE')]
LIMITS += [('DNNL_MAX_CPU_ISA', 'avx2'), ('ATEN_CPU_CAPABILITY', 'avx2')]


@pytest.mark.parametrize('name,value', LIMITS[:2])
def test_a_process_without_the_hardware_does_not_take_it(name, value):
    command = [sys.executable, '-c', PROGRAM]
    env = os.environ | {name: value}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == 'False'


@pytest.mark.parametrize('name,value', LIMITS[1:3])
def test_limits_of_onednn_count(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not multiplies_bfloat16(CPU)


@pytest.mark.parametrize('has_hardware', [True, False])
def test_auto_follows_the_rule_and_says_so(monkeypatch, has_hardware):
    from lrp_loo import loo

    monkeypatch.setattr(loo, 'multiplies_bfloat16', lambda device: has_hardware)
    model, tokenizer = load_demo('sst2')
    long, short = f'{TEXT} {TEXT}', 'Not bad at all.'
    maps = explain(model, tokenizer, [long, short], 'loo', precision='auto')
    expected = 'bfloat16' if has_hardware else 'float32'
    assert [a.info['precision'] for a in maps] == [expected, 'float32']
    assert [a.exact for a in maps] == [not has_hardware, True]
    assert len(maps[0]) >= LEAST_UNITS > len(maps[1])
    narrow = load_demo('reviews-sst2')  # layers that are too small to gain
    assert explain(*narrow, long, 'loo', precision='auto')[0].exact
    if not has_hardware:
        plain = explain(model, tokenizer, [long, short], 'loo')
        assert all(torch.equal(a.scores, b.scores) for a, b in zip(maps, plain))


def test_auto_leaves_a_model_of_another_precision_as_it_is(tokenizer, monkeypatch):
    from lrp_loo import loo

    monkeypatch.setattr(loo, 'multiplies_bfloat16', lambda device: True)
    for dtype in (torch.bfloat16, torch.float64):
        model = random_bert(dtype=dtype)
        a = explain(model, tokenizer, TEXT, 'loo', precision='auto')[0]
        assert a.exact and torch.equal(
            a.scores, explain(model, tokenizer, TEXT, 'loo')[0].scores
        )


# ---- refused


def test_refused(tokenizer):
    model = random_bert()
    cases = [
        (model, 'loo', 'bf16', ValueError, "did you mean 'bfloat16'"),
        (model, 'loo', 'float16', ValueError, "'float32', 'bfloat16' or 'auto'"),
        (model, 'loo', None, ValueError, 'precision must be'),
        (model, 'attn_lrp', 'bfloat16', TypeError, "take method='loo'"),
        (model, 'ig', 'auto', TypeError, "take method='loo'"),
        (model, 'removal', 'bfloat16', TypeError, "take method='loo'"),
        (random_bert(dtype=torch.bfloat16), 'loo', 'bfloat16', ValueError, 'leave'),
        (random_bert(dtype=torch.float64), 'auto', 'bfloat16', ValueError, 'leave'),
    ]
    for model, method, precision, error, message in cases:
        with pytest.raises(error, match=message):
            explain(model, tokenizer, TEXT, method, precision=precision)
    with torch.autocast('cpu', torch.bfloat16):
        with pytest.raises(ValueError, match='outside of torch.autocast'):
            explain(random_bert(), tokenizer, TEXT, 'loo', precision='bfloat16')


# ---- data sets, the shell


def test_an_audit_says_in_which_precision_loo_is():
    model, tokenizer = load_demo('sst2')
    options = dict(precision='bfloat16', progress=False)
    table = audit(model, tokenizer, TEXTS, ['loo', 'removal'], **options)
    plain = audit(model, tokenizer, TEXTS, ['loo', 'removal'], progress=False)
    (line,) = [line for line in table.below if 'bfloat16' in line]
    assert line.startswith('LOO of 2 of 2 texts in bfloat16') and '0.99' in line
    assert not any('bfloat16' in line for line in plain.below)
    assert 0 < abs(table.loo_r['removal'] - plain.loo_r['removal']) < 0.01
    with pytest.raises(ValueError, match="did you mean 'bfloat16'"):
        audit(model, tokenizer, TEXTS, precision='bf16', progress=False)


def test_a_sweep_keeps_rows_of_two_precisions_apart(tmp_path):
    model, tokenizer = load_demo('sst2')
    arguments = (model, tokenizer, TEXTS, tmp_path, 'removal')
    table = sweep(*arguments, precision='bfloat16', progress=False)
    assert any('bfloat16' in line for line in table.below)
    rows = read_sweep(tmp_path)
    for text, loo in zip(TEXTS, rows.loo):
        a = explain(model, tokenizer, text, 'loo')[0]
        difference = (torch.tensor(loo) - a.scores).abs().max()
        # beyond what another batch changes in float32
        assert 1e-3 < float(difference) < 0.05 * float(a.scores.abs().max())
    table = sweep(*arguments, progress=False)
    assert not any('bfloat16' in line for line in table.below)
    for text, loo in zip(TEXTS, read_sweep(tmp_path).loo):
        assert np.allclose(
            loo, explain(model, tokenizer, text, 'loo')[0].scores, atol=1e-4
        )


def test_the_shell(capsys):
    assert main(['explain', TEXT, '--method', 'loo', '--precision', 'bfloat16']) == 0
    assert 'LOO in bfloat16, error about' in capsys.readouterr().out
    for method in ('ig', 'attn_lrp,cp_lrp'):
        assert main(['explain', TEXT, '--method', method, '--precision', 'auto']) == 2
        assert '--precision belongs to auto and loo' in capsys.readouterr().err
