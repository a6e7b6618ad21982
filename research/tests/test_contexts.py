"""Sentences of long contexts: the generator, what is asked of a ranking, peers
that are derived, and the study end to end on a small decoder.
"""

import re

import numpy as np
import pytest
import torch
from conftest import TEXTS, CountTokens, demo_or_skip, shallow_demo

from lrp_lab import contexts
from lrp_lab.contexts import (
    A_SENTENCE,
    CHAT,
    EXACT,
    FACT_KINDS,
    FOLLOWED_CONTEXTS,
    KINDS_OF_CONTEXTS,
    OPENINGS,
    TAILS,
    AnswerEnds,
    AskedContext,
    Limits,
    ablation_scores,
    average_precision,
    block_scores,
    compared,
    contexts_experiment,
    contexts_table,
    contexts_tables,
    contexts_within,
    first_recall,
    greedy_answer,
    lasso,
    peers_by_context,
    planted_context,
    plot_contexts,
    rank_of_planted,
    singled_out,
    with_peers,
)
from lrp_lab.run import groups_of, studies
from lrp_loo import attribute_context
from lrp_loo.asked.units import text_spans
from lrp_loo.data import TextData
from lrp_loo.loo.engines import read_subsets, read_whole
from lrp_loo.models.encoding import encode
from lrp_loo.tasks.context import answer_log_prob
from lrp_loo.trust.results import read_results

SEEDS = range(40)
FEW = Limits((30, 180), sentences=(6, 8), words=(30, 50), effect=0)


# ---- the generator


def test_the_same_seed_gives_the_same_context():
    assert planted_context(3) == planted_context(3)
    assert planted_context(3) != planted_context(4)


@pytest.mark.parametrize('seed', SEEDS)
def test_planted_sentences_say_what_is_expected(seed):
    found = planted_context(seed, n_facts=(1, 2))
    assert 1 <= len(found.planted) == len(found.expected) <= 2
    for place, value in zip(found.planted, found.expected):
        told = re.findall(r'[\w-]+', found.sentences[place])
        assert set(value.split()) <= set(told)
    every = re.findall(r'[\w-]+', found.text)
    assert all(every.count(value) == 1 for value in found.expected)


@pytest.mark.parametrize('seed', SEEDS)
def test_as_many_sentences_as_are_asked_for(seed):
    found = planted_context(seed)
    assert 30 <= len(found.sentences) <= 80
    spans = text_spans(found.text, 'sentence')
    assert [found.text[a:b] for a, b in spans] == list(found.sentences)


def facts_of(found):
    "Of every sentence that is a fact: what it is about, and what it says."
    said = []
    for sentence in found.sentences:
        opening = next((o for o in OPENINGS if sentence.startswith(o)), None)
        if opening is None:
            continue
        said.append(matched(sentence.removeprefix(f'{opening}, ')))
    return said


def matched_sentence(sentence):
    "The same of a sentence as it stands, with its opening."
    opening = next(o for o in OPENINGS if sentence.startswith(o))
    return matched(sentence.removeprefix(f'{opening}, '))


def matched(sentence):
    "The name and the value, by the form that fits."
    for kind in FACT_KINDS.values():
        for form in kind.forms:
            pattern = re.escape(form).replace(r'\{', '{').replace(r'\}', '}')
            pattern = pattern.format(about='(?P<a>.+?)', value='(?P<v>.+?)')
            found = re.match(pattern + '[,.]', sentence)
            if found and found['a'] in kind.about and found['v'] in kind.values:
                return found['a'], found['v']
    raise AssertionError(sentence)


@pytest.mark.parametrize('seed', SEEDS)
def test_no_two_facts_share_a_name_or_a_value(seed):
    found = planted_context(seed, n_facts=(1, 2))
    abouts, values = zip(*facts_of(found))
    assert len(set(abouts)) == len(abouts) == len(set(values))
    # some are distractors
    assert len(values) >= len(found.planted) + 2
    assert set(found.expected) <= set(values)


