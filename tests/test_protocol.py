"Removals against the plainest loops, on an encoder, a RoBERTa, a decoder; agreement against scipy; the audited protocol's verdicts."

import numpy as np
import pytest
import torch
from conftest import TEXTS, random_bert
from scipy import stats
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from lrp_loo import audit, explain
from lrp_loo.stats import CORRELATIONS, kendall, spearman
from lrp_loo.stats import agreement
from lrp_loo.models import encode, load_demo
from lrp_loo.removals import REMOVALS, Removal, fill_id
from lrp_loo.loo import leave_one_out
from lrp_loo.curves import perturbation_curves, removal_path, removal_units
from lrp_loo.variants import subset_logits
from lrp_loo.studies.protocol import (
    CONCLUSIONS,
    DEFAULT,
    PROTOCOL,
    conclusions_table,
    protocol_difference,
    protocol_values,
    surviving,
)
from lrp_loo.targets import Target

SMALL = dict(
    vocab_size=30522,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)


def _large(m):
    "Weights large enough that removal matters."
    torch.manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p.normal_(0, 0.2) if p.ndim > 1 else None
    return m.eval()


@pytest.fixture(scope='module', params=['bert', 'roberta', 'llama'])
def model(request):
    if request.param == 'bert':
        return random_bert()
    if request.param == 'roberta':
        return _large(
            RobertaForSequenceClassification(
                RobertaConfig(**SMALL, pad_token_id=1)
            )
        )
    return _large(
        LlamaForSequenceClassification(
            LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0)
        )
    )


def _without(i, n):
    return torch.arange(n) != i


def _loo(model, enc, f):
    "One variant at a time."
    with torch.no_grad():
        whole = model(**enc).logits[0]
        c = int(whole.argmax())
        return torch.stack(
            [whole[c] - f(i)[c] for i in range(enc['input_ids'].shape[1])]
        )


def test_deletion_is_the_shorter_text(model, tokenizer):
    enc = encode(model, tokenizer, TEXTS[0])
    n = enc['input_ids'].shape[1]
    naive = _loo(
        model,
        enc,
        lambda i: model(input_ids=enc['input_ids'][:, _without(i, n)]).logits[
            0
        ],
    )
    assert torch.allclose(
        leave_one_out(model, enc, removal='delete')[0], naive, atol=1e-4
    )
    assert not torch.allclose(leave_one_out(model, enc)[0], naive, atol=1e-3)
    keep = torch.ones(1, n, dtype=torch.bool)
    keep[0, 2:5] = False
    with torch.no_grad():
        assert torch.allclose(
            subset_logits(model, enc, keep, 'delete'),
            model(input_ids=enc['input_ids'][:, keep[0]]).logits,
            atol=1e-4,
        )


def test_mean_embedding(model, tokenizer):
    enc = encode(model, tokenizer, TEXTS[0])
    table = model.get_input_embeddings().weight.detach()
    x = table[enc['input_ids']]
    pool = ['a fine day', 'a day']  # 'a' and 'day' count twice
    ids = [
        i
        for t in pool
        for i in tokenizer(t, add_special_tokens=False)['input_ids']
    ]
    for removal, mean in (
        (Removal('mean_embedding'), table.mean(0)),
        (
            Removal('mean_embedding', pool=pool),
            torch.stack([table[i] for i in ids]).mean(0),
        ),
        (Removal('mean_embedding', pool=torch.tensor(ids)), table[ids].mean(0)),
    ):

        def swapped(i):
            return torch.where(_without(i, x.shape[1])[:, None], x, mean)

        naive = (
            _loo(
                model,
                enc,
                lambda i: model(
                    inputs_embeds=swapped(i),
                    attention_mask=enc['attention_mask'],
                ).logits[0],
            )
            if not hasattr(model, 'score')
            else None
        )
        if (
            naive is None
            # without ids this decoder cannot find its last token: read the row
            # itself
        ):
            with torch.no_grad():

                def read(e):
                    return model.score(
                        model.model(inputs_embeds=e).last_hidden_state
                    )[0, -1]

                c = int(read(x).argmax())
                naive = torch.stack(
                    [
                        read(x)[c] - read(swapped(i))[c]
                        for i in range(x.shape[1])
                    ]
                )
        assert torch.allclose(
            leave_one_out(
                model, enc, removal=removal, fill=fill_id(tokenizer, removal)
            )[0],
            naive,
            atol=1e-4,
        )


