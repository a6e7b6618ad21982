"""Some rows computed anew: equal to exact LOO where these are all, and to the
stock model whose other keys and values hooks put back where they are not.
"""

import contextlib
from functools import partial

import pytest
import torch
from conftest import TEXTS, demo_or_skip, random_bert, shallow_demo
from families import FAMILIES, family_tasks, random_inputs, random_model

from lrp_loo import attribute_context, explain
from lrp_loo.estimate import (
    RecomputedRows,
    nearest_rows,
    removal_rows_scores,
    rows_of_spread,
)
from lrp_loo.estimate.one_pass import removal_pass
from lrp_loo.inputs.targets import Target
from lrp_loo.inputs.units import text_units
from lrp_loo.loo import many_loo
from lrp_loo.loo.droppable import DROP_DECODERS
from lrp_loo.loo.engines import read_stored
from lrp_loo.loo.states import StoredText
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode, special_mask

SENTENCE = TEXTS[0]


@torch.no_grad()
def rows_of_text(model, enc, target=None):
    whole, stored = read_stored(model, enc, target)
    if stored is None:
        raise ValueError(f'{type(model).__name__} shows no states')
    return RecomputedRows(whole, stored)


def close(a, b, tol=1e-4):
    "Up to a small part of the largest: float32 in another order."
    apart = (a.detach() - b.detach()).abs()
    return float(apart.max()) <= tol * float(b.abs().max()) + 1e-6


@pytest.fixture(scope='module', params=['sst2', 'reviews', 'reviews-sst2'])
def shallow(request):
    model, tokenizer = shallow_demo(request.param)
    return model, tokenizer, encode(model, tokenizer, SENTENCE)


# ---- which rows


def one_of(T, *tokens):
    return (torch.arange(T)[None] == torch.tensor(tokens)[:, None]).any(0)[None]


CAUSAL = dict(causal=True)
BOTH = dict(causal=True, near='both')
IN_40 = one_of(40, 3, 4, 5)
NEAREST = [
    # to both sides; own rows come last, the one that is read stays
    (one_of(7, 4), 3, [0], {}, [0, 3, 5]),
    (one_of(7, 1), 3, [0], {}, [0, 2, 3]),
    (one_of(4, 0), 3, [0], {}, [0, 1, 2]),
    (one_of(4, 3), 3, [0], {}, [0, 1, 2]),
    # behind the unit first in a causal model
    (one_of(7, 2, 3), 3, [6], CAUSAL, [4, 5, 6]),
    (one_of(7, 2, 3), 4, [6], CAUSAL, [1, 4, 5, 6]),
    (one_of(7, 4), 2, [5, 6], dict(causal=True, near='read'), [3, 5, 6]),
    (one_of(7, 1), 3, [0], dict(near='read'), [0, 2, 3]),
    # half near the unit and half near what is read
    (IN_40, 2, [38, 39], BOTH, [6, 38, 39]),
    (IN_40, 5, [38, 39], BOTH, [6, 7, 36, 37, 38, 39]),
    # more rows than there are
    (one_of(3, 1), 9, [2], CAUSAL, [0, 1, 2]),
]


@pytest.mark.parametrize('members, n_rows, read, options, expected', NEAREST)
def test_nearest_rows(members, n_rows, read, options, expected):
    assert nearest_rows(members, n_rows, read, **options).tolist() == [expected]


# ---- all rows


def by_all_rows(model, enc, target=None):
    "LOO of every token, each row of each variant computed anew."
    rows = rows_of_text(model, enc, target)
    n = enc['input_ids'].shape[1]
    return rows.effects(torch.ones(n, n, dtype=torch.bool), torch.eye(n) == 1)


def test_all_rows_are_exact_loo(shallow):
    model, tokenizer, enc = shallow
    (loo,) = many_loo(model, [enc])
    assert close(by_all_rows(model, enc), loo.scores)
    # and so as a method, for a short text
    n = enc['input_ids'].shape[1]
    found = removal_rows_scores(model, tokenizer, [enc], n_rows=n)
    assert close(found.scores[0], loo.scores)
    assert found.info[0]['rows'] == n


