"""What is no number of an audit: a method that refuses a model or a text, with its reason; copies
of a text, which count once.
"""

import json

import numpy as np
import pytest
import torch
from conftest import OPINIONS, shallow_demo

from lrp_loo import (
    audit,
    audit_generation,
    audit_pairs,
    calibrate,
    compare_summaries,
    fit_layers,
    load_demo,
    summarize_texts,
)
from lrp_loo.cli import main
from lrp_loo.methods import METHODS
from lrp_loo.tasks.pairs import PAIR_METHODS
from lrp_loo.trust.intervals import load_calibration
from lrp_loo.trust.results import Results, read_results
from lrp_loo.trust.sweep import explain_dataset
from lrp_loo.trust.verdict import verdict

PROMPTS = ['The film was', 'The actors are']
QUIET = dict(progress=False)


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


@pytest.fixture(scope='module')
def decoder():
    return load_demo('reviews')


def refusing(*args, **options):
    "A method that takes no model."
    raise ValueError('no attention\nthat I know')


def choosy(model, tokenizer, encs, target=None):
    "A method that takes short texts alone."
    if max(e['input_ids'].shape[1] for e in encs) > 10:
        raise NotImplementedError('more than 10 tokens')
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


BESIDE = {'cp_lrp': ('cp_lrp', {}), 'refusing': (refusing, {})}


# ------------------------------------------------- a method that refuses


def audited(demo, decoder):
    return audit(*demo, OPINIONS[:2], BESIDE, **QUIET)


def generations_audited(demo, decoder):
    return audit_generation(*decoder, PROMPTS, BESIDE, max_new_tokens=2, **QUIET)


def pairs_audited(demo, decoder):
    two = BESIDE | {'cp_lrp': ('removal', {})}
    return audit_pairs(*demo, OPINIONS[:2], two, **QUIET)


AUDITS = (audited, generations_audited, pairs_audited)


@pytest.mark.parametrize('run', AUDITS)
def test_one_refusal_does_not_end_the_table(demo, decoder, run):
    table = run(demo, decoder)
    r = table.iloc[:, 0]
    assert np.isfinite(r['cp_lrp'])
    assert np.isnan(r['refusing'])


@pytest.mark.parametrize('run', AUDITS)
def test_the_reason_stands_in_a_column_and_below_in_one_line(demo, decoder, run):
    table = run(demo, decoder)
    assert table.refused['cp_lrp'] == ''
    why = 'which refuses: no attention that I know'
    assert table.refused['refusing'] == why
    for shown in (repr(table), table._repr_html_(), repr(table.round(2))):
        assert f'refusing left out, {why}' in shown


@pytest.mark.parametrize('run', AUDITS)
def test_where_none_is_left_it_is_an_error(demo, decoder, run, monkeypatch):
    monkeypatch.setitem(BESIDE, 'cp_lrp', (refusing, {}))
    if run is pairs_audited:
        monkeypatch.setitem(PAIR_METHODS, 'removal', refusing)
    with pytest.raises(ValueError, match='no method is left: .*no attention'):
        run(demo, decoder)


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


def test_an_audit_that_nothing_refused_has_no_such_column(demo):
    table = audit(*demo, OPINIONS[:1], 'cp_lrp', **QUIET)
    assert 'refused' not in table
    assert table.below == []


def test_what_is_no_call_is_an_error(demo):
    "An option that a method does not have is a slip, and no refusal."
    slip = BESIDE | {'attn_lrp': ('attn_lrp', dict(colour='red'))}
    with pytest.raises(TypeError, match='colour'):
        audit(*demo, OPINIONS[:1], slip, **QUIET)


def test_the_reference_may_not_refuse(demo, monkeypatch):
    monkeypatch.setattr('lrp_loo.methods.record.many_loo', refusing)
    with pytest.raises(ValueError, match='no attention'):
        audit(*demo, OPINIONS[:1], 'cp_lrp', **QUIET)


def test_the_defaults_of_a_generations_audit_are_more_than_one_refuses(
    decoder, monkeypatch
):
    "removal+rows knows few models; the others go on."
    rows = METHODS['removal+rows']
    monkeypatch.setitem(METHODS, 'removal+rows', type(rows)(refusing, of_each=True))
    table = audit_generation(*decoder, PROMPTS[:1], max_new_tokens=2, **QUIET)
    assert list(table.index[table.refused != '']) == ['removal+rows']
    assert table.r.notna().sum() == 4


def test_the_verdict_names_who_refused(demo):
    kept = Results(None, {})
    audit(*demo, OPINIONS, BESIDE, results=kept, **QUIET)
    found = verdict(kept.rows)
    assert found['method'] == 'cp_lrp'
    assert found['left_out'] == ['refusing']
    assert 'refusing left out, which refuses them' in found['sentence']


