"""Studies of the lab as a user meets them: other architectures, end to end,
through the command.
"""

import json
import sys
from types import ModuleType

import numpy as np
import pytest
from conftest import LAB, load_demo

from lrp_lab import run
from lrp_lab.__main__ import COMMANDS
from lrp_lab.beyond import REWRITINGS, rewritten
from lrp_loo import cli
from lrp_loo.models.encoding import encode
from lrp_loo.paper.common import Study, add_rows
from lrp_loo.paper.layerwise import SWEEPS, layer_table
from lrp_loo.removal import removal_scores
from lrp_loo.paper import reproduce as paper
from lrp_loo.trust.results import Results, read_results

BEYOND_PARTS = ('decoder', 'lm', 'lm-zero', 'vit')
RESULTS = LAB / 'results'


def main(words):
    return cli.main(words, COMMANDS, 'python -m lrp_lab')


def reproduce(out, only, *words, data='embedded'):
    "The command; its exit code."
    words = [only, '--data', data, '--out', out, *words]
    return main(['reproduce', *map(str, words)])


@pytest.fixture
def drawn(monkeypatch):
    "The figures of a folder by name, as matplotlib has them."
    figures = {}

    def keep(figure, path):
        if figure is not None:
            figures[path.stem] = figure

    def draw(results):
        paper.draw_figures(run.studies(), results, results)
        return figures

    monkeypatch.setattr(paper, 'save_figure', keep)
    return draw


def test_rows_of_another_version_stop_no_other_figure(tmp_path, capsys):
    rows = RESULTS / 'studies' / 'depth-decoder.json'
    kept = json.loads(rows.read_text(encoding='utf-8'))
    for row in kept['rows']:
        del row['methods']['removal']
    (tmp_path / rows.name).write_text(json.dumps(kept))
    between = RESULTS / 'studies' / 'between-decoder.json'
    (tmp_path / between.name).write_text(between.read_text(encoding='utf-8'))
    paper.draw_figures(run.studies(), tmp_path / 'figures', tmp_path)
    said = capsys.readouterr().err
    assert "depth.png is not drawn: rows of depth-decoder" in said
    assert "'removal'" in said and '--fresh (depth)' in said
    pictures = [p.name for p in (tmp_path / 'figures').glob('*.png')]
    assert pictures == ['between.png']


# other architectures


@pytest.fixture(scope='module')
def beyond(shallow_parts, tmp_path_factory):
    "The parts that are not the paper's, on embedded data."
    out = tmp_path_factory.mktemp('beyond')
    assert reproduce(out, 'beyond', '--limit', 2) == 0
    return out


def beyond_rows(beyond, part):
    return read_results(beyond / 'results' / 'studies-embedded' / f'{part}.json')


@pytest.mark.parametrize(
    'part, n',
    [('conservation', 4), ('rewritings', 4), *((part, 2) for part in BEYOND_PARTS)],
)
def test_every_part_has_its_rows(beyond, part, n):
    assert len(beyond_rows(beyond, part)['rows']) == n


def test_finished_parts_are_printed_again_and_not_computed(beyond, capsys):
    folder = beyond / 'results' / 'studies-embedded'
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert reproduce(beyond, 'beyond', '--limit', 2) == 0
    out = capsys.readouterr().out
    for part in ('conservation', 'rewritings', *BEYOND_PARTS):
        assert f'\n{part}: ' in out
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_the_vision_transformer_is_measured_on_patches(beyond):
    vit = beyond_rows(beyond, 'vit')
    assert vit['config']['data']['name'] == 'scikit-learn digits'
    assert vit['rows'][0]['n_tokens'] == 49
    assert abs(vit['rows'][0]['methods']['loo']['r'] - 1) < 1e-6


def test_the_language_model_reads_windows_of_one_length(beyond):
    lm = beyond_rows(beyond, 'lm')
    assert lm['config']['data']['tokens'] == 'first 48'
    assert {row['n_tokens'] for row in lm['rows']} == {48}


def test_the_figure_of_other_architectures_has_a_panel_for_each(beyond, drawn):
    figure = drawn(beyond / 'results' / 'studies-embedded')['beyond']
    assert len(figure.axes) == 4
    for ax, part in zip(figure.axes, BEYOND_PARTS):
        table = layer_table(beyond_rows(beyond, part))
        first = table[(table.sweep == SWEEPS[0]) & (table.k > 0)]
        gains = ax.lines[0].get_ydata()
        assert np.allclose(gains, first.gain.dropna())


def test_conservation_is_drawn_for_both_models_and_rule_sets(beyond, drawn):
    figure = drawn(beyond / 'results' / 'studies-embedded')['conservation']
    titles = [ax.get_title() for ax in figure.axes]
    assert len(titles) == 4
    assert sum('CP-LRP' in title for title in titles) == 2


def test_images_of_a_folder_are_explained(folder, tmp_path):
    words = ('vit', '--limit', 2)
    assert reproduce(tmp_path, *words, data=str(folder)) == 0


def test_rows_of_another_limit_are_not_mixed(beyond, capsys):
    assert reproduce(beyond, 'vit', '--limit', 3) == 1
    assert 'limit' in capsys.readouterr().err


@pytest.mark.parametrize('demo_name', ['sst2', 'reviews-sst2'])
def test_another_program_same_estimate(demo_name):
    """The estimate belongs to the function and its attention weights;
    rewriting the program leaves it alone.
    """
    model, tokenizer = load_demo(demo_name)
    enc = encode(model, tokenizer, 'a slow start , but the last act is a quiet triumph')
    plain = removal_scores(model, tokenizer, [enc]).scores
    names = [n for n, (which, _) in REWRITINGS.items() if demo_name in which]
    assert len(names) >= 5
    for name in names:
        other = removal_scores(rewritten(model, name), tokenizer, [enc]).scores
        assert float((other - plain).abs().max() / plain.abs().max()) < 2e-3, name


# a study of one's own


def count_letters(path, part, options):
    "Rows of a study: the length of three words."
    words = enumerate(('one', 'three', 'eleven'))
    data = dict(name='words', source='by hand', split='none')
    results = Results(path, dict(data=data), options.fresh)
    return add_rows(results, words, lambda word: dict(n=len(word)))


def show_letters(part, results):
    return [('Letters', ' '.join(str(r['n']) for r in results['rows']))]


@pytest.fixture
def letters(monkeypatch):
    "A study of one's own, in a module of its own."
    module = ModuleType('lrp_lab.letters')
    files = dict(letters='letters')
    study = Study('letters', '', files, count_letters, show_letters)
    module.STUDIES = (study,)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run, 'MODULES', (*run.MODULES, module.__name__))


def test_a_study(letters, tmp_path, capsys):
    assert reproduce(tmp_path, 'letters') == 0
    assert 'Letters\n-------\n3 5 6' in capsys.readouterr().out
    rows = read_results(tmp_path / 'results' / 'studies-embedded' / 'letters.json')
    assert [r['n'] for r in rows['rows']] == [3, 5, 6]


def test_a_study_that_is_not_known_is_told_which_are(letters, capsys):
    assert main(['reproduce', 'leters']) == 2
    assert 'letters' in capsys.readouterr().err