def package_of(family, task):
    return FAMILIES[family].model_class(task).__module__.split('.')[2]


LISTED = [
    (family, task)
    for family, task in family_tasks()
    if package_of(family, task) in DROP_DECODERS and FAMILIES[family].fused
]


@pytest.mark.parametrize(('family', 'task'), LISTED)
def test_all_rows_of_every_listed_decoder(family, task):
    model = random_model(family, task, 'sdpa')
    enc = random_inputs(model)
    (loo,) = many_loo(model, [enc], drop=False)
    try:
        found = by_all_rows(model, enc)
    except ValueError as e:
        # a window, say: what may not be dropped is refused by name
        assert type(model).__name__ in str(e)
        return
    assert close(found, loo.scores, 1e-6)


@pytest.mark.large
def test_all_rows_of_a_deep_decoder():
    model, tokenizer = demo_or_skip('smollm2')
    enc = encode(model, tokenizer, 'Old jokes, slowly told')
    (loo,) = many_loo(model, [enc])
    assert close(by_all_rows(model, enc), loo.scores)


# ---- some rows: the stock model, in which hooks put the others back


PROJECTIONS = ('key', 'value', 'k_proj', 'v_proj')


@contextlib.contextmanager
def others_put_back(model, enc, rows):
    "Keys and values of all but these rows are those of the whole text."
    own, handles = {}, []

    def keep(name):
        def hook(module, args, out):
            if name not in own:
                own[name] = out.detach()
                return None
            back = own[name].expand(len(out), -1, -1).clone()
            back[:, rows] = out[:, rows]
            return back

        return hook

    for name, module in model.named_modules():
        if name.rsplit('.', 1)[-1] in PROJECTIONS:
            handles.append(module.register_forward_hook(keep(name)))
    assert handles
    try:
        with torch.no_grad():
            forward(model, enc)  # the whole text first
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize('family', ['BERT', 'RoBERTa', 'Llama', 'Qwen3'])
def test_the_others_hand_on_what_they_had(family):
    task = 'class' if family in ('BERT', 'RoBERTa') else 'next token'
    model = random_model(family, task, 'sdpa')
    enc = random_inputs(model)
    rows = rows_of_text(model, enc, 1)
    tokens = torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)
    near = nearest_rows(tokens, 3, rows.read, rows.causal)
    recomputed = torch.zeros_like(tokens).scatter(1, near, True)
    values = rows.whole.value - rows.effects(recomputed, tokens)
    for j, value in enumerate(values):
        without = enc | dict(attention_mask=1 - tokens[j : j + 1].long())
        with others_put_back(model, enc, near[j]), torch.no_grad():
            logits = forward(model, without).logits
        logits = logits[0] if logits.ndim == 2 else logits[0, rows.read[-1]]
        # as above
        assert abs(float(value - logits[1])) < 1e-6


# ---- the rest


def test_the_rest_goes_through_all_other_rows(shallow):
    model, tokenizer, enc = shallow
    whole, some = (
        removal_rows_scores(model, tokenizer, [enc], n_rows=2, rest=rest).scores
        for rest in (True, False)
    )
    rows = rows_of_text(model, enc)
    tokens = torch.eye(enc['input_ids'].shape[1], dtype=torch.bool)
    near = nearest_rows(tokens, 2, rows.read, rows.causal)
    by_row = removal_pass(model, enc, rows.whole.readout, by_row=True).terms[0]
    for j, of in enumerate(near):
        by_row[of, j] = 0
    assert close(whole[0] - some[0], by_row.sum(0))


# ---- more rows for the largest


@pytest.mark.parametrize('near, n_leading', [('unit', 3), ('both', 99)])
def test_the_largest_by_what_is_read_get_more_rows(shallow, near, n_leading):
    model, tokenizer, enc = shallow

    def found(**options):
        asked = dict(rest=False, near=near) | options
        return removal_rows_scores(model, tokenizer, [enc], **asked)

    read, more = found(n_rows=1), found(n_rows=5)
    closer = found(n_rows=5, n_leading=n_leading)
    content = ~special_mask(tokenizer, enc['input_ids'][0])
    n = min(n_leading, int(content.sum()))
    leading = (read.scores[0].abs() * content).topk(n).indices
    assert close(closer.scores[0, leading], more.scores[0, leading])
    others = torch.ones_like(content)
    others[leading] = False
    assert torch.equal(closer.scores[0, others], read.scores[0, others])
    # each of the leading ones is computed twice
    n_tokens = len(content)
    cost = 1 + (n_tokens + n * 5) / n_tokens
    assert closer.info[0]['forward_equivalents'] == pytest.approx(cost)


