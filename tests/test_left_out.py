"What an audit leaves out: a refusal, with its reason; copies, which count once."

from functools import cache, partial

from conftest import OPINIONS, shallow_demo
import numpy as np
import pytest
import torch

from lrp_loo import audit, audit_generation, calibrate
from lrp_loo import load, load_demo, summarize_texts, sweep
from lrp_loo.cli import main
from lrp_loo.records.results import Results, read_results
from lrp_loo.methods.table import METHODS

PROMPTS, QUIET = OPINIONS[:2], dict(progress=False)
DECODER = cache(partial(load_demo, 'reviews'))


@pytest.fixture(scope='module')
def demo():
    return shallow_demo('sst2')


def refusing(*args, **options):
    "A method that takes no model."
    raise ValueError('no attention\nthat I know')


def choosy(model, tokenizer, encs, target=None):
    "A method that takes short texts only."
    if max(e['input_ids'].shape[1] for e in encs) > 10:
        raise NotImplementedError('more than 10 tokens')
    return METHODS['attn_lrp'](model, tokenizer, encs, target)


METHODS_OF_AUDIT = {'cp_lrp': ('cp_lrp', {}), 'refusing': (refusing, {})}
REASON = 'which refuses: no attention that I know'


@pytest.mark.parametrize('of', ['texts', 'generations'])
def test_a_refusal_does_not_end_the_table_and_its_reason_is_reported(demo, of):
    def run(methods):
        if of == 'texts':
            return audit(*demo, PROMPTS, methods, **QUIET)
        return audit_generation(*DECODER(), PROMPTS, methods, max_new_tokens=2, **QUIET)

    table = run(METHODS_OF_AUDIT)
    r = table.iloc[:, 0]
    assert np.isfinite(r['cp_lrp']) and np.isnan(r['refusing'])
    assert table.refused[['cp_lrp', 'refusing']].tolist() == ['', REASON]
    for shown in (repr(table), table._repr_html_(), repr(table.round(2))):
        assert f'refusing left out, {REASON}' in shown
    with pytest.raises(ValueError, match='no method is left: .*no attention'):
        run({'refusing': (refusing, {})})


def test_a_method_that_refuses_a_text_is_measured_on_the_others(demo):
    methods = {'choosy': (choosy, {}), 'cp_lrp': ('cp_lrp', {})}
    kept = Results(None, {})
    table = audit(*demo, OPINIONS, methods, results=kept, **QUIET)
    is_long = [row['n_tokens'] > 10 for row in kept.rows]
    n = sum(is_long)
    assert 0 < n < len(is_long) and table.n_undefined['choosy'] == n
    assert table.refused['choosy'] == f'on {n} of {len(is_long)}: more than 10 tokens'
    short = [t for t, long in zip(OPINIONS, is_long) if not long]
    alone = audit(*demo, short, {'choosy': (choosy, {})}, **QUIET)
    assert np.isclose(table.loo_r['choosy'], alone.loo_r['choosy'], atol=1e-6)


def test_errors_of_the_call_and_of_the_reference_are_raised(demo, monkeypatch):
    "An option that a method does not have is no refusal."
    methods = METHODS_OF_AUDIT | {'attn_lrp': ('attn_lrp', dict(colour='red'))}
    with pytest.raises(TypeError, match='colour'):
        audit(*demo, OPINIONS[:1], methods, **QUIET)
    monkeypatch.setitem(METHODS, 'loo', type(METHODS['loo'])(refusing))
    with pytest.raises(ValueError, match='no attention'):
        audit(*demo, OPINIONS[:1], 'cp_lrp', **QUIET)


def test_the_command_line_prints_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(METHODS, 'rollout', type(METHODS['loo'])(refusing))
    data, out = tmp_path / 'own.txt', tmp_path / 'audit.json'
    data.write_text('\n'.join(PROMPTS))
    words = ['audit', '--data', str(data), '--method', 'rollout,cp_lrp']
    assert main([*words, '--out', str(out)]) == 0
    assert f'rollout left out, {REASON}\n' in capsys.readouterr().out
    assert read_results(out)['summary']['table']['rollout']['refused'] == REASON


def test_copies_change_no_number_of_an_audit(demo):
    "Nor does a text that is read alike: this model knows no capitals."
    four = ['4 copies of texts, which count once']
    copied = [*OPINIONS, *OPINIONS[:3], OPINIONS[0].upper()]
    once, twice = (audit(*demo, t, 'cp_lrp', **QUIET) for t in (OPINIONS, copied))
    same = [table.drop(columns='seconds') for table in (once, twice)]
    assert same[0].equals(same[1]) and (once.below, twice.below) == ([], four)
    table = audit(*demo, OPINIONS[:1] * 2, 'cp_lrp', target=[0, 1], **QUIET)
    assert table.n['cp_lrp'] == 2  # of two targets
    how = dict(method=['cp_lrp'], max_new_tokens=2, **QUIET)
    once, twice = (audit_generation(*DECODER(), PROMPTS * k, **how) for k in (1, 3))
    columns = ['r', 'r_se', 'n']
    assert once[columns].equals(twice[columns]) and twice.below == four
    vit, _ = load_demo('mnist')
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    table = audit(vit, None, [image, image], 'grad_x_input', **QUIET)
    assert table.n['grad_x_input'] == 1


def test_copies_count_once_in_a_calibration_and_a_sweep(demo, tmp_path):
    made = calibrate(*demo, PROMPTS * 5, 'removal', **QUIET)
    assert (len(made), made.copies) == (2, 8)
    with pytest.raises(ValueError, match='2 texts are too few.*8 copies'):
        made.quantile(0.9)
    made.save(tmp_path / 'c.json')
    assert load(tmp_path / 'c.json') == made
    how = dict(method='cp_lrp', **QUIET)
    once = sweep(*demo, OPINIONS, tmp_path / 'once', **how)
    twice = sweep(*demo, OPINIONS * 2, tmp_path / 'twice', **how)
    # other batches round differently: by 1e-7, and LOO is 0.01 here
    assert np.allclose(once.astype(float), twice.astype(float), atol=1e-4)
    assert twice.below == ['6 copies of texts, which count once']


def test_copies_count_once_in_a_summary(demo):
    how = dict(target=1, min_count=1, **QUIET)
    once, twice = (summarize_texts(*demo, OPINIONS * k, **how) for k in (1, 2))
    words, of_copies = (s.to_frame().set_index('word') for s in (once, twice))
    columns = ['mean', 'low', 'high', 'mean_abs', 'positive']
    of_copies = of_copies.loc[words.index]
    # other batches round differently
    same = np.allclose(words[columns], of_copies[columns], atol=1e-4, equal_nan=True)
    assert same and (of_copies.texts == 2 * words.texts).all()
    for shown in (repr(twice), twice._repr_html_()):
        assert '6 copies of texts' in ' '.join(shown.split())