def test_one_fact_or_two_are_asked_for():
    assert len(planted_context(0).planted) == 1
    found = [planted_context(s, n_facts=(1, 2)).planted for s in SEEDS]
    assert {len(planted) for planted in found} == {1, 2}


@pytest.mark.parametrize('n_facts', [1, 2])
def test_an_answer_begins_with_what_is_asked_about(n_facts):
    for seed in SEEDS:
        found = planted_context(seed, n_facts=n_facts)
        for place in found.planted:
            about, _ = matched_sentence(found.sentences[place])
            assert about in found.lead
            assert about in found.question
        assert not set(found.expected) & set(found.lead.split())


def test_sentences_do_not_repeat():
    for seed in SEEDS:
        sentences = planted_context(seed).sentences
        assert len(set(sentences)) == len(sentences)


def test_a_fact_is_no_longer_than_the_others():
    told, other = [], []
    for seed in SEEDS:
        found = planted_context(seed)
        for i, sentence in enumerate(found.sentences):
            words = len(sentence.split()) * len(found.sentences)
            (told if i in found.planted else other).append(words)
    assert 0.8 < np.mean(told) / np.mean(other) < 1.25


def test_tails_say_nothing_that_is_asked_for():
    words = ' '.join(TAILS).split()
    for kind in FACT_KINDS.values():
        assert not set(kind.values) & set(words)


def test_contexts_have_a_thousand_to_two_thousand_tokens():
    _, tokenizer = demo_or_skip('smollm2')
    made, _ = KINDS_OF_CONTEXTS['contexts-planted'](None, 0, Limits())
    found, set_aside = contexts_within(tokenizer, made, Limits(), 40)
    assert set_aside <= 4
    for _, context in found:
        assert 1000 <= len(tokenizer(context.text)['input_ids']) <= 2000


def test_what_does_not_fit_is_counted():
    _, tokenizer = shallow_demo('reviews')
    given = [AskedContext(' '.join(TEXTS * n), '?') for n in (1, 3, 4, 9, 3)]
    limits = Limits(tokens=(1, 999), sentences=(9, 12))
    found, set_aside = contexts_within(tokenizer, given, limits)
    assert [i for i, _ in found] == [1, 2, 4]
    assert set_aside == 2
    with pytest.raises(ValueError, match='none of 5'):
        contexts_within(tokenizer, given, Limits(tokens=(5000, 6000)))


# ---- what is asked of a ranking


def test_what_exact_loo_singles_out():
    loo = torch.tensor([4.0, 1.0, 0.99, -4.0, 0.0])
    assert singled_out(loo).tolist() == [True, True, False, False, False]
    assert not singled_out(-torch.ones(3)).any()


def test_average_precision_by_hand():
    wanted = torch.tensor([True, False, True, False])
    assert average_precision(torch.tensor([4.0, 3, 2, 1]), wanted) == (
        pytest.approx((1 + 2 / 3) / 2)
    )
    assert average_precision(torch.tensor([4.0, 1, 3, 2]), wanted) == 1
    # all the same: each takes the last place
    assert average_precision(torch.zeros(4), wanted) == 0.5
    assert np.isnan(average_precision(torch.ones(4), ~wanted & wanted))


def test_average_precision_is_scikit_learns():
    metrics = pytest.importorskip('sklearn.metrics')
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        scores = torch.randint(0, 6, (30,), generator=draw).float()
        wanted = torch.rand(30, generator=draw) < 0.2
        if not wanted.any():
            continue
        theirs = metrics.average_precision_score(wanted, scores)
        # theirs counts equal scores as one threshold as well
        assert average_precision(scores, wanted) == pytest.approx(theirs)


