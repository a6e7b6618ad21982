"""Removals against the plainest loops, on an encoder, a RoBERTa, a decoder;
agreement against scipy; the audited protocol's verdicts.
"""

import numpy as np
import pytest
import torch
from conftest import TEXTS, random_bert
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from lrp_lab.protocol import (
    CONCLUSIONS,
    DEFAULT,
    PROTOCOL,
    MeanOfData,
    conclusions_table,
    protocol_difference,
    protocol_values,
    surviving,
)
from lrp_loo import explain
from lrp_loo.inputs.targets import Target
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.engines import read_subsets
from lrp_loo.loo.removals import REMOVALS, Removal, fill_id
from lrp_loo.models.loading import load_demo
from lrp_loo.models.encoding import encode
from lrp_loo.evaluate.faithfulness import (
    perturbation_curves,
    removal_path,
    removal_units,
)

SMALL = dict(
    vocab_size=30522,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)


def _with_large_weights(model):
    "So that removal matters."
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.2)
    return model.eval()


def _roberta():
    config = RobertaConfig(**SMALL, pad_token_id=1)
    return _with_large_weights(RobertaForSequenceClassification(config))


def _llama():
    config = LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0)
    return _with_large_weights(LlamaForSequenceClassification(config))


MODELS = dict(bert=random_bert, roberta=_roberta, llama=_llama)


