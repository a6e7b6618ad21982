"""Several trainings of one model, and the same reviews whole and cut: their rows,
what the ledger makes of them."""

import json

import numpy as np
import pytest
from conftest import shallow_demo

from lrp_lab import lengths, trainings
from lrp_lab.lengths import (
    gain_by_cut,
    length_entries,
    lengths_experiment,
    plot_lengths,
)
from lrp_lab.run import groups_of, studies
from lrp_lab.trainings import (
    plot_trainings,
    rows_by_training,
    training_entries,
    trainings_experiment,
    trainings_table,
)
from lrp_loo.paper.ledger import ledger
from lrp_loo.paper.reproduce import entries_by_study
from lrp_loo.trust.results import read_results

SEEDS = (0, 1, 2)


class ThreeTrainings(trainings.Trainings):
    "Of the first layers of the demo model, whose head is another each time."

    def __init__(self, name):
        super().__init__(name)
        self.seeds = SEEDS

    def load(self, seed):
        model, tokenizer = shallow_demo(self.name)
        # another reading of the same features
        model.classifier.weight.data.roll(seed, 1)
        model.classifier.weight.data *= 1 + seed / 2
        return model, tokenizer


def four_sentences(path):
    "Three trainings of each."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainings, 'Trainings', ThreeTrainings)
        trainings_experiment(path, 'trainings-minilm', 'embedded', limit=4)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    "A file of rows: three trainings, four embedded sentences."
    path = tmp_path_factory.mktemp('results') / 'trainings-minilm.json'
    four_sentences(path)
    return path


def test_every_training_reads_the_same_sentences(trained):
    by_training = rows_by_training(read_results(trained))
    assert tuple(by_training) == SEEDS
    texts = [[row['text'] for row in rows] for rows in by_training.values()]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1] == texts[2]


def test_a_run_that_was_interrupted_keeps_its_rows(trained, tmp_path):
    whole = read_results(trained)
    path = tmp_path / 'trainings-minilm.json'
    part = whole | dict(rows=whole['rows'][:5])
    path.write_text(json.dumps(part))
    four_sentences(path)
    again = read_results(path)['rows']
    assert again[:5] == whole['rows'][:5]
    assert [r['i'] for r in again] == [r['i'] for r in whole['rows']]
    for old, new in zip(whole['rows'], again):
        assert new['methods']['attn_lrp']['r'] == pytest.approx(
            old['methods']['attn_lrp']['r'], abs=1e-4
        )


def test_one_training_alone_says_nothing_about_trainings(trained):
    results = read_results(trained)
    first = [row for row in results['rows'] if row['training'] == 0]
    assert training_entries(results | dict(rows=first)) == []


def test_the_ledger_has_both_intervals(trained):
    entries = ledger([trained.parent], entries_by_study(studies()))
    (entry,) = (e for e in entries if e['claim'] == 'cp-above-attn')
    assert len(entry['trainings']) == 3
    assert entry['model'] == 'minilm-sst2, 3 trainings'
    assert entry['low'] <= entry['mean'] <= entry['high']
    assert entry['trainings_low'] <= entry['trainings_high']


def test_the_figure_has_a_dot_for_each_training(trained):
    results = read_results(trained)
    (ax,) = plot_trainings({'trainings-minilm': results}).axes
    table = trainings_table(results)
    for line, (_, r) in zip(ax.lines, table.filter(like='seed').iterrows()):
        assert np.allclose(line.get_ydata(), r)


# the same reviews, whole and cut


@pytest.fixture(scope='module')
def cut(tmp_path_factory):
    "Three embedded reviews, cut twice."
    path = tmp_path_factory.mktemp('results') / 'lengths-minilm.json'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, 'load_demo', shallow_demo)
        lengths_experiment(path, 'lengths-minilm', 'embedded', limit=3, cuts=(12, 24))
    return path


def test_a_cut_review_has_as_many_tokens_as_were_read(cut):
    rows = read_results(cut)['rows']
    read = [row['n_tokens'] for row in rows if row['cut']]
    assert read == [12, 24] * 3


def test_a_review_without_all_its_rows_is_left_out(cut):
    results = read_results(cut)
    gains = gain_by_cut(results | dict(rows=results['rows'][:-1]))
    assert [len(d) for d in gains.values()] == [2, 2, 2]


def test_the_gain_of_a_cut_is_held_against_the_same_review(cut):
    results = read_results(cut)
    gains = gain_by_cut(results)
    for entry, of_cut in zip(length_entries(results), (12, 24)):
        assert entry['mean'] == pytest.approx(np.mean(gains[of_cut] - gains[None]))
        assert entry['n'] == 3
        assert entry['data'].endswith(f', {of_cut}')


def test_the_figure_of_lengths_draws_a_line_a_method(cut):
    (ax,) = plot_lengths({'lengths-minilm': read_results(cut)}).axes
    assert len(ax.lines) == 3
    assert all(len(line.get_xdata()) == 3 for line in ax.lines)


def test_what_needs_other_packages_is_asked_for_by_name():
    assert {'trainings', 'lengths'} <= set(groups_of(studies())['all'])
    large = {'trainings-mpnet', 'lengths-mpnet'}
    assert large <= set(groups_of(studies())['scale'])
    assert not large & set(groups_of(studies())['all'])
