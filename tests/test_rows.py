"""Some rows computed anew: equal to exact LOO where these are all, and to the
stock model whose other keys and values hooks put back where they are not.
"""

import contextlib

import pytest
import torch
from conftest import TEXTS, shallow_demo
from families import random_inputs, random_model
from test_exact_loo import unlisted_model
from torch.nn.functional import scaled_dot_product_attention

from lrp_loo import explain
from lrp_loo.estimate import RecomputedRows, nearest_rows, removal_rows_scores
from lrp_loo.estimate.auto import auto_scores, begin_estimates
from lrp_loo.estimate.one_pass import removal_pass
from lrp_loo.estimate.rows import KeptRows, choose_rows, rows_are_right
from lrp_loo.inputs.targets import Target
from lrp_loo.inputs.units import text_units
from lrp_loo.loo import many_loo
from lrp_loo.loo.engines import read_whole
from lrp_loo.loo.states import StoredText, changed_rows, is_causal, rows_read
from lrp_loo.models.attention import AttentionMode
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode

SENTENCE = TEXTS[0]


def rows_of_text(model, enc, target=None):
    return RecomputedRows(*read_whole(model, enc, target, stores_states=True))


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


NEAREST = [
    # to both sides; own rows come last, the one that is read stays
    (one_of(7, 4), 3, [0], False, [0, 3, 5]),
    (one_of(7, 1), 3, [0], False, [0, 2, 3]),
    (one_of(4, 0), 3, [0], False, [0, 1, 2]),
    (one_of(4, 3), 3, [0], False, [0, 1, 2]),
    # behind the unit first in a causal model
    (one_of(7, 2, 3), 3, [6], True, [4, 5, 6]),
    (one_of(7, 2, 3), 4, [6], True, [1, 4, 5, 6]),
    (one_of(40, 3, 4, 5), 3, [38, 39], True, [6, 7, 38, 39]),
    # more rows than there are
    (one_of(3, 1), 9, [2], True, [0, 1, 2]),
]


@pytest.mark.parametrize('members, n_rows, read, causal, expected', NEAREST)
def test_nearest_rows(members, n_rows, read, causal, expected):
    (rows,) = nearest_rows(members, n_rows, read, causal)
    assert torch.where(rows)[0].tolist() == expected


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
    # and so as a method
    found = removal_rows_scores(model, tokenizer, [enc], n_rows=99)
    assert close(found.scores[0], loo.scores)


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
    recomputed = nearest_rows(tokens, 3, rows.read, rows.causal)
    values = rows.whole.value - rows.effects(recomputed, tokens)
    for j, value in enumerate(values):
        without = enc | dict(attention_mask=1 - tokens[j : j + 1].long())
        with others_put_back(model, enc, recomputed[j]), torch.no_grad():
            logits = forward(model, without).logits
        logits = logits[0] if logits.ndim == 2 else logits[0, rows.read[-1]]
        # as above
        assert abs(float(value - logits[1])) < 1e-6


# ---- the rest


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


def test_a_unit_of_the_whole_text_is_left_to_the_model():
    "A row that sees no key has no state to recompute."
    model, tokenizer = shallow_demo('reviews')
    enc = encode(model, tokenizer, SENTENCE)
    rows = rows_of_text(model, enc)
    everything = torch.ones(1, enc['input_ids'].shape[1], dtype=torch.bool)
    with torch.no_grad():
        out = forward(model, enc | dict(attention_mask=1 - everything.long()))
    expected = rows.whole.value - rows.whole.readout(out)
    assert close(rows.effects(everything, everything), expected)


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


@pytest.mark.parametrize('rest', [True, False])
def test_the_cost_counts_rows_and_the_gradient(demo, rest):
    (a,) = explain(*demo, SENTENCE, method='removal+rows', rest=rest, n_rows=3)
    assert a.info['forward_equivalents'] == pytest.approx(1 + 3 + 2 * rest)


def test_rows_that_do_not_give_the_number_are_refused(monkeypatch, demo):
    plain = StoredText.values
    monkeypatch.setattr(StoredText, 'values', lambda *args: plain(*args) + 1)
    with pytest.raises(ValueError, match='recomputed'):
        explain(*demo, SENTENCE, method='removal+rows')


# ---- rows within a budget: attention of kept rows, evaluated again


