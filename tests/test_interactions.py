"The study of pairs: resumable rows, a table, a figure, its place in `reproduce`."

import torch

from lrp_loo.results import read_results
from lrp_loo.studies.interactions import (
    interactions_experiment,
    interactions_table,
    interactions_tables,
    plot_interactions,
    shared_ends,
)
from lrp_loo.studies.reproduce import words_of


def test_rows_are_resumed_and_shown(tmp_path):
    path = tmp_path / 'interactions-minilm.json'
    for limit in (1, 2):
        interactions_experiment(
            path, 'interactions-minilm', 'embedded', limit=limit
        )
    results = read_results(path)
    assert len(results['rows']) == 2
    table = interactions_table(results)
    assert table.r['removal, T, exact'] > table.r['regression, T']
    # peers get what the estimate costs, and not less
    assert table.cost['largest LOO, T'] == table.cost['removal, T, exact']
    ((heading, text),) = interactions_tables('interactions-minilm', results)
    assert '2 rows' in heading and 'mean of both ends' in text
    plot_interactions({'interactions-minilm': results})


def test_a_questions_tokens_are_found():
    texts = [torch.tensor(t) for t in ([1, 2, 5, 9, 8], [1, 2, 6, 7, 9, 8])]
    assert shared_ends(texts) == (2, 2)


def test_reproduce_knows_it():
    assert 'interactions' in words_of('all')
    assert 'interactions-large' in words_of('scale')
