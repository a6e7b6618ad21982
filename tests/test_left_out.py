"What is no number of an audit: a refusal, with its reason; copies, which count once."

import json
from functools import cache, partial

from conftest import OPINIONS, shallow_demo
import numpy as np
import pytest
import torch

from lrp_loo import audit, audit_generation, audit_pairs, calibrate, compare_summaries
from lrp_loo import fit_layers, load_demo, summarize_texts
from lrp_loo.cli import main
from lrp_loo.methods import METHODS
from lrp_loo.tasks.pairs import PAIR_METHODS
from lrp_loo.trust.intervals import load_calibration
from lrp_loo.trust.results import Results, read_results
from lrp_loo.trust.sweep import sweep
from lrp_loo.trust.verdict import verdict

PROMPTS, QUIET = OPINIONS[:2], dict(progress=False)
DECODER = cache(partial(load_demo, 'reviews'))


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


def refusing(*args, **options):
    "A method that takes no model."
    raise ValueError('no attention\nthat I know')


def choosy(model, tokenizer, encs, target=None):
    "A method that takes short texts alone."
    if max(e['input_ids'].shape[1] for e in encs) > 10:
        raise NotImplementedError('more than 10 tokens')
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


BESIDE = {'cp_lrp': ('cp_lrp', {}), 'refusing': (refusing, {})}


def audits(demo):
    "Calls of the three, which all take BESIDE."
    two = BESIDE | {'cp_lrp': ('removal', {})}
    how = dict(max_new_tokens=2, **QUIET)
    return dict(
        texts=lambda: audit(*demo, PROMPTS, BESIDE, **QUIET),
        generations=lambda: audit_generation(*DECODER(), PROMPTS, BESIDE, **how),
        pairs=lambda: audit_pairs(*demo, PROMPTS, two, **QUIET),
    )


every_audit = pytest.mark.parametrize('of', ['texts', 'generations', 'pairs'])


@every_audit
def test_a_refusal_does_not_end_the_table_and_its_reason_is_said(demo, of):
    table = audits(demo)[of]()
    r = table.iloc[:, 0]
    assert np.isfinite(r['cp_lrp'])
    assert np.isnan(r['refusing'])
    assert table.refused['cp_lrp'] == ''
    why = 'which refuses: no attention that I know'
    assert table.refused['refusing'] == why
    for shown in (repr(table), table._repr_html_(), repr(table.round(2))):
        assert f'refusing left out, {why}' in shown


@every_audit
def test_where_none_is_left_it_is_an_error(demo, of, monkeypatch):
    monkeypatch.setitem(BESIDE, 'cp_lrp', (refusing, {}))
    if of == 'pairs':
        monkeypatch.setitem(PAIR_METHODS, 'removal', refusing)
    with pytest.raises(ValueError, match='no method is left: .*no attention'):
        audits(demo)[of]()


def test_a_method_that_refuses_a_text_is_held_on_the_others(demo):
    some = {'choosy': (choosy, {}), 'cp_lrp': ('cp_lrp', {})}
    kept = Results(None, {})
    table = audit(*demo, OPINIONS, some, results=kept, **QUIET)
    n = [row['n_tokens'] > 10 for row in kept.rows]
    assert 0 < sum(n) < len(n)
    assert table.refused['choosy'] == (f'on {sum(n)} of {len(n)}: more than 10 tokens')
    assert table.n_undefined['choosy'] == sum(n)
    short = [t for t, long in zip(OPINIONS, n) if not long]
    alone = audit(*demo, short, {'choosy': (choosy, {})}, **QUIET)
    assert table.loo_r['choosy'] == pytest.approx(alone.loo_r['choosy'])
    plain = audit(*demo, OPINIONS[:1], 'cp_lrp', **QUIET)
    assert 'refused' not in plain and plain.below == []


def test_a_verdict_names_who_refused_and_counts_copies_once(demo):
    kept, copied = Results(None, {}), Results(None, {})
    audit(*demo, OPINIONS, BESIDE, results=kept, **QUIET)
    found = verdict(kept.rows)
    assert (found['method'], found['left_out']) == ('cp_lrp', ['refusing'])
    assert 'refusing left out, which refuses them' in found['sentence']
    audit(*demo, OPINIONS[:1] * 6, 'cp_lrp', results=copied, **QUIET)
    found = verdict(copied.rows)
    assert (found['method'], found['n'], found['n_copies']) == (None, 1, 5)
    assert '5 copies of texts, which count once' in found['sentence']


def test_what_is_no_call_is_an_error(demo):
    "An option that a method does not have is a slip, and no refusal."
    slip = BESIDE | {'attn_lrp': ('attn_lrp', dict(colour='red'))}
    with pytest.raises(TypeError, match='colour'):
        audit(*demo, OPINIONS[:1], slip, **QUIET)


