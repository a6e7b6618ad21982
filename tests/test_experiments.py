"""Experiments as a user meets them: interrupted and resumed, on folders in the
hub's layout, on a 12-layer BERT, through the command line.
"""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from conftest import random_bert

import lrp_loo.paper.reproduce as experiments
from lrp_loo import explain, load_texts
from lrp_loo.cli import main
from lrp_loo.data import load_digit_images
from lrp_loo.methods import METHODS
from lrp_loo.models import accuracy
from lrp_loo.models.demos import demo_base, demo_folder, load_demo
from lrp_loo.models.layers import describe_model
from lrp_loo.models.loading import load_model
from lrp_loo.paper.experiments import text_experiment
from lrp_loo.paper.figures import sweep_gains
from lrp_loo.paper.layerwise import (
    SWEEPS,
    layer_table,
    sweep_layers,
    sweep_methods,
    table_a3_against_paper,
)
from lrp_loo.paper.ledger import ledger
from lrp_loo.paper.reproduce import (
    against_paper,
    entries_by_study,
    print_ledger,
    studies_of,
)
from lrp_loo.paper.table2 import TABLE2
from lrp_loo.stats import mean_se, per_text
from lrp_loo.trust.faithfulness import faithfulness_table
from lrp_loo.trust.results import Results, read_results

RESULTS = Path(__file__).parent.parent / 'results'


def write_split(folder, split, features=None, **columns):
    "A data set in the hub's layout."
    folder.mkdir(exist_ok=True)
    data = datasets.Dataset.from_dict(columns, features=features)
    data.to_parquet(str(folder / f'{split}-00000-of-00001.parquet'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Data in the hub's layout, our own sentences, digits of noise."
    d = tmp_path_factory.mktemp('data')
    short = load_texts('sst2', 'embedded', limit=12)
    long = load_texts('imdb', 'embedded', limit=12)
    sentences = dict(sentence=short.texts, label=short.labels)
    write_split(d / 'sst2', 'validation', **sentences)
    write_split(d / 'imdb', 'test', text=long.texts, label=long.labels)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (20, 28, 28), dtype=np.uint8)
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(num_classes=10)
    )
    digits = dict(image=list(images), label=list(range(10)) * 2)
    for split in ('train', 'test'):
        write_split(d / 'mnist', split, features, **digits)
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


@pytest.fixture
def drawn(monkeypatch):
    "The figures of a folder by name, as matplotlib has them."
    figures = {}

    def keep(figure, path):
        if figure is not None:
            figures[path.stem] = figure

    def draw(results):
        experiments.draw_figures(studies_of(), results, results)
        return figures

    monkeypatch.setattr(experiments, 'save_figure', keep)
    return draw


def test_texts_of_a_folder(folder, monkeypatch):
    texts = load_texts('sst2', folder)
    assert len(texts) == 12
    assert (texts.info['source'], texts.info['split']) == ('folder', 'validation')
    assert str(folder) not in json.dumps(texts.info)
    monkeypatch.setenv('LRP_LOO_DATA', str(folder))
    assert load_texts('imdb').info['source'] == 'folder'
    assert load_texts('imdb', 'embedded').info['source'] == 'embedded'


def test_digits_of_a_folder(folder):
    x, y, info = load_digit_images(folder, 'test')
    assert x.shape == (20, 14, 14)
    assert 0 <= x.min() and x.max() <= 1
    assert y.dtype == torch.long
    assert info['name'] == 'mnist'


# the paper's depth: twelve layers, 34 rule sets


@pytest.fixture(scope='module')
def deep(folder, paper_model, tmp_path_factory):
    "Where Tables 2 and A3 of the twelve-layer model lie."
    out = tmp_path_factory.mktemp('deep')
    words = ('--model', paper_model, '--only', 'sst2')
    code = reproduce(out, *words, '--limit', 3, '--longest', 64, data=str(folder))
    assert code == 0
    return out / 'results' / 'bert-12'


def test_twelve_layers_stand_beside_all_of_the_papers_numbers(deep, folder, capsys):
    results = read_results(deep / 'sst2.json')
    assert len(results['rows']) == 3
    assert set(results['rows'][0]['methods']) == {*sweep_methods(12), *TABLE2}
    compared = table_a3_against_paper({'sst2': results})
    assert len(compared) == 144
    assert compared.ours.notna().all()
    saved = json.loads((deep / 'against_paper.json').read_text())
    assert len(saved['numbers']) == 20 + 144
    # results name no folder of this machine
    text = (deep / 'sst2.json').read_text()
    assert str(folder) not in text
    assert str(deep.parents[1]) not in text
    # every claim is printed
    entries = ledger([deep], entries_by_study(studies_of()))
    print_ledger(entries)
    said = capsys.readouterr().out
    assert entries
    for e in entries:
        assert f"{e['verdict']:9s} {e['sentence']}" in said