# ---- the largest, exact


def test_the_largest_get_their_exact_loo(shallow):
    model, tokenizer, enc = shallow
    few = dict(n_rows=2, rest=False)
    plain = removal_rows_scores(model, tokenizer, [enc], **few)
    found = removal_rows_scores(model, tokenizer, [enc], n_exact=3, **few)
    (loo,) = many_loo(model, [enc])
    exact = found.info[0]['exact']
    content = ~special_mask(tokenizer, enc['input_ids'][0])
    size = plain.scores[0].abs() * content
    assert exact == sorted(size.topk(3).indices.tolist())
    assert close(found.scores[0, exact], loo.scores[exact])
    others = [j for j in range(len(loo.scores)) if j not in exact]
    assert torch.equal(found.scores[0, others], plain.scores[0, others])
    assert plain.info[0]['exact'] == []
    # without a tokenizer any unit may be
    n = len(content)
    found = removal_rows_scores(model, None, [enc], rest=False, n_exact=n)
    assert found.info[0]['exact'] == list(range(n))
    assert close(found.scores[0], loo.scores)


def test_what_stands_behind_a_unit_is_counted():
    shown = (*shallow_demo('reviews'), ' '.join(TEXTS), ' good film')
    rows = partial(attribute_context, *shown, method='removal+rows')
    plain, found = (rows(n_exact=n, n_rows=2, rest=False) for n in (0, 2))
    exact = attribute_context(*shown)
    chosen = found.info['exact']
    assert len(chosen) == 2
    assert close(found.scores[chosen], exact.scores[chosen])
    more, less = (a.info['forward_equivalents'] for a in (found, plain))
    assert 0 < more - less <= 2 * (1 - 1 / len(found.input_ids))


def test_only_rows_that_a_unit_changes_are_needed():
    model, tokenizer = shallow_demo('reviews')
    enc = encode(model, tokenizer, SENTENCE)
    rows, n = rows_of_text(model, enc), enc['input_ids'].shape[1]
    unit = torch.zeros(n, dtype=torch.bool)
    unit[2:4] = True
    nothing = torch.zeros_like(unit)
    needed, read = rows.changed_by(torch.stack([unit, nothing]))
    assert torch.where(needed)[0].tolist() == list(range(4, n))
    assert torch.where(read)[0].tolist() == rows.read


# ---- as a method


def test_words_are_removed_whole(shallow):
    model, tokenizer, enc = shallow
    words = text_units(tokenizer, enc, SENTENCE, 'word')
    (loo,) = many_loo(model, [enc], units=[words.number])
    given = (model, tokenizer, [enc])
    n = enc['input_ids'].shape[1] - 1
    found = removal_rows_scores(*given, n_rows=n, units=[words])
    assert found.scores.shape == (1, len(words))
    # all rows but one of their own, which nobody reads; the unit of the row
    # that is read lacks another
    read = words.number[0 if model.config.model_type == 'bert' else -1]
    others = torch.arange(len(words)) != read
    assert close(found.scores[0][others], loo.scores[others])
    found = removal_rows_scores(*given, n_rows=1, n_exact=99, units=[words])
    # all but special ones, also the unit of the row that is read
    exact = found.info[0]['exact']
    assert exact == (~words.is_special).nonzero()[:, 0].tolist()
    assert close(found.scores[0, exact], loo.scores[exact])
    # a unit without tokens changes nothing
    words.number[words.number == 2] = -1
    found = removal_rows_scores(*given, rest=False, units=[words])
    assert abs(float(found.scores[0, 2])) < 1e-4


