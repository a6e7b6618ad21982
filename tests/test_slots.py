"A baseline that runs nothing: what tokens that stand in every text say by themselves."

import json

import numpy as np
import pytest
import torch

from lrp_loo import audit, load_demo
from lrp_loo.methods import explain
from lrp_loo.stats import agreement
from lrp_loo.evaluate.audit import AUDIT_COLUMNS, shared_tokens, slot_baseline
from lrp_loo.evaluate.results import Results
from lrp_loo.evaluate.verdict import verdict

REVIEW = 'Review: {text}\nIn short, the movie was'
FILMS = [
    'a slow start, then a gripping , funny second half',
    'two hours that no one gives back',
    'the cook is the hero , and the soup is the villain',
    'good songs , bad dancing',
    'they drive to the sea and say nothing',
]
PROMPTS = [REVIEW.format(text=t) for t in FILMS]
METHODS = ('loo', 'cp_lrp', 'grad_x_input')
QUIET = dict(progress=False)


@pytest.fixture(scope='module')
def decoder():
    return load_demo('reviews-sst2')


@pytest.fixture(scope='module')
def asked(decoder):
    "An audit of whole prompts, and its rows."
    kept = Results(None, {})
    return audit(*decoder, PROMPTS, METHODS, results=kept, **QUIET), kept


@pytest.fixture(scope='module')
def loos(decoder):
    return explain(*decoder, PROMPTS, 'loo')


@pytest.fixture(scope='module')
def encs(decoder):
    return [decoder[1](p, return_tensors='pt') for p in PROMPTS]


@pytest.mark.parametrize(
    'ids, shared',
    [
        ([[1, 2, 3], [1, 2, 3]], (3, 0)),
        ([[1, 2, 1], [1, 1], [1, 3, 4, 1]], (1, 1)),
        ([[1, 1], [1, 1, 1]], (2, 0)),  # no token of the shortest counts twice
        ([[1, 2], [2, 1]], (0, 0)),
    ],
)
def test_shared_tokens_of_numbers(ids, shared):
    assert shared_tokens([dict(input_ids=torch.tensor([i])) for i in ids]) == shared


def test_the_baseline_is_the_others_mean(encs, asked, loos):
    "By hand, text by text; and its rows are those of the table."
    table, kept = asked
    n_before, n_after = shared_tokens(encs)
    maps = [row['maps']['loo'] for row in kept.rows]
    for map, a in zip(maps, loos):
        assert map == pytest.approx(a.scores.tolist(), rel=1e-3, abs=1e-4)
    r, r_all = [], []
    for k, (a, found) in enumerate(zip(loos, slot_baseline(maps, n_before, n_after))):
        others = [m for j, m in enumerate(maps) if j != k]
        between = [x for m in others for x in m[n_before : len(m) - n_after]]
        expected = [sum(m[i] for m in others) / 4 for i in range(n_before)]
        inner = len(a) - n_before - n_after
        expected += [sum(between) / len(between)] * inner
        expected += [sum(m[i] for m in others) / 4 for i in range(-n_after, 0)]
        assert found == pytest.approx(expected)
        given = torch.tensor(expected), torch.tensor(maps[k]), a.is_special
        r.append(agreement(*given))
        r_all.append(agreement(*given, specials=True))
    assert table.loo_r['slots'] == pytest.approx(np.mean(r))
    assert table.loo_r_all['slots'] == pytest.approx(np.mean(r_all))
    assert table.loo_r_all_se['slots'] == pytest.approx(np.std(r_all, ddof=1) / 5**0.5)
    assert table.n['slots'] == 5


def test_without_a_template_it_is_said_and_with_one_it_is_not(
    decoder, encs, asked, loos
):
    table, kept = asked
    said, behind = table.below
    n_before, n_after = shared_tokens(encs)
    shares = []
    for a in loos:
        own = a.scores[~a.is_special]
        off = ((own - own.mean()) ** 2).tolist()
        n_first = n_before - int(a.is_special.sum())
        shares.append((sum(off[:n_first]) + sum(off[-n_after:])) / sum(off))
    n = n_before + n_after - int(loos[0].is_special.sum())
    assert said == (
        f"{n} tokens stand in every text and carry {100 * np.mean(shares):.0f} % of"
        " LOO's variance; name them with template= to ask about the text alone"
    )
    r = table.loo_r_all
    worse = [m for m in METHODS if r[m] <= r['slots']]
    assert 'grad_x_input' in worse and 'loo' not in worse
    assert behind.endswith(f"not beaten by: {', '.join(worse)}")
    spans = [(8, 8 + len(t)) for t in FILMS]
    for texts, how in ((FILMS, dict(template=REVIEW)), (PROMPTS, dict(among=spans))):
        named = audit(*decoder, texts, METHODS, **how, **QUIET)
        assert named.below == []
        assert np.isnan(named.loo_r['slots'])  # constant over the text
        assert named.loo_r_all['slots'] == pytest.approx(r['slots'], abs=1e-3)
        assert named.loo_r_all['cp_lrp'] == pytest.approx(r['cp_lrp'], abs=1e-3)


def test_a_method_of_its_name_is_refused_and_it_is_no_method_to_trust(decoder, asked):
    table, kept = asked
    assert table.loc['slots', 'lerf':'delta_se'].isna().all()
    assert 'slots' not in verdict(kept.rows)['sentence']
    with pytest.raises(ValueError, match="'slots' is reserved for"):
        audit(*decoder, FILMS, dict(slots=('cp_lrp', {})), **QUIET)


def test_texts_that_share_nothing_have_no_row(decoder):
    # nor do two, nor those that share the full stop at their end
    for texts in (FILMS, PROMPTS[:2], [f'{t} .' for t in FILMS]):
        table = audit(*decoder, texts, 'cp_lrp', **QUIET)
        assert list(table.index) == ['cp_lrp']
        assert table.below == []
        assert list(table.columns) == AUDIT_COLUMNS


def test_a_resumed_run_gives_the_same_table_and_rows_without_maps_no_slots(
    decoder, asked, tmp_path
):
    table, _ = asked
    path = tmp_path / 'rows.json'
    audit(*decoder, PROMPTS, METHODS, results=Results(path, {}), **QUIET)
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | dict(rows=stored['rows'][:2])))
    again = audit(*decoder, PROMPTS, METHODS, results=Results(path, {}), **QUIET)
    assert again.equals(table) and again.below == table.below
    for row in stored['rows']:  # as an older version wrote them
        del row['maps'], row['classes']
    path.write_text(json.dumps(stored))
    again = audit(*decoder, PROMPTS, METHODS, results=Results(path, {}), **QUIET)
    assert again.equals(table.drop('slots')) and again.below == []
