"""How far `removal` goes: its experiments end to end, and what is claimed of
it.
"""

import pandas as pd
import pytest

from lrp_lab.__main__ import COMMANDS
from lrp_lab.remedy import REMEDY, plot_gap, remedy_claims, remedy_table
from lrp_loo import cli
from lrp_loo.data import load_texts
from lrp_loo.trust.results import read_results


@pytest.fixture(scope='module')
def short_data(tmp_path_factory):
    "Our sentences in the hub's layout; three of them make a review."
    folder = tmp_path_factory.mktemp('data')
    d = load_texts('sst2', 'embedded', limit=12)
    reviews = [' '.join(d.texts[i : i + 3]) for i in range(0, 12, 3)]
    sets = {
        'sst2/validation': dict(sentence=d.texts, label=d.labels),
        'imdb/test': dict(text=reviews, label=d.labels[::3]),
    }
    for name, columns in sets.items():
        path = folder / f'{name}-00000-of-00001.parquet'
        path.parent.mkdir()
        pd.DataFrame(columns).to_parquet(path)
    return folder


def reproduce(words, data, out):
    command = ['reproduce', words, '--limit', '2', '--data', str(data)]
    command += ['--out', str(out)]
    return cli.main(command, COMMANDS, 'python -m lrp_lab')


@pytest.fixture(scope='module')
def reproduced(short_data, tmp_path_factory, shallow_parts):
    "Where `gap` and `weights` were run once."
    out = tmp_path_factory.mktemp('out')
    assert reproduce('gap,weights', short_data, out) == 0
    return out


def test_the_gap_is_paid_for_by_passes_of_a_token_s_own(reproduced):
    rows = read_results(reproduced / 'results/studies/gap.json')['rows']
    assert len(rows) == 2
    r = rows[0]['r']
    assert r['own trapezoid'] > r['mask derivative']


def test_the_weights_are_measured_on_both_parts(reproduced):
    for part in ('sst2', 'imdb'):
        path = reproduced / f'results/studies/weights-{part}.json'
        rows = read_results(path)['rows']
        assert len(rows) == 2
        assert all('contexts, 4 passes' in row['methods'] for row in rows)


def test_the_gap_s_figure_is_drawn_from_its_rows(reproduced):
    found = read_results(reproduced / 'results/studies/gap.json')
    (ax,) = plot_gap(found).axes
    labels = [t.get_text() for t in ax.get_yticklabels()]
    for label, bar in zip(labels, ax.patches, strict=True):
        name, value = label.rsplit('  ', 1)
        mean = sum(row['r'][name] for row in found['rows']) / 2
        assert bar.get_width() == pytest.approx(mean)
        assert float(value) == pytest.approx(mean, abs=6e-4)
    assert (reproduced / 'figures/studies/gap.png').exists()


def test_finished_rows_are_printed_and_left_alone(reproduced, short_data, capsys):
    path = reproduced / 'results/studies/gap.json'
    before = path.read_bytes()
    assert reproduce('gap,weights', short_data, reproduced) == 0
    assert path.read_bytes() == before
    printed = capsys.readouterr().out
    assert 'own trapezoid' in printed
    assert 'contexts, 4 passes' in printed


# what is claimed


def claims_and_table(removal, others):
    "What is claimed where removal's methods have one r and the others another."

    def row(i):
        same = dict(r=1.0, r_sum=1.0, r_sum_both=1.0, r_all=1.0)
        methods = {'loo': dict(**same, lerf=2.0, morf=1.0)}
        for m in REMEDY:
            r = removal + i / 1000 if 'removal' in m else others
            zero = dict(r_sum=0.0, r_sum_both=0.0, r_all=0.0, morf=0.0)
            methods[m] = dict(r=r, lerf=1.0 + r, **zero)
        return dict(i=i, n_tokens=9, methods=methods)

    config = dict(methods={n: list(v) for n, v in REMEDY.items()})
    part = dict(config=config, rows=[row(i) for i in range(5)])
    return remedy_claims({'sst2': part}), remedy_table(part)


def test_the_claims_hold_where_removal_is_better():
    claims, _ = claims_and_table(0.98, 0.5)
    assert claims
    assert all(c['holds'] for c in claims)


def test_the_claims_fall_where_removal_is_worse():
    claims, _ = claims_and_table(0.5, 0.98)
    of_r = [c for c in claims if 'morf' not in c['claim']]
    assert of_r
    assert not any(c['holds'] for c in of_r)


def test_the_remedy_s_table_counts_passes():
    _, table = claims_and_table(0.98, 0.5)
    assert table.passes['removal, 9 passes'] == 9