def test_padding_is_no_part_of_the_text():
    model, tokenizer = shallow_demo('sst2')
    enc = encode(model, tokenizer, SENTENCE)
    n = enc['input_ids'].shape[1]
    padded = {k: torch.nn.functional.pad(v, (0, 5)) for k, v in enc.items()}
    alone = removal_rows_scores(model, tokenizer, [enc]).scores
    beside = removal_rows_scores(model, tokenizer, [padded]).scores
    assert beside.shape == alone.shape == (1, n)
    assert close(beside, alone)


@pytest.mark.parametrize('target', [Target(index=(5, 9)), Target(5, log_prob=True), 7])
def test_targets_of_a_language_model(target):
    model, tokenizer = shallow_demo('reviews')
    enc = encode(model, tokenizer, SENTENCE)
    (loo,) = many_loo(model, [enc], target)
    assert close(by_all_rows(model, enc, target), loo.scores)


def test_a_sentence_through_the_rows_of_the_question():
    asked = dict(answer=' a good film', question='How was the film, then?')
    shown = (*shallow_demo('reviews'), ' '.join(TEXTS))
    exact = attribute_context(*shown, **asked)
    how = dict(asked, method='removal+rows', rest=False, near='read')
    apart = [
        float((attribute_context(*shown, n_rows=n, **how).scores - exact.scores).norm())
        for n in (1, 8, 99)
    ]
    assert apart[2] < 1e-3 < apart[1] < float(exact.scores.norm())


def test_rows_of_spread_are_those_of_the_largest_parts(demo):
    model, tokenizer = demo
    enc = encode(model, tokenizer, SENTENCE)
    found = removal_pass(model, enc, by_row=True)
    per_head = removal_pass(model, enc).terms[0]
    # each part once: over rows as over layers and heads
    assert close(found.terms[0].sum(0), per_head.sum(0))
    T = len(found.terms[0])
    assert bool((found.spread >= 0).all())
    read = rows_of_text(model, enc).read
    units = torch.eye(T, dtype=torch.bool)
    rows = rows_of_spread(found.spread[0], units, 3, read)
    for unit, chosen in enumerate(rows.tolist()):
        left = [i for i in range(T) if i not in [*chosen, *read, unit]]
        sizes = found.spread[0, :, unit]
        own = [i for i in chosen if i not in [*read, unit]]
        assert set(read) <= set(chosen) and chosen == sorted(chosen)
        assert all(sizes[i] >= sizes[left].max() for i in own)


# ---- refused by name


def last(output):
    return output.logits[:, -1, 5]


last.from_end = True


@pytest.mark.parametrize(
    'target, said', [(last, 'n_rows'), (Target(position=3), 'one by one')]
)
def test_a_target_that_is_read_elsewhere_is_refused(target, said):
    with pytest.raises(ValueError, match=said):
        explain(*shallow_demo('reviews'), SENTENCE, 'removal+rows', target)


def test_half_precision_and_bad_options_are_refused(demo):
    model = random_bert(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match='full precision'):
        removal_rows_scores(model, None, [random_inputs(model)])
    for passes in (True, 'four'):
        with pytest.raises((ValueError, TypeError), match=str(passes)):
            explain(*demo, SENTENCE, method='removal+rows', passes=passes)


@pytest.mark.parametrize('rest', [True, False])
@pytest.mark.parametrize('passes', [4.0, 6, 7.5])
def test_rows_within_so_many_passes(demo, rest, passes):
    asked = dict(method='removal+rows', rest=rest)
    (a,) = explain(*demo, SENTENCE, passes=passes, **asked)
    cost = a.info['forward_equivalents']
    n_tokens = len(a.input_ids)
    # a row more for each token would be a pass more
    assert passes - 1 < cost <= passes
    (same,) = explain(*demo, SENTENCE, n_rows=a.info['rows'], **asked)
    assert torch.equal(same.scores, a.scores)
    assert a.info['rows'] < n_tokens


def test_rows_that_do_not_give_the_number_are_refused(monkeypatch, demo):
    plain = StoredText.values
    monkeypatch.setattr(StoredText, 'values', lambda *args: plain(*args) + 1)
    with pytest.raises(ValueError, match='recomputed'):
        explain(*demo, SENTENCE, method='removal+rows')
