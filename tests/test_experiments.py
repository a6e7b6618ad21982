"Experiments as a user meets them, on the hub's layout and a 12-layer BERT."

import json

import datasets
import numpy as np
import pytest
from close import assert_close
from conftest import random_bert

import lrp_loo.paper.reproduce as experiments
from lrp_loo import explain, load_texts
from lrp_loo.cli import main
from lrp_loo.methods.table import METHODS
from lrp_loo.paper.experiments import text_experiment
from lrp_loo.paper.figures import sweep_gains
from lrp_loo.paper.tables import SWEEPS, layer_table, sweep_layers, sweep_methods
from lrp_loo.paper.tables import table_a3_against_paper
from lrp_loo.paper.ledger import ledger
from lrp_loo.paper.reproduce import entries_by_study, print_ledger
from lrp_loo.paper.reproduce import studies_of
from lrp_loo.paper.tables import TABLE2
from lrp_loo.core.stats import mean_se, per_text
from lrp_loo.records.results import read_results


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Data in the hub's layout: our own sentences, digits of noise."
    d = tmp_path_factory.mktemp('data')
    short = load_texts('sst2', 'embedded', limit=12)
    sentences = dict(sentence=short.texts, label=short.labels)
    images = np.random.default_rng(0).integers(0, 255, (20, 28, 28), dtype=np.uint8)
    digits = dict(image=list(images), label=list(range(10)) * 2)
    kinds = dict(image=datasets.Image(), label=datasets.ClassLabel(num_classes=10))
    for name, split, columns, features in (
        ('sst2', 'validation', sentences, None),
        ('mnist', 'train', digits, datasets.Features(kinds)),
        ('mnist', 'test', digits, datasets.Features(kinds)),
    ):
        (d / name).mkdir(exist_ok=True)
        data = datasets.Dataset.from_dict(columns, features=features)
        data.to_parquet(str(d / name / f'{split}-00000-of-00001.parquet'))
    return d


@pytest.fixture(scope='module')
def paper_model(tmp_path_factory, tokenizer):
    "The paper's architecture in depth, saved as the hub lays it out."
    d = tmp_path_factory.mktemp('models') / 'bert-12'
    random_bert(layers=12, std=0.1).save_pretrained(d)
    tokenizer.save_pretrained(d)
    return d


def reproduce(out, *words, data='embedded'):
    "The command; its exit code."
    words = ['--data', data, '--out', out, *words]
    return main(['reproduce', *map(str, words)])


@pytest.fixture(scope='module')
def deep(folder, paper_model, tmp_path_factory):
    "Where Tables 2 and A3 of the twelve-layer model lie."
    out = tmp_path_factory.mktemp('deep')
    words = ('--model', paper_model, '--only', 'sst2')
    assert reproduce(out, *words, '--limit', 3, '--longest', 64, data=folder) == 0
    names = {'agreement.png', 'entropy.png', 'figure2.png', 'table2.png'}
    assert {p.name for p in (out / 'figures' / 'bert-12').iterdir()} == names
    return out / 'results' / 'bert-12'


def test_twelve_layers_stand_beside_all_of_the_papers_numbers(deep, folder, capsys):
    results = read_results(deep / 'sst2.json')
    assert len(results['rows']) == 3
    assert set(results['rows'][0]['methods']) == {*sweep_methods(12), *TABLE2}
    compared = table_a3_against_paper({'sst2': results})
    assert len(compared) == 144 and compared.ours.notna().all()
    saved = json.loads((deep / 'against_paper.json').read_text())
    assert len(saved['numbers']) == 20 + 144
    # results name no folder of this machine
    text = (deep / 'sst2.json').read_text()
    assert str(folder) not in text and str(deep.parents[1]) not in text
    # every claim is printed
    entries = ledger([deep], entries_by_study(studies_of()))
    print_ledger(entries)
    said = capsys.readouterr().out
    assert entries
    for e in entries:
        assert f"{e['verdict']:9s} {e['sentence']}" in said
    print_ledger([])
    assert not capsys.readouterr().out


def test_figure_2_draws_what_the_three_sweeps_gain(deep, monkeypatch):
    figures = {}

    def keep(figure, path):
        figures[path.stem] = figure

    monkeypatch.setattr(experiments, 'save_figure', keep)
    experiments.draw_figures(studies_of(), deep, deep)
    above, below = figures['figure2'].axes
    results = read_results(deep / 'sst2.json')
    table = layer_table(results)
    own = mean_se(per_text(results['rows'], 'attn_lrp', 'loo_r')).mean
    above.figure.draw_without_rendering()
    (right,) = above.child_axes
    assert_close(right.get_ylim(), np.add(above.get_ylim(), own))
    for ax, column in ((above, 'loo_r'), (below, 'delta')):
        gains = sweep_gains(results, column)
        # Δ, in logits, as a share of AttnLRP's
        unit = abs(table.delta.iloc[0]) if column == 'delta' else 1
        gains[['mean', 'low', 'high']] /= unit
        for line, bars, sweep in zip(ax.lines, ax.collections, SWEEPS):
            swept = (table.sweep == sweep) & (table.k > 0)
            assert list(line.get_xdata().round()) == list(range(1, 13))
            means = table[column][swept] - table[column].iloc[0]
            assert_close(line.get_ydata(), means / unit)
            # the intervals are those of pairs
            ends = [segment[:, 1] for segment in bars.get_segments()]
            assert_close(ends, gains[gains.sweep == sweep][['low', 'high']])
        dashed = next(x for x in ax.lines if x.get_label() == 'AttnLRP')
        assert set(dashed.get_ydata()) == {0}


def test_the_same_layers_give_the_same_numbers(tokenizer, tmp_path):
    "Table A3's identities, computed apart, not by sharing a name."
    methods = {m: TABLE2[m] for m in ('loo', 'attn_lrp', 'cp_lrp')}
    methods['none'] = ('attn_lrp', dict(bypass_softmax=[]))
    for sweep in SWEEPS:
        for k in (1, 6):
            layers = list(sweep_layers(sweep, k, 6))
            methods[f'{sweep}{k}'] = ('attn_lrp', dict(bypass_softmax=layers))
    texts = load_texts('sst2', 'embedded', limit=2)
    small = random_bert(layers=6), tokenizer
    rows = text_experiment(tmp_path / 't.json', *small, texts, {}, methods).rows
    same = 'first6 last6, first6 cp_lrp, first1 single1, last1 single6, none attn_lrp'
    for pair in same.split(', '):
        for column in ('loo_r', 'lerf', 'morf', 'delta'):
            a, b = (per_text(rows, m, column) for m in pair.split())
            assert np.allclose(a, b, atol=1e-5, equal_nan=True), (pair, column)
    all_layers, none = (per_text(rows, m, 'loo_r') for m in ('first6', 'none'))
    assert not np.allclose(all_layers, none, atol=1e-3)


@pytest.mark.parametrize('method', METHODS)
def test_nan_weights_are_named(tokenizer, method):
    model = random_bert(layers=1)
    model.classifier.bias.data[0] = float('nan')
    with pytest.raises(ValueError, match='not finite|NaN'):
        explain(model, tokenizer, 'fine', method=method, target=0)