def test_the_claims_of_what_was_asked_are_printed(
    deep, paper_model, folder, tmp_path, capsys
):
    "Rows of SST-2, and the same as if they were of IMDB."
    shutil.copytree(deep.parents[1], tmp_path, dirs_exist_ok=True)
    results = tmp_path / 'results' / deep.name
    other = json.loads((results / 'sst2.json').read_text())
    other['config']['data']['name'] = 'imdb'
    (results / 'imdb.json').write_text(json.dumps(other))
    entries = ledger([results], entries_by_study(studies_of()))
    words = ('--model', paper_model, '--limit', 3, '--longest', 64, '--only')
    capsys.readouterr()

    assert reproduce(tmp_path, *words, 'sst2', data=str(folder)) == 0
    _, said = capsys.readouterr().out.split('The claims, on these rows')
    assert said.count(', sst2 validation,') == len(entries) / 2 > 0
    assert 'imdb' not in said
    assert f'p: corrected for all {len(entries)} claims' in said

    assert reproduce(tmp_path, *words, 'scalar', data=str(folder)) == 0
    assert 'The claims' not in capsys.readouterr().out


def test_nothing_is_printed_where_nothing_was_judged(capsys):
    print_ledger([])
    assert not capsys.readouterr().out


def test_figures_are_written_below_out(deep):
    written = deep.parents[1] / 'figures' / 'bert-12'
    names = {'agreement.png', 'entropy.png', 'figure2.png', 'table2.png'}
    assert {p.name for p in written.iterdir()} == names


def test_figure_2_draws_what_the_three_sweeps_gain(deep, drawn):
    above, below = drawn(deep)['figure2'].axes
    results = read_results(deep / 'sst2.json')
    table = layer_table(results)
    own = mean_se(per_text(results['rows'], 'attn_lrp', 'loo_r')).mean
    above.figure.draw_without_rendering()
    (right,) = above.child_axes
    assert np.allclose(right.get_ylim(), np.add(above.get_ylim(), own))
    for ax, column in ((above, 'loo_r'), (below, 'delta')):
        gains = sweep_gains(results, column)
        for line, bars, sweep in zip(ax.lines, ax.collections, SWEEPS):
            swept = (table.sweep == sweep) & (table.k > 0)
            assert list(line.get_xdata().round()) == list(range(1, 13))
            means = table[column][swept] - table[column].iloc[0]
            assert np.allclose(line.get_ydata(), means)
            # the intervals are those of pairs
            ends = [segment[:, 1] for segment in bars.get_segments()]
            assert np.allclose(ends, gains[gains.sweep == sweep][['low', 'high']])
        dashed = next(x for x in ax.lines if x.get_label() == 'AttnLRP')
        assert set(dashed.get_ydata()) == {0}


def test_the_agreement_figure_draws_a_bar_for_each_method(deep, drawn):
    (ax,) = drawn(deep)['agreement'].axes
    rows = read_results(deep / 'sst2.json')['rows']
    methods = ['ig', 'rollout', 'grad_x_input', 'attn_lrp', 'cp_lrp']
    shown = [bar.get_height() for bar in ax.patches]
    assert np.allclose(shown, faithfulness_table(rows, methods).loo_r)


# Table A3's identities, computed apart, not by sharing a name


@pytest.fixture(scope='module')
def six_layers(tokenizer):
    return random_bert(layers=6), tokenizer


@pytest.fixture(scope='module')
def apart(six_layers, tmp_path_factory):
    "Rows of the first and last step of each sweep, and of no bypass."
    methods = {'none': ('attn_lrp', dict(bypass_softmax=[])), **TABLE2}
    for sweep in SWEEPS:
        for k in (1, 6):
            layers = list(sweep_layers(sweep, k, 6))
            methods[f'{sweep}{k}'] = ('attn_lrp', dict(bypass_softmax=layers))
    texts = load_texts('sst2', 'embedded', limit=6)
    path = tmp_path_factory.mktemp('apart') / 't.json'
    return text_experiment(path, *six_layers, texts, {}, methods).rows


@pytest.mark.parametrize(
    'one, other',
    [
        ('first6', 'last6'),
        ('first6', 'cp_lrp'),
        ('first1', 'single1'),
        ('last1', 'single6'),
        ('none', 'attn_lrp'),
    ],
)
def test_the_same_layers_give_the_same_numbers(apart, one, other):
    for column in ('loo_r', 'lerf', 'morf', 'delta'):
        a, b = (per_text(apart, m, column) for m in (one, other))
        assert np.allclose(a, b, atol=1e-5, equal_nan=True)
    all_layers, none = (per_text(apart, m, 'loo_r') for m in ('first6', 'none'))
    assert not np.allclose(all_layers, none, atol=1e-3)


