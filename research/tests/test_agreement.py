"Table A3 at every step: which rule sets, which curves, how they are filed."

import pytest
from conftest import shallow_demo

from lrp_lab import parts
from lrp_lab.agreement import all_steps
from lrp_lab.parts import SENTENCES, Comparison
from lrp_loo.paper.common import RunOptions
from lrp_loo.paper.tables import layer_table
from lrp_loo.paper.ledger import CLAIMS, Rows
from lrp_loo.records.results import read_results


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Four sentences on the encoder, two layers deep, in MPNet's place."
    path = tmp_path_factory.mktemp('steps') / 'steps.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        steps = Comparison('steps', all_steps, dict(few=SENTENCES['minilm']))
        steps(path, 'few', RunOptions('embedded', limit=4))
    return read_results(path)


def test_every_step_has_its_curves_and_a_rule_set_one_number(measured):
    table = layer_table(measured)
    assert len(table) == 9  # k = 0, 1, 2 of three sweeps
    assert table[['loo_r', 'lerf', 'morf', 'delta']].notna().all().all()
    table = table.set_index(['sweep', 'k'])
    assert table.loc[('first', 1)].delta == table.loc[('single', 1)].delta
    assert table.loc[('first', 2)].delta == table.loc[('last', 2)].delta
    assert table.loc[('first', 1)].delta != table.loc[('last', 1)].delta


def test_claims_about_the_gap_are_decided_by_these_rows(measured):
    rows = Rows(measured['rows'], 2)
    by_key = {claim.key: claim for claim in CLAIMS}
    upper, lower = (
        rows.of(m, 'delta') - rows.of('attn_lrp', 'delta')
        for m in ('bypass 2', 'bypass 1')
    )
    assert by_key['upper-half-gap'].difference(rows).tolist() == upper.tolist()
    single = by_key['upper-single-gap'].difference(rows)
    assert single.tolist() == (upper - lower).tolist()
    assert by_key['upper-half'].difference(rows).tolist() != upper.tolist()


def test_an_unknown_part_is_refused(tmp_path):
    steps = Comparison('steps', all_steps, dict(few=SENTENCES['minilm']))
    with pytest.raises(ValueError, match='take one of few'):
        steps(tmp_path / 'x.json', 'steps-bert')