def test_the_first_by_hand():
    loo = torch.tensor([5.0, 4, 3, 2, 1])
    scores = torch.tensor([5.0, 1, 4, 3, 2])
    assert first_recall(scores, loo, 1) == 1
    assert first_recall(scores, loo, 3) == pytest.approx(2 / 3)
    assert rank_of_planted(scores, (0,)) == 1
    assert rank_of_planted(scores, (0, 1)) == 5
    assert rank_of_planted(scores, ()) is None


def test_exact_loo_is_right_by_its_own_measure():
    loo = torch.tensor([5.0, -4, 3, 2, 1, 0.5])
    found = compared(loo, loo, (0,))
    assert found['ap'] == found['first_5'] == 1
    assert found['r'] == pytest.approx(1)


# ---- what peers do, derived


def test_lasso_is_scikit_learns():
    linear = pytest.importorskip('sklearn.linear_model')
    draw = np.random.default_rng(1)
    x = draw.integers(0, 2, (16, 30)).astype(float)
    y = draw.normal(size=16)
    scaled = (x - x.mean(0)) / x.std(0)
    theirs = linear.Lasso(0.05, max_iter=100_000, tol=1e-10).fit(scaled, y)
    ours = lasso(x, y, 0.05, sweeps=5000)
    assert np.allclose(ours, theirs.coef_ / x.std(0), atol=1e-5)


def test_a_column_that_does_not_vary_gets_nothing():
    x = np.array([[1.0, 0], [1, 1], [1, 0]])
    w = lasso(x, np.array([0.0, 2, 0]), 0)
    assert w[0] == 0
    assert w[1] == pytest.approx(2)


@pytest.fixture(scope='module')
def asked():
    model, tokenizer = shallow_demo('reviews')
    context = ' '.join(TEXTS)
    how = dict(context=context, answer=' a good film', question='Well?')
    return dict(model=model, tokenizer=tokenizer) | how


def test_all_blocks_opened_are_exact_loo(asked):
    exact = attribute_context(**asked)
    found = attribute_context(**asked, method=block_scores, n_opened=9)
    assert torch.allclose(found.scores, exact.scores, atol=1e-4)


def test_one_block_opened_is_cheaper(asked):
    costs = [
        attribute_context(**asked, method=block_scores, n_opened=n).info for n in (1, 2)
    ]
    few, more = (info['forward_equivalents'] for info in costs)
    assert few < more


def test_random_ablations_compute_what_they_keep(asked):
    found = attribute_context(**asked, method=ablation_scores, n_passes=8)
    again = attribute_context(**asked, method=ablation_scores, n_passes=8)
    assert torch.equal(found.scores, again.scores)
    assert 0 < found.info['forward_equivalents'] < 8


def test_many_ablations_follow_loo(asked):
    exact = attribute_context(**asked)
    found = attribute_context(**asked, method=ablation_scores, n_passes=64)
    assert found.scores.argmax() == exact.scores.argmax()


# ---- behind a prefix


def answered(model, tokenizer):
    enc = encode(model, tokenizer, ' '.join(TEXTS))
    return enc, answer_log_prob(enc['input_ids'][0, -3:])


def without_each(n_tokens):
    return ~torch.eye(n_tokens, dtype=torch.bool)


@pytest.mark.parametrize('name', ['reviews', 'smollm2'])
def test_an_answers_loo_behind_a_prefix_is_the_masked_one(name):
    demo_or_skip(name)
    model, tokenizer = shallow_demo(name)
    enc, target = answered(model, tokenizer)
    keep = without_each(enc['input_ids'].shape[1])
    # the rows that are read, and the whole text, go the long way
    keep = torch.cat([keep, torch.ones_like(keep[:1])])
    short, long = (
        read_subsets(model, [enc], [keep], [target], 'attention_mask', drop=drop)[
            0
        ].values
        for drop in (True, False)
    )
    assert torch.allclose(short, long, atol=2e-4)