# interruptions


def test_rows_under_an_older_name_of_their_folder_are_resumed(tmp_path, capsys):
    words = ('--only', 'scalar,sst2', '--limit', 1)
    assert reproduce(tmp_path, *words) == 0
    now = tmp_path / 'results' / 'minilm-embedded'
    before = {p.name: p.read_bytes() for p in now.iterdir()}
    now.rename(now.with_name('embedded'))  # as it was called
    capsys.readouterr()
    assert reproduce(tmp_path, *words) == 0
    assert 'sst2.json is' in capsys.readouterr().err
    after = {p.name: p.read_bytes() for p in now.iterdir()}
    assert after == before
    assert not list(now.with_name('embedded').glob('s*.json'))


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr('lrp_loo.paper.figures.text_experiment', stop)
    assert reproduce(tmp_path, '--only', 'sst2') == 130
    assert 'goes on from there' in capsys.readouterr().err


def test_rows_of_another_model_are_not_mixed(demo, tmp_path):
    few, texts = dict(loo=TABLE2['loo']), load_texts('sst2', 'embedded', limit=2)
    one, other = (describe_model(demo[0], name) for name in 'ab')
    text_experiment(tmp_path / 't.json', *demo, texts, one, few)
    with pytest.raises(ValueError, match='model'):
        text_experiment(tmp_path / 't.json', *demo, texts, other, few)


# what ships


@pytest.mark.parametrize('name, least', [('sst2', 200), ('imdb', 20)])
def test_models_and_texts_that_ship(name, least, tokenizer):
    "Small, safe and right; enough texts, balanced, reviews as long as reviews."
    files = {p.name: p for p in demo_folder(name).iterdir()}
    names = {'adapter_model.safetensors', 'adapter_config.json', 'README.md'}
    assert set(files) == names
    assert sum(p.stat().st_size for p in files.values()) <= 2 * 2**20
    card = files['README.md'].read_text()
    assert all(said in card for said in ('seed', 'accuracy', 'epochs', 'lr'))
    d = load_texts(name, 'embedded')
    assert len(set(d.texts)) == len(d) >= least
    assert 0.4 <= sum(d.labels) / len(d) <= 0.6
    assert accuracy(*load_demo(name), d.texts, d.labels) >= 0.85
    if name == 'imdb':
        lengths = [len(tokenizer(t)['input_ids']) for t in d.texts]
        assert 150 <= min(lengths) and max(lengths) <= 400


# what cannot be right


@pytest.mark.parametrize(  # what bad_input.toml has not
    'call, said',
    [
        (lambda *m: explain(*m, ['fine'], method='lime'), "'lime' is not known"),
        (
            lambda *m: explain(*m, ['fine'], bypass_softmax=[6]),
            r'layers \[6\]; this model has layers 0 to 5',
        ),
        (lambda *_: load_model('paper', 'mnist'), 'no model for'),
        (
            lambda *_: load_model(str(demo_base())),
            'no trained weights for classifier.bias, classifier.weight',
        ),
    ],
)
def test_bad_input_gets_a_clear_error(six_layers, call, said):
    with pytest.raises(ValueError, match=said):
        call(*six_layers)


@pytest.fixture(scope='module')
def nan_model():
    model = random_bert(layers=1)
    with torch.no_grad():
        model.classifier.bias[0] = float('nan')
    return model


@pytest.mark.parametrize('method', METHODS)
def test_nan_weights_are_named(nan_model, tokenizer, method):
    with pytest.raises(ValueError, match='not finite|NaN'):
        explain(nan_model, tokenizer, 'fine', method=method, target=0)


def test_folder_without_the_columns(tmp_path):
    write_split(tmp_path / 'sst2', 'validation', words=['fine'], label=[1])
    with pytest.raises(ValueError, match=r"\['label', 'sentence'\] are needed"):
        load_texts('sst2', tmp_path)


def test_truncation_where_it_was_asked_for(demo):
    model, tokenizer = demo
    options = dict(method='cp_lrp', truncation=True)
    (a,) = explain(model, tokenizer, 'word ' * 600, **options)
    assert len(a) == 512


def test_a_damaged_results_file_is_named(tmp_path):
    (tmp_path / 't.json').write_text('{"config": ')
    with pytest.raises(ValueError, match='not a results file'):
        Results(tmp_path / 't.json', {})


def test_against_paper_of_an_empty_folder(tmp_path):
    assert against_paper(studies_of(), tmp_path) == dict(numbers=[])
