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
from lrp_loo.estimate import first_estimates
from lrp_loo.estimate.auto import auto_scores, refined, spend
from lrp_loo.estimate.one_pass import removal_pass
from lrp_loo.estimate.rows import KeptRows, choose_rows, rows_are_right
from lrp_loo.inputs.targets import Target
from lrp_loo.inputs.units import text_units
from lrp_loo.loo import many_loo
from lrp_loo.loo.engines import WholeText
from lrp_loo.loo.states import StoredText, changed_rows, is_causal, rows_read
from lrp_loo.models.attention import AttentionMode
from lrp_loo.models.call import forward
from lrp_loo.models.encoding import encode

SENTENCE = TEXTS[0]


def effects(model, enc, rows, removed, target=None):
    "f(x) minus f without each unit, these rows computed anew; the rows that are read."
    whole, stored = WholeText(model, enc, target), StoredText.read(model, enc)[0]
    values = stored.values(rows, removed, whole.readout)
    return whole.value - values, rows_read(model, enc, whole.readout)[0]


def close(a, b, tol=1e-4):
    "Up to a small part of the largest: float32 in another order."
    apart = (a.detach() - b.detach()).abs()
    return float(apart.max()) <= tol * float(b.abs().max()) + 1e-6


@pytest.fixture(scope='module', params=['sst2', 'reviews', 'reviews-sst2'])
def shallow(request):
    model, tokenizer = shallow_demo(request.param)
    return model, tokenizer, encode(model, tokenizer, SENTENCE)


# ---- all rows


def by_all_rows(model, enc, target=None):
    "LOO of every token, each row of each variant computed anew."
    n = enc['input_ids'].shape[1]
    every = torch.ones(n, n, dtype=torch.bool)
    return effects(model, enc, every, torch.eye(n) == 1, target)[0]


def test_all_rows_are_exact_loo(shallow):
    model, _, enc = shallow
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
    n = enc['input_ids'].shape[1]
    tokens = torch.eye(n, dtype=torch.bool)
    recomputed = tokens.roll(1, 1) | tokens.roll(2, 1)  # two behind each token
    recomputed[:, 0 if task == 'class' else -1] = True
    found, read = effects(model, enc, recomputed, tokens, 1)
    values = WholeText(model, enc, 1).value - found
    for j, value in enumerate(values):
        without = enc | dict(attention_mask=1 - tokens[j : j + 1].long())
        with others_put_back(model, enc, recomputed[j]), torch.no_grad():
            logits = forward(model, without).logits
        logits = logits[0] if logits.ndim == 2 else logits[0, read[-1]]
        # as above
        assert abs(float(value - logits[1])) < 1e-6


@pytest.mark.parametrize('target', [Target(index=(5, 9)), Target(5, log_prob=True), 7])
def test_targets_of_a_language_model(target):
    model, tokenizer = shallow_demo('reviews')
    enc = encode(model, tokenizer, SENTENCE)
    (loo,) = many_loo(model, [enc], target)
    assert close(by_all_rows(model, enc, target), loo.scores)


# ---- not by rows, and why


def last(output):
    return output.logits[:, -1, 5]


last.from_end = True


@pytest.mark.parametrize('target', [last, Target(position=3)])
def test_a_target_that_is_read_elsewhere_gets_whole_tokens(target):
    (a,) = explain(*shallow_demo('reviews'), SENTENCE, target=target, passes=4)
    assert a.info['engine'].startswith('whole tokens: ')
    assert 'n_rows' in a.info['engine'] and len(a.info['exact']) == 1


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
        if not causal:  # the rows of all variants are one text
            variant, position = recomputed.nonzero().T
            new = variant == torch.arange(n)[:, None]
            new = new & ~removed[variant, position]
            keys = torch.cat([stored, position]).expand(n, -1)
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
            kv = (x.expand(len(mask), -1, -1, -1) for x in (call.keys, call.values))
            O = scaled_dot_product_attention(query, *kv, **kwargs)
            change = ((whole.compute() - O) * g).sum((1, 3))
            self.effects += change.masked_fill(~self.kept, 0).sum(1)
            self.layer += 1
        return call.compute()


FAMILIES_WITH_ROWS = [('BERT', 'class'), ('DistilBERT', 'class'), ('RoBERTa', 'class')]
FAMILIES_WITH_ROWS += [('Llama', 'next token'), ('GPT-2', 'class'), ('Qwen3', 'class')]