def test_the_prefix_is_not_computed_again():
    model, tokenizer = shallow_demo('reviews')
    enc, target = answered(model, tokenizer)
    n = enc['input_ids'].shape[1]
    keep = without_each(n)[n - 8 : n - 5]
    whole = read_whole(model, enc, target, 'attention_mask')
    with CountTokens(model) as short:
        whole.of_subsets(keep, drop=True)
    # the prefix once, then what stands behind each gap
    assert short.n < n + 3 * 8

    def unsaid(outputs):
        return target(outputs)

    unsaid.from_end = True
    unsaid_whole = read_whole(model, enc, unsaid, 'attention_mask')
    with CountTokens(model) as long:
        unsaid_whole.of_subsets(keep, drop=True)
    assert long.n == 3 * (n - 1)


# ---- the study


def small_demo(name):
    return shallow_demo('reviews')


@pytest.fixture(scope='module')
def experiment():
    "The study on a decoder of two layers, with short contexts."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, 'load_demo', small_demo)

        def run(path, part='contexts-planted', **options):
            return contexts_experiment(path, part, limits=FEW, **options)

        yield run


@pytest.fixture(scope='module')
def measured(experiment, tmp_path_factory):
    path = tmp_path_factory.mktemp('contexts') / 'contexts-planted.json'
    experiment(path, limit=2)
    return read_results(path)


def test_every_method_has_its_numbers(measured):
    table = contexts_table(measured)
    assert list(table.index) == list(FOLLOWED_CONTEXTS)
    assert table.loc[EXACT, ['ap', 'first_1', 'first_5', 'r']].eq(1).all()
    assert table.ap.between(0, 1).all()
    assert (table.cost > 0).all()
    assert (table.seconds >= 0).all()


def test_rows_cost_less_than_exact_loo(measured):
    cost = contexts_table(measured).cost
    assert cost['removal+rows, answer, 4'] < cost[EXACT]
    assert cost['removal+rows, answer, 1'] < cost['removal+rows, answer, 4']


def test_rows_say_what_was_planted(measured):
    for row in measured['rows']:
        found = planted_context(row['i'], FEW.sentences, FEW.words)
        assert tuple(row['planted']) == found.planted
        assert tuple(row['expected']) == found.expected
        assert len(row['holds']) == len(found.expected)
        assert row['n_sentences'] == len(found.sentences)


def test_a_run_goes_on_where_it_stopped(experiment, measured, tmp_path):
    path = tmp_path / 'r.json'
    experiment(path, limit=1)
    first = read_results(path)['rows']
    experiment(path, limit=2)
    both = read_results(path)['rows']
    # what was there is not computed again: seconds would differ
    assert both[0] == first[0]
    assert [row['i'] for row in both] == [row['i'] for row in measured['rows']]


def test_reviews_leave_no_words(experiment, tmp_path, monkeypatch):
    def drawn(name, data, seed):
        info = dict(name=name, source='embedded', split='embedded', n=2)
        return TextData([' '.join(TEXTS * n) for n in (2, 9)], [0, 1], info)

    monkeypatch.setattr(contexts, 'load_texts', drawn)
    monkeypatch.setattr(contexts, 'A_SENTENCE', AnswerEnds(4, '.'))
    found = experiment(tmp_path / 'r.json', 'contexts-imdb', limit=None)
    (row,) = found.rows
    assert not {'answer', 'expected', 'planted'} & set(row)
    counts = dict(n_set_aside=1, n_silent=0, n_not_needed=0)
    assert found.summary == dict(n=1) | counts
    assert row['n_sentences'] == 6