def test_the_command_line_leaves_out_and_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(METHODS, 'rollout', type(METHODS['loo'])(refusing))
    data = tmp_path / 'own.jsonl'
    data.write_text('\n'.join(json.dumps(dict(text=t)) for t in OPINIONS[:2]))
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


# ------------------------------------------------------------- copies


def test_copies_of_a_text_are_one_in_a_verdict(demo):
    kept = Results(None, {})
    audit(*demo, OPINIONS[:1] * 6, 'cp_lrp', results=kept, **QUIET)
    found = verdict(kept.rows)
    assert (found['method'], found['n'], found['n_copies']) == (None, 1, 5)
    assert '5 copies of texts, which count once' in found['sentence']


def test_copies_change_no_number_of_an_audit(demo):
    "Nor does a text that is read alike: this model knows no capitals."
    copied = [*OPINIONS, *OPINIONS[:3], OPINIONS[0].upper()]
    once, twice = (audit(*demo, t, 'cp_lrp', **QUIET) for t in (OPINIONS, copied))
    assert once.equals(twice)
    assert once.below == []
    assert twice.below == ['4 copies of texts, which count once']


def test_one_text_under_two_targets_is_no_copy(demo):
    table = audit(*demo, OPINIONS[:1] * 2, 'cp_lrp', target=[0, 1], **QUIET)
    assert table.n['cp_lrp'] == 2


def test_copies_are_one_for_a_calibration(demo, tmp_path):
    made = calibrate(*demo, OPINIONS[:2] * 5, **QUIET)
    assert (len(made), made.copies) == (2, 8)
    with pytest.raises(ValueError, match='2 texts are too few.*8 copies'):
        made.quantile(0.9)
    made.save(tmp_path / 'c.json')
    assert load_calibration(tmp_path / 'c.json') == made


def test_copies_are_one_for_a_fit(demo):
    with pytest.raises(ValueError, match='4 of the texts have an r'):
        fit_layers(*demo, OPINIONS[:4] * 2, **QUIET)
    once, twice = (fit_layers(*demo, OPINIONS * k, **QUIET) for k in (1, 2))
    assert once == twice


def test_copies_are_one_in_an_audit_of_generations(decoder):
    how = dict(methods=['cp_lrp'], max_new_tokens=2, **QUIET)
    once, twice = (
        audit_generation(*decoder, prompts, **how) for prompts in (PROMPTS, PROMPTS * 3)
    )
    columns = ['r', 'r_se', 'n']
    assert once[columns].equals(twice[columns])
    assert twice.below == ['4 copies of texts, which count once']


def test_copies_are_one_in_an_audit_of_pairs(demo):
    table = audit_pairs(*demo, OPINIONS[:2] * 2, **QUIET)
    assert (table.n == 2).all()
    assert table.below == ['2 copies of texts, which count once']


def test_copies_are_one_in_a_sweeps_table_and_have_their_rows(demo, tmp_path):
    how = dict(methods=['cp_lrp'], model=(*demo, 'demo'), **QUIET)
    once = explain_dataset(OPINIONS, tmp_path / 'once', **how)
    twice = explain_dataset(OPINIONS * 2, tmp_path / 'twice', **how)
    # other batches round otherwise
    assert np.allclose(once.astype(float), twice.astype(float), atol=1e-5)
    assert twice.below == ['6 copies of texts, which count once']


@pytest.fixture(scope='module')
def summaries(demo):
    "Of the texts once, and with a copy of each."
    how = dict(target=1, min_count=1, **QUIET)
    return [summarize_texts(*demo, OPINIONS * k, **how) for k in (1, 2)]


def test_copies_are_one_in_a_words_numbers_and_are_counted(summaries):
    once, twice = (s.to_frame().set_index('word') for s in summaries)
    numbers = ['mean', 'low', 'high', 'mean_abs', 'positive']
    aligned = twice.loc[once.index, numbers]
    # other batches round otherwise
    assert np.allclose(once[numbers], aligned, atol=1e-4, equal_nan=True)
    assert (twice.texts == 2 * once.texts[twice.index]).all()
    assert '6 copies of texts, which count once' in repr(summaries[1])
    assert '6 copies of texts' in summaries[1]._repr_html_()


def test_copies_are_one_where_summaries_are_compared(demo, summaries):
    how = dict(method='removal', target=1, min_count=1, **QUIET)
    means = [
        compare_summaries(s, summarize_texts(*demo, OPINIONS * k, **how)).mean_r
        for k, s in zip((1, 2), summaries)
    ]
    assert means[0] == pytest.approx(means[1], abs=1e-4)


def test_an_image_that_is_there_twice_is_one():
    vit, _ = load_demo('mnist')
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    table = audit(vit, None, [image, image], 'grad_x_input', **QUIET)
    assert table.n['grad_x_input'] == 1
