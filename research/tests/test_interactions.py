"The study of pairs: resumable rows, a table, a figure, its place in `reproduce`."

import pytest
import torch

from lrp_lab.interactions import (
    interactions_experiment,
    interactions_table,
    interactions_tables,
    pair_entries,
    phrases_experiment,
    phrases_table,
    plot_interactions,
)
from lrp_lab.run import groups_of, studies
from lrp_loo.models.demos import load_demo
from lrp_loo.asked.template import Template
from lrp_loo.paper.common import PROMPTS
from lrp_loo.tasks.pairs import PHRASES, explain_pairs, phrase_pairs
from lrp_loo.trust.audit import shared_tokens
from lrp_loo.trust.results import read_results


def test_rows_are_resumed_and_shown(tmp_path):
    path = tmp_path / 'interactions-minilm.json'
    for limit in (1, 2):
        interactions_experiment(path, 'interactions-minilm', 'embedded', limit=limit)
    results = read_results(path)
    assert len(results['rows']) == 2
    table = interactions_table(results)
    assert table.r['removal, T, exact'] > table.r['regression, T']
    # peers get what the estimate costs, and not less
    assert table.cost['largest LOO, T'] == table.cost['removal, T, exact']
    ((heading, text),) = interactions_tables('interactions-minilm', results)
    assert '2 rows' in heading and 'mean of both ends' in text
    plot_interactions({'interactions-minilm': results})
    assert pair_entries(results) == []  # two sentences say nothing
    several = [row | dict(i=i) for i in range(5) for row in results['rows']]
    claims = {e['claim'] for e in pair_entries(results | dict(rows=several))}
    assert 'pairs-above-shapley' in claims


def test_a_questions_tokens_are_found():
    texts = [torch.tensor([t]) for t in ([1, 2, 5, 9, 8], [1, 2, 6, 7, 9, 8])]
    assert shared_tokens([dict(input_ids=t) for t in texts]) == (2, 2)


def test_reproduce_knows_it():
    assert 'interactions' in groups_of(studies())['all']
    assert 'interactions-large' in groups_of(studies())['scale']
    assert 'phrases' in groups_of(studies())['all']
    assert 'phrases-large' in groups_of(studies())['scale']


def test_phrases_are_of_every_kind_and_sign():
    signs = {(kind, sign) for kind, *_, sign in PHRASES}
    kinds = ('negation', 'intensifier', 'idiom')
    assert signs == {(kind, sign) for kind in kinds for sign in (-1, 1)}
    assert len(PHRASES) >= 30
    assert len({phrase[1:] for phrase in PHRASES}) == len(PHRASES)


@pytest.mark.parametrize('asked', [str, lambda s: f'not bad, they say: {s}'])
def test_the_two_words_of_a_phrase_are_found_where_they_stand(asked):
    model, tokenizer = load_demo('sst2')
    phrase = ('negation', 'nothing here is not bad', 'not', 'bad', 1)
    found = phrase_pairs(model, tokenizer, phrases=[phrase], asked=asked)
    (words,) = explain_pairs(
        model, tokenizer, asked(phrase[1]), 'exact', target=(1, 0), units='word'
    )
    last = [
        max(i for i, token in enumerate(words.tokens) if token == word)
        for word in ('not', 'bad')
    ]
    expected = float(words.scores[last[0], last[1]])
    assert found.score[0] == pytest.approx(expected, abs=1e-3)


def test_signs_are_counted_by_kind():
    def row(kind, expected, exact, estimate):
        return dict(kind=kind, expected=expected, exact=exact, estimate=estimate)

    rows = [
        row('negation', 1, 2.0, 0.5),
        row('negation', -1, -2.0, 0.5),
        row('idiom', 1, -1.0, -0.1),
    ]
    table = phrases_table(dict(rows=rows))
    assert table.loc['negation'].tolist() == [1.0, 0.5, 0.5, 2]
    assert table.loc['idiom'].tolist() == [0.0, 0.0, 1.0, 1]
    assert table.n['all'] == 3


def test_rows_of_phrases(tmp_path):
    path = tmp_path / 'phrases-minilm.json'
    phrases_experiment(path, 'phrases-minilm', limit=2)
    rows = read_results(path)['rows']
    assert [row['pair'] for row in rows] == ['not bad', 'not good']
    assert rows[0]['exact'] > 0 > rows[1]['exact']


def test_a_question_keeps_the_sentence():
    asked = Template.of(PROMPTS['marked'].template, None).around
    assert all(sentence in asked(sentence) for _, sentence, *_ in PHRASES)