@pytest.fixture(scope='module', params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(scope='module')
def bert():
    return random_bert()


@pytest.fixture(scope='module')
def language_model():
    return load_demo('reviews')


# ------------------------------------------------------------ by the plainest
# loops


def _all_but(i, n):
    return torch.arange(n) != i


@torch.no_grad()
def _loo_by_loop(n, number):
    "One variant at a time; number(kept) → logits."
    everything = torch.ones(n, dtype=torch.bool)
    whole = number(everything)
    c = int(whole.argmax())
    return torch.stack([whole[c] - number(_all_but(i, n))[c] for i in range(n)])


def _of_kept_ids(model, enc):
    "Logits of the shorter text."
    return lambda kept: model(input_ids=enc['input_ids'][:, kept]).logits[0]


def test_deletion_is_the_shorter_text(model, tokenizer):
    enc = encode(model, tokenizer, TEXTS[0])
    n = enc['input_ids'].shape[1]
    by_loop = _loo_by_loop(n, _of_kept_ids(model, enc))
    deleted = leave_one_out(model, enc, removal='delete')[0]
    assert torch.allclose(deleted, by_loop, atol=1e-4)


def test_several_deleted_are_the_shorter_text(model, tokenizer):
    enc = encode(model, tokenizer, TEXTS[0])
    keep = torch.ones_like(enc['input_ids'], dtype=torch.bool)
    keep[0, 2:5] = False
    with torch.no_grad():
        shorter = _of_kept_ids(model, enc)(keep[0])
        (of,) = read_subsets(model, [enc], [keep], [0], 'delete')
    assert torch.allclose(of.values, shorter[:1], atol=1e-4)


# 'a' and 'day' count twice
POOL = ['a fine day', 'a day']


def _mean_of_ids(table, tokenizer):
    ids = [tokenizer(t, add_special_tokens=False)['input_ids'] for t in POOL]
    return torch.stack([table[i] for text in ids for i in text]).mean(0)


def _pool_as_ids(tokenizer):
    ids = [tokenizer(t, add_special_tokens=False)['input_ids'] for t in POOL]
    return torch.tensor(sum(ids, []))


MEANS = {  # name → the removal, and the embedding that it puts in
    'vocabulary': (
        lambda tok: Removal('mean_embedding'),
        lambda table, tok: table.mean(0),
    ),
    'data': (lambda tok: MeanOfData(_pool_as_ids(tok)), _mean_of_ids),
}


def _of_embeddings(model, enc):
    "Embeddings → logits, by the model's own forward where it can."
    if not hasattr(model, 'score'):
        mask = enc['attention_mask']
        return lambda x: model(inputs_embeds=x, attention_mask=mask).logits[0]

    def last_row(x):
        """Without ids this decoder cannot find its last token: the row is read
        here.
        """
        hidden = model.model(inputs_embeds=x).last_hidden_state
        return model.score(hidden)[0, -1]

    return last_row


@pytest.mark.parametrize('name', MEANS)
def test_mean_embedding(model, tokenizer, name):
    make, mean_of = MEANS[name]
    removal = make(tokenizer)
    enc = encode(model, tokenizer, TEXTS[0])
    table = model.get_input_embeddings().weight.detach()
    x = table[enc['input_ids']]
    mean = mean_of(table, tokenizer)
    logits = _of_embeddings(model, enc)

    def with_mean(kept):
        return logits(torch.where(kept[:, None], x, mean))

    by_loop = _loo_by_loop(x.shape[1], with_mean)
    fill = fill_id(tokenizer, removal)
    loo = leave_one_out(model, enc, removal=removal, fill=fill)[0]
    assert torch.allclose(loo, by_loop, atol=1e-4)


# ------------------------------------------------------------ resampling


@pytest.fixture(scope='module')
def resampled(model, tokenizer):
    "LOO with tokens from a pool put in."
    enc = encode(model, tokenizer, TEXTS[1] + ' Or not.')

    def loo(pool, n_draws, seed=0):
        how = Removal('resample', pool=pool, n_draws=n_draws, seed=seed)
        fill = fill_id(tokenizer, how)
        return leave_one_out(model, enc, removal=how, fill=fill)[0]

    return loo


@pytest.fixture(scope='module')
def good_and_bad(model, tokenizer):
    "LOO with 'good', and with 'bad', put in by hand."
    enc = encode(model, tokenizer, TEXTS[1] + ' Or not.')
    ids = enc['input_ids']

    def put(token):
        def number(kept):
            return model(input_ids=torch.where(kept, ids, token)).logits[0]

        return _loo_by_loop(ids.shape[1], number)

    return [put(t) for t in tokenizer.convert_tokens_to_ids(['good', 'bad'])]


def test_one_token_in_the_pool_leaves_nothing_to_chance(resampled, good_and_bad):
    good, _ = good_and_bad
    assert torch.allclose(resampled(['good'], 2), good, atol=1e-4)


def test_resampling_is_a_mean_over_draws(resampled, good_and_bad):
    "A place's share of 'good' is a multiple of 1/32."
    good, bad = good_and_bad
    share = (resampled(['good bad'], 32) - bad) / (good - bad)
    assert torch.allclose(share * 32, (share * 32).round(), atol=0.02)
    assert float(share.min()) > 0.1
    assert float(share.max()) < 0.9


def test_a_token_is_drawn_as_often_as_it_stands_in_the_pool(resampled, good_and_bad):
    good, bad = good_and_bad
    often = (resampled(['good'] * 9 + ['bad'], 32) - bad) / (good - bad)
    assert float(often.mean()) > 0.8


@pytest.fixture(scope='module')
def draws(bert, tokenizer):
    "Kept tokens → logits, resampled from a thousand."
    enc = encode(bert, tokenizer, TEXTS[0])
    how = Removal('resample', pool=list(range(2000, 3000)), n_draws=3)

    def logits(keep, **options):
        fill = fill_id(tokenizer, how)
        (of,) = read_subsets(bert, [enc], [keep], [0], how, fill, **options)
        return of.values

    n = enc['input_ids'].shape[1]
    return logits, ~torch.eye(n, dtype=torch.bool)


def test_draws_do_not_depend_on_what_else_is_computed(draws):
    logits, keep = draws
    assert torch.allclose(logits(keep)[3:5], logits(keep[3:5]), atol=1e-5)


def test_draws_do_not_depend_on_batches(draws):
    logits, keep = draws
    assert torch.allclose(logits(keep, token_budget=1), logits(keep), atol=1e-5)


def test_nothing_removed_is_nothing_drawn(draws, bert, tokenizer):
    logits, keep = draws
    enc = encode(bert, tokenizer, TEXTS[0])
    with torch.no_grad():
        whole = bert(**enc).logits[0, 0]
    everything = torch.ones_like(keep[:1])
    assert torch.allclose(logits(everything)[0], whole, atol=1e-5)


# ------------------------------------------------------------ every removal in
# every place


@pytest.fixture(scope='module', params=REMOVALS)
def removal(request):
    if request.param == 'resample':
        return Removal('resample', pool=['it was long', 'good'], n_draws=2)
    return request.param


@pytest.fixture(scope='module')
def loo(bert, tokenizer, removal):
    return explain(bert, tokenizer, TEXTS[0], 'loo', removal=removal)[0]


@pytest.fixture(scope='module')
def curves(bert, tokenizer, loo, removal):
    "MoRF and LeRF of exact LOO."
    enc = encode(bert, tokenizer, TEXTS[0])
    units = removal_units(loo.is_special)
    fill = fill_id(tokenizer, removal)
    given = [{'loo': loo.scores}], [units], [loo.target]
    how = dict(removal=removal, fill=fill)
    return perturbation_curves(bert, [enc], *given, **how)[0]['loo']


def test_every_removals_curve_begins_with_the_whole_text(curves, loo):
    morf, _ = curves
    assert abs(float(morf[0]) - loo.logit) < 1e-4


def test_every_removals_first_step_is_the_largest_loo(curves, loo):
    morf, _ = curves
    largest = float(loo.scores[~loo.is_special].max())
    assert abs(float(morf[1]) - (loo.logit - largest)) < 1e-3


def test_every_removals_curves_end_alike(curves):
    morf, lerf = curves
    assert torch.allclose(morf[-1], lerf[-1], atol=1e-4)


def test_deletions_curve_is_that_of_shorter_texts(bert, tokenizer):
    enc = encode(bert, tokenizer, TEXTS[0])
    (loo,) = explain(bert, tokenizer, TEXTS[0], 'loo', removal='delete')
    units = removal_units(loo.is_special)
    given = [{'loo': loo.scores}], [units], [loo.target]
    morf, _ = perturbation_curves(bert, [enc], *given, removal='delete')[0]['loo']
    kept = removal_path(loo.scores, units, True)[3]
    with torch.no_grad():
        shorter = _of_kept_ids(bert, enc)(kept)
    assert abs(float(morf[3]) - float(shorter[loo.target])) < 1e-4


# ------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    'removal, fill',
    [
        ('delete', None),
        ('mean_embedding', None),
        (Removal('resample', pool=[1]), torch.tensor([1])),
    ],
    ids=['delete', 'mean_embedding', 'resample'],
)
def test_an_image_has_no_tokens_to_remove(removal, fill):
    vit, _ = load_demo('mnist')
    image = dict(pixel_values=torch.zeros(1, 1, 28, 28))
    with pytest.raises(ValueError, match='this is an image'):
        leave_one_out(vit, image, removal=removal, fill=fill)