def test_resampling(model, tokenizer):
    enc = encode(model, tokenizer, TEXTS[1] + ' Or not.')
    n = enc['input_ids'].shape[1]
    a, b = tokenizer.convert_tokens_to_ids(['good', 'bad'])

    def loo(pool, n_draws, seed=0):
        return leave_one_out(
            model,
            enc,
            removal=(
                r := Removal('resample', pool=pool, n_draws=n_draws, seed=seed)
            ),
            fill=fill_id(tokenizer, r),
        )[0]

    def put(t):
        return _loo(
            model,
            enc,
            lambda i: model(
                input_ids=torch.where(_without(i, n), enc['input_ids'], t)
            ).logits[0],
        )

    one = put(a)
    other = put(b)
    assert torch.allclose(
        loo([a], 2), one, atol=1e-4
    )  # one token in the pool: no chance is left
    mixed = loo(['good bad'], 32)
    share = (mixed - other) / (
        one - other
    )  # a place's share of 'good' is a multiple of 1/32
    assert (
        torch.allclose(share * 32, (share * 32).round(), atol=0.02)
        and 0.1 < float(share.min())
        and float(share.max()) < 0.9
    )
    often = (loo([a] * 9 + [b], 32) - other) / (one - other)
    assert float(often.mean()) > 0.8  # as often as it stands there
    assert torch.equal(loo([a, b], 4), loo([a, b], 4)) and not torch.allclose(
        loo([a, b], 3), loo([a, b], 3, seed=1), atol=1e-4
    )


def test_draws_do_not_depend_on_what_else_is_computed(tokenizer):
    model = random_bert()
    enc = encode(model, tokenizer, TEXTS[0])
    n = enc['input_ids'].shape[1]
    keep = ~torch.eye(n, dtype=torch.bool)
    r = Removal('resample', pool=list(range(2000, 3000)), n_draws=3)

    def f(k, **kw):
        return subset_logits(model, enc, k, r, fill_id(tokenizer, r), **kw)

    assert torch.allclose(
        f(keep)[3:5], f(keep[3:5]), atol=1e-5
    ) and torch.allclose(f(keep, token_budget=1), f(keep), atol=1e-5)
    assert torch.allclose(
        f(torch.ones(1, n, dtype=torch.bool))[0],
        model(**enc).logits[0],
        atol=1e-5,
    )  # nothing removed, nothing drawn