class Evaluated(AttentionMode):
    "Sums ⟨∂f/∂O, O − Õ⟩ of kept rows, each Õ by torch's attention over all its keys."

    def __init__(self, terms, recomputed, removed, kept, causal):
        super().__init__()
        self.attention, self.kept, self.layer = terms.attention, kept, 0
        n, T = recomputed.shape
        size = int(recomputed.sum(1).max())
        order = (
            (recomputed if causal else ~recomputed).long().argsort(dim=1, stable=True)
        )
        rows = order[:, -size:] if causal else order[:, :size]
        visible = ~(recomputed | removed)
        stored = visible.any(0).nonzero()[:, 0]
        new = (recomputed & ~removed).gather(1, rows)
        keys = torch.cat([stored.expand(n, -1), rows], 1)
        mask = torch.cat([visible[:, stored], new], 1)[:, None].expand(-1, T, -1)
        if causal:
            mask = mask & (keys[:, None] <= torch.arange(T)[None, :, None])
        self.mask, self.keys = mask | ~mask.any(-1, keepdim=True), keys
        self.effects = torch.zeros(n)

    def attend(self, call):
        if call.key.shape[2] == self.mask.shape[2]:  # not a module's own single row
            whole, g = self.attention[self.layer]
            mask = torch.zeros(self.mask.shape, dtype=whole.query.dtype)
            mask = mask.masked_fill(~self.mask, -torch.inf)[:, None]
            if (bias := whole.attn_mask) is not None and bias.is_floating_point():
                bias = bias[0][:, None, :].expand(-1, len(mask), -1, -1).transpose(0, 1)
                columns = self.keys[:, None, None].expand(*bias.shape[:3], -1)
                mask = mask + bias.gather(-1, columns).nan_to_num(neginf=0)
            query = whole.query.expand(len(mask), -1, -1, -1)
            kwargs = dict(attn_mask=mask, scale=call.scale)
            O = scaled_dot_product_attention(query, call.keys, call.values, **kwargs)
            change = ((whole.compute() - O) * g).sum((1, 3))
            self.effects += change.masked_fill(~self.kept, 0).sum(1)
            self.layer += 1
        return call.compute()


FAMILIES_WITH_ROWS = [('BERT', 'class'), ('DistilBERT', 'class'), ('RoBERTa', 'class')]
FAMILIES_WITH_ROWS += [('Llama', 'next token'), ('GPT-2', 'class'), ('Qwen3', 'class')]


@pytest.mark.parametrize('family, task', [*FAMILIES_WITH_ROWS, ('MPNet', 'class')])
@pytest.mark.parametrize('n_rows', [20, 40])
def test_kept_rows_add_what_their_attention_gives_to_first_order(family, task, n_rows):
    model = unlisted_model('MPNetForSequenceClassification', 0.2)
    model = random_model(family, task, 'sdpa') if family != 'MPNet' else model
    enc = random_inputs(model, 12)
    terms, causal = removal_pass(model, enc), is_causal(model)
    removed = torch.eye(12, dtype=torch.bool)
    read = rows_read(model, enc, terms.readout)
    every = changed_rows(~removed, read, causal)
    some = choose_rows(terms.spread[0].T, every, read, n_rows)
    units = some.any(1)
    assert int(some.sum()) <= n_rows and some[units][:, read].all()
    rows, hidden, kept = some[units], removed[units], (every & ~some)[units]
    rows_of = KeptRows(terms.attention, torch.zeros(len(rows)).long(), hidden, kept)
    f = terms.stored.values(rows, hidden, terms.readout, receive=rows_of.receive)
    order = rows.sum(1).argsort(stable=True)  # one batch, as `values` makes it
    mode = Evaluated(terms, rows[order], hidden[order], kept[order], causal)
    with mode, torch.no_grad():
        again = terms.stored.values(rows[order], hidden[order], terms.readout)
    assert mode.layer == len(terms.attention)
    assert close(f[order], again)
    assert rows_of.effects.abs().max() > 1e-3
    assert close(rows_of.effects[order], mode.effects)


@pytest.mark.parametrize('family, task', FAMILIES_WITH_ROWS)
def test_all_rows_of_a_budget_are_exact_loo(family, task, monkeypatch):
    model = random_model(family, task, 'sdpa')
    encs = [random_inputs(model, n) for n in (12, 7)]
    # not by exact LOO, which would take no longer
    monkeypatch.setattr('lrp_loo.estimate.auto.affordable_passes', lambda *args: 0)
    scores = auto_scores(model, None, encs, passes=3 + 12)
    for i, (loo, n) in enumerate(zip(many_loo(model, encs), (12, 7), strict=True)):
        assert scores.info[i]['exact'] == list(range(n))
        assert 'engine' not in scores.info[i]
        assert close(scores.scores[i, :n], loo.scores)


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_a_unit_needs_no_row_but_its_own_and_the_one_that_is_read(name):
    model, tokenizer = shallow_demo(name)
    text = f'{SENTENCE} And so it went on, and on, and on, until the lights came up.'
    enc = encode(model, tokenizer, text)
    units = text_units(tokenizer, enc, text, [(0, 4), (6, 12)])
    (estimate,), terms = begin_estimates(
        model, tokenizer, [enc], None, [units], [None], [9.0]
    )
    n, read = len(units.number), rows_read(model, enc, estimate.posterior.whole.readout)
    assert estimate.read == read and int(estimate.rows.all(0).sum()) > len(read)
    spread = terms.spread[0, :n, : len(units)].T
    some = choose_rows(spread, estimate.rows, estimate.read, 2)
    assert 0 < int(some.sum()) <= 2 and some[some.any(1)][:, read].all()


@pytest.mark.parametrize('family, task', FAMILIES_WITH_ROWS)
def test_attention_of_another_layer_is_noticed(family, task):
    model = random_model(family, task, 'sdpa')
    enc = random_inputs(model, 12)
    estimates, terms = begin_estimates(model, None, [enc], None, [None], [None], [13.0])
    (e,) = estimates
    arguments = (0, e.posterior.whole, e.members, e.rows, e.read)
    wrong = terms._replace(attention=terms.attention[::-1])
    assert not rows_are_right(wrong, *arguments)
    assert rows_are_right(terms, *arguments)