@pytest.mark.parametrize('family, task', [*FAMILIES_WITH_ROWS, ('MPNet', 'class')])
@pytest.mark.parametrize('n_rows', [20, 40])
# of a text longer than 5 tokens, keys that go are subtracted, in blocks; with a limit
# of 2, all keys that stay are summed instead; a decoder's variants share stored keys
@pytest.mark.parametrize('long, least_sum', [(256, 0.05), (5, 0.05), (5, 2)])
def test_kept_rows_add_what_their_attention_gives_to_first_order(
    family, task, n_rows, long, least_sum, monkeypatch
):
    monkeypatch.setattr('lrp_loo.estimate.rows.LONG', long)
    monkeypatch.setattr('lrp_loo.estimate.rows.LEAST_SUM', least_sum)
    monkeypatch.setattr('lrp_loo.loo.states.LONG_TEXT', long)
    model = unlisted_model('MPNetForSequenceClassification', 0.2)
    model = random_model(family, task, 'sdpa') if family != 'MPNet' else model
    enc = random_inputs(model, 12)
    terms, causal = removal_pass(model, enc), is_causal(model)
    removed = torch.eye(12, dtype=torch.bool)
    read, _ = rows_read(model, enc, terms.readout)
    every = changed_rows(~removed, read, causal)
    some = choose_rows(terms.spread[0].T, every, read, n_rows)
    units = some.any(1)
    assert int(some.sum()) <= n_rows and some[units][:, read].all()
    rows, hidden, kept = some[units], removed[units], (every & ~some)[units]
    rows_of = KeptRows(terms.attention, torch.zeros(len(rows)).long(), hidden, kept)
    f = terms.stored.values(rows, hidden, terms.readout, receive=rows_of.of_batch)
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
        assert scores.info[i]['engine'] == 'rows'
        assert close(scores.scores[i, :n], loo.scores)


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_a_unit_needs_no_row_but_its_own_and_the_one_that_is_read(name):
    model, tokenizer = shallow_demo(name)
    text = f'{SENTENCE} And so it went on, and on, and on, until the lights came up.'
    enc = encode(model, tokenizer, text)
    units = text_units(tokenizer, enc, text, [(0, 4), (6, 12)])
    (first,), terms = first_estimates(model, tokenizer, [enc], None, [units])
    (estimate,) = spend([first], 0, terms)
    n, (read, _) = len(units.number), rows_read(model, enc, estimate.whole.readout)
    assert estimate.read == read
    assert int(estimate.changed.all(0).sum()) > len(read)
    spread = terms.spread[0, :n, : len(units)].T
    some = choose_rows(spread, estimate.changed, estimate.read, 2)
    assert 0 < int(some.sum()) <= 2 and some[some.any(1)][:, read].all()


@pytest.mark.parametrize('family', ['Llama', 'Qwen3', 'GPT-2'])
def test_variants_of_a_decoder_share_stored_keys(family, monkeypatch):
    "As rows of one text, no variant has a copy; the numbers are those of a batch."
    model = random_model(family, 'next token', 'sdpa')
    enc, shapes = random_inputs(model, 12), []
    terms = removal_pass(model, enc)
    removed = torch.eye(12, dtype=torch.bool)[:11]
    rows = removed.roll(1, 1) | removed.roll(3, 1)
    rows[:, -1] = True

    def receive(i, variant, positions, is_new):
        return lambda layer, keys, values: shapes.append((layer, len(keys)))

    values = []
    for long in (5, 256):
        monkeypatch.setattr('lrp_loo.loo.states.LONG_TEXT', long)
        arguments = (rows, removed, terms.readout)
        values.append(terms.stored.values(*arguments, receive=receive))
    assert close(*values)
    n_layers, n_rows = len(terms.attention), int(rows.sum())
    assert shapes[:n_layers] == [(layer, n_rows) for layer in range(n_layers)]
    assert shapes[n_layers][1] > n_rows  # a batch is padded


@pytest.mark.parametrize('family, task', FAMILIES_WITH_ROWS)
def test_attention_of_another_layer_is_noticed(family, task):
    model = random_model(family, task, 'sdpa')
    enc = random_inputs(model, 12)
    first, terms = first_estimates(model, None, [enc], None)
    (e,) = spend(first, 0, terms)
    wrong = terms._replace(attention=terms.attention[::-1])
    assert not rows_are_right(wrong, 0, e)
    assert rows_are_right(terms, 0, e)


@pytest.mark.parametrize('name', ['sst2', 'reviews-sst2'])
def test_rows_are_added_until_the_estimate_is_exact(name):
    "A unit that gets rows has those from before, and no other unit changes."
    model, tokenizer = shallow_demo(name)
    enc = encode(model, tokenizer, SENTENCE)
    (loo,) = many_loo(model, [enc])
    first, terms = first_estimates(model, tokenizer, [enc], None)
    (e,), off = spend(first, 1, terms), []
    while not e.exact[e.is_content].all():
        before, e = e, refined(e, 5)
        assert not (before.computed & ~e.computed).any()
        grown = (before.computed != e.computed).any(1)
        assert grown.any() and e.planned_passes <= before.planned_passes + 5
        assert torch.equal(before.value[~grown], e.value[~grown])
        off.append(float((e.mean - loo.scores)[e.is_content].abs().max()))
    assert off[-1] < 1e-4 * float(loo.scores.abs().max()) < off[0]