def test_deletion_moves_the_place_that_is_explained(language_model):
    lm, tok = language_model
    enc = encode(lm, tok, 'this film is a quiet')
    with pytest.raises(ValueError, match='shifts the tokens'):
        leave_one_out(lm, enc, Target(5, position=2), removal='delete')


def test_deletion_explains_a_language_models_last_place(language_model):
    lm, tok = language_model
    enc = encode(lm, tok, 'this film is a quiet')
    loo, _, c = leave_one_out(lm, enc, removal='delete')
    kept = _all_but(1, len(loo))
    with torch.no_grad():
        whole = lm(**enc).logits[0, -1, c]
        shorter = lm(input_ids=enc['input_ids'][:, kept]).logits[0, -1, c]
    assert abs(float(loo[1]) - float(whole - shorter)) < 1e-4


# ------------------------------------------------------------ verdicts

METHODS = (
    'attn_lrp',
    'cp_lrp',
    'bypass 4,5,6',
    'bypass 1,2,3',
    'ig',
    'grad_x_input',
    'rollout',
)
# CP-LRP above AttnLRP, below, no different
SHIFT = {'default': 0.2, 'Kendall': -0.2, 'Spearman': 0.0}


@pytest.fixture(scope='module')
def made():
    "Sixty texts, thirty of them with curves; one r is not defined."
    rng = np.random.default_rng(0)

    def row(i):
        noise = 0.3 * rng.standard_normal()
        r = {choice: dict.fromkeys(METHODS, 0.0) for choice in SHIFT}
        for choice, shift in SHIFT.items():
            r[choice]['cp_lrp'] = shift + noise
        made = dict(i=i, r=r)
        if i < 30:
            areas = dict.fromkeys(METHODS, [1.0, 0.0])
            made['curves'] = {'default': areas}
        return made

    rows = [row(i) for i in range(60)]
    rows[0]['r']['default']['cp_lrp'] = None
    return dict(config=dict(model=dict(layers=6)), rows=rows)


FIRST = next(iter(CONCLUSIONS))


def test_verdicts_follow_the_rule(made):
    verdicts = conclusions_table(made)[FIRST]
    assert verdicts[list(SHIFT)].tolist() == ['holds', 'reversed', 'undecided']


def test_what_was_not_measured_has_no_verdict(made):
    verdicts = conclusions_table(made)[FIRST]
    assert (verdicts.drop(list(SHIFT)) == '').all()


def test_a_text_without_r_is_left_out_of_the_difference(made):
    difference = protocol_difference(made, 'default', 'r', 'cp_lrp', 'attn_lrp')
    assert difference['n'] == 59


def test_texts_without_curves_are_left_out_of_delta(made):
    assert len(protocol_values(made, 'default', 'cp_lrp', 'delta')) == 30


def test_a_conclusion_that_a_choice_makes_is_named(made):
    outcome = surviving(conclusions_table(made)).loc[FIRST]
    assert outcome['outcome'] == 'depends on the choice'
    assert 'Kendall (reversed)' in outcome['differs']


def test_choices_change_settings_that_there_are():
    for change in PROTOCOL.values():
        assert set(change) <= set(DEFAULT)
