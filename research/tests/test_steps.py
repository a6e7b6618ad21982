"Table A3 at every step: which rule sets, which curves, how they are filed."

import pytest
from conftest import shallow_demo

from lrp_lab import parts
from lrp_lab.parts import SENTENCES
from lrp_lab.run import groups_of, studies
from lrp_lab.steps import STEPS, steps_experiment, steps_tables
from lrp_loo.paper.layerwise import layer_table
from lrp_loo.paper.ledger import CLAIMS, Rows
from lrp_loo.trust.results import read_results


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Four sentences on the encoder, two layers deep, in MPNet's place."
    path = tmp_path_factory.mktemp('steps') / 'steps.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        patch.setitem(STEPS, 'steps-mpnet-sst2', SENTENCES['minilm'])
        steps_experiment(path, 'steps-mpnet-sst2', 'embedded', limit=4)
    return read_results(path)


def test_every_step_has_its_curves(measured):
    table = layer_table(measured)
    # k = 0, 1, 2 of three sweeps
    assert len(table) == 9
    assert table[['loo_r', 'lerf', 'morf', 'delta']].notna().all().all()


def test_one_rule_set_has_one_number_wherever_it_stands(measured):
    table = layer_table(measured).set_index(['sweep', 'k'])
    first_alone = table.loc[('single', 1)]
    assert table.loc[('first', 1)].delta == first_alone.delta
    assert table.loc[('first', 2)].delta == table.loc[('last', 2)].delta
    assert table.loc[('first', 1)].delta != table.loc[('last', 1)].delta


def test_reviews_lose_sixteen_tokens_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, 'load_demo', shallow_demo)
    longer = dict(demo='imdb', longest=512)  # as the embedded ones are
    reviews = STEPS['steps-mpnet-imdb']._replace(**longer)
    monkeypatch.setitem(STEPS, 'steps-mpnet-imdb', reviews)
    path = tmp_path / 'steps.json'
    steps_experiment(path, 'steps-mpnet-imdb', 'embedded', limit=1)
    config = read_results(path)['config']
    assert config['chunk'] == 16
    assert config['data']['name'] == 'imdb'


def test_claims_about_the_gap_are_decided_by_these_rows(measured):
    rows = Rows(measured['rows'], 2)
    by_key = {claim.key: claim for claim in CLAIMS}
    upper = by_key['upper-half-gap'].difference(rows)
    gap = rows.of('bypass 2', 'delta') - rows.of('attn_lrp', 'delta')
    assert upper.tolist() == gap.tolist()
    single = by_key['upper-single-gap'].difference(rows)
    lower = rows.of('bypass 1', 'delta') - rows.of('attn_lrp', 'delta')
    assert single == pytest.approx(gap - lower)
    assert by_key['best-single-gap'].difference(rows).shape == (4,)


def test_claims_about_the_gap_differ_from_those_about_r(measured):
    rows = Rows(measured['rows'], 2)
    by_key = {claim.key: claim for claim in CLAIMS}
    for key in ('upper-half', 'upper-single'):
        of_gap = by_key[f'{key}-gap'].difference(rows)
        assert of_gap.tolist() != by_key[key].difference(rows).tolist()


def test_it_is_printed_as_table_a3(measured):
    ((heading, text),) = steps_tables('steps-mpnet-sst2', measured)
    assert '4 rows' in heading
    for column in ('lerf', 'morf', 'delta'):
        assert column in text


def test_each_part_is_asked_for_by_a_word_of_its_own():
    assert set(STEPS) <= set(groups_of(studies())['scale'])
    mine = [s for s in studies() if s.name.startswith('steps')]
    files = [part for s in mine for part in s.files]
    assert sorted(files) == sorted(STEPS)
    figures = [name for s in mine for name in s.figures]
    assert figures == ['steps-mpnet', 'steps-smollm2']


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match='steps-mpnet-sst2'):
        steps_experiment(tmp_path / 'x.json', 'steps-bert', 'embedded')
