"Coverage of intervals on rows: what is covered, how wide, what settles a top."

import numpy as np
import pytest
from conftest import shallow_demo

from lrp_lab import parts
from lrp_lab.coverage import (
    COVERAGE,
    SETS,
    UNITS_OF,
    UNSURE,
    calibrated,
    coverage_experiment,
    coverage_row,
    coverage_table,
    coverage_tables,
    covered,
    passes_table,
    passes_to_settle,
    plot_coverage,
    rows_of_set,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.models.encoding import encode
from lrp_loo.trust.results import read_results

PART = 'coverage-minilm-sst2'


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    "Twenty sentences to calibrate on and twenty others, two layers deep."
    path = tmp_path_factory.mktemp('coverage') / f'{PART}.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, 'load_demo', shallow_demo)
        sets = COVERAGE[PART]
        near = sets['test']._replace(demo='sst2')
        patch.setitem(COVERAGE, PART, sets | dict(shifted=near))
        coverage_experiment(path, PART, 'embedded', limit=20)
    return read_results(path)


def made(loos, scores):
    """Rows by hand: each text calibrates, and is tested. Without a spread the
    unit of an error is the scores' size.
    """

    def row(name, loo, x):
        of = dict(scores=list(x), spread=[], exact=[])
        return dict(set=name, loo=list(loo), methods={'m': of})

    rows = [
        row(name, *pair)
        for name in ('calibration', 'test')
        for pair in zip(loos, scores)
    ]
    return dict(config=dict(model={}, methods={'m': ['m', {}]}), rows=rows)


def test_no_text_is_in_two_sets(measured):
    texts = {
        name: {tuple(r['loo']) for r in rows_of_set(measured, name)} for name in SETS
    }
    assert not texts['calibration'] & texts['test']
    assert not texts['test'] & texts['shifted']
    assert len(texts['calibration']) == len(texts['test']) == 20


def test_words_have_one_loo_each():
    model, tokenizer = shallow_demo('sst2')
    text = 'an unconvincing , overlong film'
    enc = encode(model, tokenizer, text)
    words = coverage_row(model, tokenizer, enc, text, 'word')
    tokens = coverage_row(model, tokenizer, enc)
    assert len(words['loo']) == 5 < len(tokens['loo'])
    assert words['n_tokens'] == tokens['n_tokens']
    for estimate in words['methods'].values():
        assert len(estimate['scores']) == len(estimate['spread']) == 5
    # a word of one token is that token
    assert words['loo'][0] == pytest.approx(tokens['loo'][0], abs=1e-5)


def test_a_calibration_says_what_its_units_are(measured):
    assert calibrated(measured, 'removal').units == 'token'
    of_words = measured | dict(config=measured['config'] | dict(units='word'))
    assert calibrated(of_words, 'removal').units == 'word'
    assert set(UNITS_OF) <= set(COVERAGE)


def test_errors_up_to_the_quantile_are_inside():
    # errors 1, 2, …, 9: nine texts of one token, whose unit is its score
    errors = np.arange(1.0, 10.0)[:, None]
    rows = made(1 + errors, np.ones((9, 1)))
    assert calibrated(rows, 'm').quantile(0.9) == 9.0
    inside, _ = covered(rows, 'm', 'test', 0.5, 'token')
    assert inside.tolist() == [1.0] * 5 + [0.0] * 4


def test_a_text_is_covered_where_all_its_tokens_are():
    errors = np.array([[1.0, 2.0]] * 18 + [[1.0, 5.0]])
    rows = made(1 + errors, np.ones((19, 2)))
    inside, widths = covered(rows, 'm', 'test', 0.9, 'text')
    assert inside.tolist() == [1.0] * 18 + [0.0]
    # 2 q s over the deviation of a text's LOO, 2·2·1/0.5
    assert widths[0] == pytest.approx(8.0)


def test_exact_passes_are_counted_and_answers_checked():
    """In nine texts the larger score has the smaller LOO: a token of the top must reach
    4 of the other, by 3 units. At that reach the ends of the tenth's cross, too.
    """
    loos = np.array([[4.0, 5.0]] * 9 + [[30.0, 1.0]])
    scores = np.array([[1.0, -1.0]] * 9 + [[7.0, 1.0]])
    scores[:9, 1] = 0.999
    found = passes_to_settle(made(loos, scores), 'm', 1)
    assert found.right.all()
    assert found.passes.tolist() == [1] * 9 + [2]


def test_a_table_has_every_method_cover_and_set(measured):
    table = coverage_table(measured)
    assert len(table) == len(UNSURE) * 2 * 2
    assert table.covered.between(0, 1).all()
    assert (table.width > 0).all()


def test_nine_passes_are_narrower_than_one(measured):
    width = coverage_table(measured).width
    for cover in ('token', 'text'):
        nine = width['removal, 9 passes', cover, 'test']
        assert nine < width['removal', cover, 'test']


def test_the_top_three_take_as_many_passes_as_the_top_one_or_more(measured):
    table = passes_table(measured)
    for method in UNSURE:
        for name in ('test', 'shifted'):
            one, three = (table.loc[(method, k, name)] for k in (1, 3))
            assert 0 <= one['mean'] <= three['mean']
            assert three['at most 4'] <= one['at most 4'] <= 1


def test_what_is_printed_names_all_three_sets(measured):
    headings = [heading for heading, _ in coverage_tables(PART, measured)]
    for name in SETS:
        assert name in headings[0]


def test_the_figure_has_two_panels_a_part(measured):
    fig = plot_coverage({PART: measured, 'again': measured})
    assert len(fig.axes) == 4


def test_mpnet_is_asked_for_by_a_word_of_its_own():
    assert 'coverage' in groups_of(studies())['all']
    assert 'coverage-large' in groups_of(studies())['scale']


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match=PART):
        coverage_experiment(tmp_path / 'x.json', 'coverage-bert', 'embedded')