def test_a_model_that_says_nothing_is_counted(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(contexts, 'greedy_answer', lambda *args: '')
    found = experiment(tmp_path / 'r.json', limit=1)
    assert found.summary['n_silent'] == 1
    assert found.rows[0]['methods'] == {}


def test_an_answer_that_needs_no_sentence_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(contexts, 'load_demo', small_demo)
    asked = FEW._replace(effect=1e6)
    path = tmp_path / 'r.json'
    found = contexts_experiment(path, 'contexts-planted', limits=asked, limit=1)
    assert found.summary['n_not_needed'] == 1
    assert found.summary['n_silent'] == 0
    (row,) = found.rows
    assert row['methods'] == {}
    assert row['largest'] < 1e6


def test_an_answer_ends_at_the_first_mark(monkeypatch):
    model, tokenizer = shallow_demo('reviews')
    said = tokenizer(' a film, as good', add_special_tokens=False)['input_ids']
    monkeypatch.setattr(contexts, 'greedy_continuation', lambda *args: said)
    context = AskedContext(' '.join(TEXTS), 'Well?', 'It is')
    assert greedy_answer(model, tokenizer, context) == 'a film'
    whole = context._replace(ends=A_SENTENCE)
    assert greedy_answer(model, tokenizer, whole) == 'a film, as good'


def test_an_answer_is_the_models_own():
    model, tokenizer = shallow_demo('reviews')
    ends = AnswerEnds(3, '.,')
    context = AskedContext(' '.join(TEXTS), 'Well?', ends=ends)
    said = greedy_answer(model, tokenizer, context)
    prompt = CHAT.format(context=context.text, question='Well?')
    ids = tokenizer(prompt, return_tensors='pt')['input_ids']
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax()
    first = tokenizer.decode(best).strip()
    assert said.startswith(first) or not first.strip('.,')


def test_peers_stand_beside_ours(measured):
    row = measured['rows'][0]
    said = dict(scores=row['methods'][EXACT]['scores'], cost=9.0, seconds=1.0)
    peers = {r['i']: {'theirs': said} for r in measured['rows']}
    # of each context its own scores
    for r in measured['rows']:
        scores = r['methods'][EXACT]['scores']
        peers[r['i']] = {'theirs': said | dict(scores=scores)}
    table = contexts_table(with_peers(measured, peers))
    assert table.ap['theirs'] == 1
    assert table.cost['theirs'] == 9
    assert 'theirs' not in contexts_table(measured).index


def test_peers_are_read_by_context_and_errors_are_left_out():
    said = dict(scores=[1.0, 2.0], cost=3.0, seconds=4.0)
    rows = [
        dict(i=0, context=7, name='a', explains='flow', **said),
        dict(i=1, context=7, name='b', error='it did not start'),
        dict(i=2, context=9, name='a', explains='flow', **said),
    ]
    assert peers_by_context(dict(rows=rows)) == {7: {'a': said}, 9: {'a': said}}


def test_a_context_that_a_peer_has_not_read_is_in_no_mean(measured):
    first, second = measured['rows']
    said = dict(cost=9.0, seconds=1.0)
    peers = {
        row['i']: {'a': said | dict(scores=row['methods'][EXACT]['scores'])}
        for row in (first, second)
    }
    peers[first['i']]['b'] = peers[first['i']]['a']
    (row,) = with_peers(measured, peers)['rows']
    assert row['i'] == first['i']


def test_the_figure_has_a_panel_a_kind(measured):
    fig = plot_contexts({'contexts-planted': measured, 'again': measured})
    assert len(fig.axes) == 2
    assert 'n = 2' in fig.axes[0].get_title()
    labels = [text.get_text() for text in fig.legends[0].texts]
    assert {'removal+rows, answer', 'blocks first', 'exact LOO'} <= set(labels)


def test_it_is_printed_with_what_the_answers_hold(measured):
    ((heading, text),) = contexts_tables('contexts-planted', measured)
    assert '2 rows' in heading
    assert 'answers that hold the facts' in text
    assert 'set aside' in text


def test_it_is_asked_for_by_its_parts():
    assert set(KINDS_OF_CONTEXTS) <= set(groups_of(studies())['scale'])
    (study,) = [s for s in studies() if s.name == 'contexts']
    assert list(study.files) == list(KINDS_OF_CONTEXTS)


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match='contexts-planted'):
        contexts_experiment(tmp_path / 'x.json', 'contexts-bert')