@pytest.mark.parametrize(
    'removal',
    [
        (
            r
            if r != 'resample'
            else Removal('resample', pool=['it was long', 'good'], n_draws=2)
        )
        for r in REMOVALS
    ],
    ids=list(REMOVALS),
)
def test_every_removal_in_explain_audit_and_curves(demo, removal):
    model, tok = demo
    texts = TEXTS[:2]
    name = getattr(removal, 'name', removal)
    a = explain(model, tok, texts[0], 'loo', removal=removal)[0]
    assert a.info['removal'] == name and a.scores.abs().max() > 0
    sentence = explain(
        model, tok, texts[0], 'loo', removal=removal, units='sentence'
    )[0]
    assert len(sentence) == 3 and abs(float(sentence.scores[1])) > 0
    table = audit(
        model,
        tok,
        texts,
        methods=['loo', 'cp_lrp'],
        removal=removal,
        progress=False,
    )
    assert (
        abs(table.loc['loo', 'loo_r'] - 1) < 1e-6
        and table.loc['loo', 'delta'] >= 0
    )
    enc = encode(model, tok, texts[0])
    units = removal_units(a.is_special)
    morf, lerf = perturbation_curves(
        model,
        enc,
        {'loo': a.scores},
        units,
        a.target,
        removal,
        fill_id(tok, removal),
    )['loo']
    assert (
        abs(float(morf[0]) - a.logit) < 1e-4
        and abs(
            float(morf[1]) - (a.logit - float(a.scores[~a.is_special].max()))
        )
        < 1e-3
        and torch.allclose(morf[-1], lerf[-1], atol=1e-4)
    )
    if name == 'delete':
        assert (
            abs(
                float(morf[3])
                - float(
                    model(
                        input_ids=enc['input_ids'][
                            :, removal_path(a.scores, units, True)[3]
                        ]
                    ).logits[0, a.target]
                )
            )
            < 1e-4
        )


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda m, t: Removal('burn'), "'burn'"),
        (lambda m, t: Removal('resample'), 'needs a pool'),
        (lambda m, t: Removal('delete', pool=['x']), 'takes no pool'),
        (lambda m, t: Removal('resample', pool=['x'], n_draws=0), 'at least 1'),
        (
            lambda m, t: explain(m, t, 'fine', 'loo', removal='resample'),
            'needs a pool',
        ),
        (
            lambda m, t: audit(
                m, t, ['fine'], removal='resample', progress=False
            ),
            'needs a pool',
        ),
        (
            lambda m, t: explain(
                m,
                t,
                'fine',
                'loo',
                removal=Removal('resample', pool='one text'),
            ),
            'one str',
        ),
        (
            lambda m, t: explain(
                m, t, 'fine', 'loo', removal=Removal('resample', pool=[])
            ),
            'at least one token',
        ),
        (
            lambda m, t: explain(
                m, t, 'fine', 'loo', removal=Removal('resample', pool=[10**6])
            ),
            'the model has 30522 tokens',
        ),
        (
            lambda m, t: explain(
                m,
                t,
                'fine',
                'loo',
                removal=Removal('mean_embedding', pool=[0.5]),
            ),
            'whole numbers',
        ),
        (
            lambda m, t: explain(
                m, t, 'fine', 'loo', removal=Removal('resample', pool=['a', 2])
            ),
            'list of texts',
        ),
        (
            lambda m, t: leave_one_out(
                m, encode(m, t, 'fine'), removal='mask_token'
            ),
            'pass fill',
        ),
        (
            lambda m, t: subset_logits(
                m,
                encode(m, t, 'fine'),
                torch.zeros(1, 3, dtype=torch.bool),
                'delete',
            ),
            'nothing is left',
        ),
    ],
)
def test_what_cannot_be_says_so(demo, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(*demo)


def test_images_and_places_say_so(tokenizer):
    vit, _ = load_demo('mnist')
    image = torch.zeros(1, 28, 28)
    for r in ('delete', 'mean_embedding', Removal('resample', pool=[1])):
        with pytest.raises(ValueError, match='this is an image'):
            leave_one_out(
                vit,
                dict(pixel_values=image[None]),
                removal=r,
                fill=None if isinstance(r, str) else torch.tensor([1]),
            )
    lm, tok = load_demo('reviews')
    enc = encode(lm, tok, 'this film is a quiet')
    with pytest.raises(ValueError, match='moves the tokens'):
        leave_one_out(lm, enc, Target(5, position=2), removal='delete')
    whole = lm(**enc).logits[0, -1]
    loo, _, c = leave_one_out(lm, enc, removal='delete')
    n = len(loo)
    assert (
        abs(
            float(loo[1])
            - float(
                whole[c]
                - lm(input_ids=enc['input_ids'][:, _without(1, n)]).logits[
                    0, -1, c
                ]
            )
        )
        < 1e-4
    )


def test_agreement_against_scipy():
    g = torch.Generator().manual_seed(0)
    special = torch.zeros(14, dtype=torch.bool)
    special[[0, -1]] = True
    # ties in b
    a = torch.randn(14, generator=g)
    b = (2 * torch.randn(14, generator=g)).round()
    x = a[1:-1].numpy()
    y = b[1:-1].numpy()
    for how, f in (
        ('pearson', stats.pearsonr),
        ('spearman', stats.spearmanr),
        ('kendall', stats.kendalltau),
    ):
        assert (
            abs(agreement(a, b, special, correlation=how) - f(x, y)[0]) < 1e-6
            and abs(
                agreement(a, b, special, specials=True, correlation=how)
                - f(a, b)[0]
            )
            < 1e-6
        )
        assert (
            abs(
                agreement(a, b, special, normalize_a='sum', correlation=how)
                - f(x / x.sum(), y)[0]
            )
            < 1e-6
        )
    assert (
        set(CORRELATIONS) == {'pearson', 'spearman', 'kendall'}
        and spearman(torch.ones(4), torch.randn(4)).isnan()
        and kendall(torch.randn(4), torch.ones(4)).isnan()
    )
    assert torch.allclose(
        kendall(a.view(2, 7), b.view(2, 7)),
        torch.tensor(
            [
                stats.kendalltau(a[:7], b[:7])[0],
                stats.kendalltau(a[7:], b[7:])[0],
            ],
            dtype=torch.double,
        ),
    )
    with pytest.raises(ValueError, match="'cosine'"):
        agreement(a, b, special, correlation='cosine')


def test_verdicts_follow_the_rule():
    rng = np.random.default_rng(0)
    names = [
        'attn_lrp',
        'cp_lrp',
        'bypass 4,5,6',
        'bypass 1,2,3',
        'ig',
        'grad_x_input',
        'rollout',
    ]
    shift = {
        'default': 0.2,
        'Kendall': -0.2,
        'Spearman': 0.0,
    }  # CP-LRP above, below, no different

    def row(i):
        noise = 0.3 * rng.standard_normal()
        return dict(
            i=i,
            r={
                c: {m: s + noise if m == 'cp_lrp' else 0.0 for m in names}
                for c, s in shift.items()
            },
            **(
                {'curves': {'default': {m: [1.0, 0.0] for m in names}}}
                if i < 30
                else {}
            ),
        )

    results = dict(
        config=dict(model=dict(layers=6)), rows=[row(i) for i in range(60)]
    )
    results['rows'][0]['r']['default']['cp_lrp'] = None
    table = conclusions_table(results)
    first = next(iter(CONCLUSIONS))
    assert (
        table.loc[['default', 'Kendall', 'Spearman'], first].tolist()
        == ['holds', 'reversed', 'undecided']
        and (table.drop(['default', 'Kendall', 'Spearman'])[first] == '').all()
    )
    assert (
        protocol_difference(results, 'default', 'r', 'cp_lrp', 'attn_lrp')['n']
        == 59
        and len(protocol_values(results, 'default', 'cp_lrp', 'delta')) == 30
    )
    assert (
        surviving(table).loc[first, 'outcome'] == 'depends on the choice'
        and 'Kendall (reversed)' in surviving(table).loc[first, 'differs']
        and all(set(DEFAULT) >= set(c) for c in PROTOCOL.values())
    )