def test_the_reference_may_not_refuse(demo, monkeypatch):
    monkeypatch.setattr('lrp_loo.methods.record.many_loo', refusing)
    with pytest.raises(ValueError, match='no attention'):
        audit(*demo, OPINIONS[:1], 'cp_lrp', **QUIET)


def test_the_command_line_leaves_out_and_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(METHODS, 'rollout', type(METHODS['loo'])(refusing))
    data = tmp_path / 'own.jsonl'
    data.write_text('\n'.join(json.dumps(dict(text=t)) for t in PROMPTS))
    out = tmp_path / 'audit.json'
    words = ['audit', '--data', str(data), '--methods', 'rollout,cp_lrp']
    assert main([*words, '--out', str(out)]) == 0
    said = capsys.readouterr().out
    why = 'which refuses: no attention that I know'
    assert f'rollout left out, {why}\n' in said
    table = read_results(out)['summary']['table']
    assert table['rollout']['refused'] == why
    assert main([*words, '--json']) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed['table']['rollout']['refused'] == why


def test_copies_change_no_number_of_an_audit(demo):
    "Nor does a text that is read alike: this model knows no capitals."
    copied = [*OPINIONS, *OPINIONS[:3], OPINIONS[0].upper()]
    once, twice = (audit(*demo, t, 'cp_lrp', **QUIET) for t in (OPINIONS, copied))
    assert once.equals(twice)
    four = ['4 copies of texts, which count once']
    assert (once.below, twice.below) == ([], four)
    table = audit(*demo, OPINIONS[:1] * 2, 'cp_lrp', target=[0, 1], **QUIET)
    assert table.n['cp_lrp'] == 2  # of two targets
    table = audit_pairs(*demo, PROMPTS * 2, **QUIET)
    assert (table.n == 2).all()
    assert table.below == ['2 copies of texts, which count once']
    how = dict(method=['cp_lrp'], max_new_tokens=2, **QUIET)
    once, twice = (audit_generation(*DECODER(), PROMPTS * k, **how) for k in (1, 3))
    columns = ['r', 'r_se', 'n']
    assert once[columns].equals(twice[columns])
    assert twice.below == four
    vit, _ = load_demo('mnist')
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    table = audit(vit, None, [image, image], 'grad_x_input', **QUIET)
    assert table.n['grad_x_input'] == 1


def test_copies_are_one_for_a_calibration_and_a_fit(demo, tmp_path):
    made = calibrate(*demo, PROMPTS * 5, 'removal', **QUIET)
    assert (len(made), made.copies) == (2, 8)
    with pytest.raises(ValueError, match='2 texts are too few.*8 copies'):
        made.quantile(0.9)
    made.save(tmp_path / 'c.json')
    assert load_calibration(tmp_path / 'c.json') == made
    with pytest.raises(ValueError, match='4 of the texts have an r'):
        fit_layers(*demo, OPINIONS[:4] * 2, **QUIET)
    once, twice = (fit_layers(*demo, OPINIONS * k, **QUIET) for k in (1, 2))
    assert once == twice


def test_copies_are_one_in_a_sweeps_table_and_have_their_rows(demo, tmp_path):
    how = dict(method='cp_lrp', **QUIET)
    once = sweep(*demo, OPINIONS, tmp_path / 'once', **how)
    twice = sweep(*demo, OPINIONS * 2, tmp_path / 'twice', **how)
    # other batches round otherwise
    assert np.allclose(once.astype(float), twice.astype(float), atol=1e-5)
    assert twice.below == ['6 copies of texts, which count once']


def test_copies_are_one_in_a_words_numbers_and_are_counted(demo):
    how = dict(target=1, min_count=1, **QUIET)
    both = [summarize_texts(*demo, OPINIONS * k, **how) for k in (1, 2)]
    once, twice = (s.to_frame().set_index('word') for s in both)
    numbers = ['mean', 'low', 'high', 'mean_abs', 'positive']
    aligned = twice.loc[once.index, numbers]
    # other batches round otherwise
    assert np.allclose(once[numbers], aligned, atol=1e-4, equal_nan=True)
    assert (twice.texts == 2 * once.texts[twice.index]).all()
    for shown in (repr(both[1]), both[1]._repr_html_()):
        assert '6 copies of texts' in shown
    means = [
        compare_summaries(
            s, summarize_texts(*demo, OPINIONS * k, method='removal', **how)
        ).mean_r
        for k, s in zip((1, 2), both)
    ]
    assert means[0] == pytest.approx(means[1], abs=1e-4)
