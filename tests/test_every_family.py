"A dozen families are as right as their stored rows, and the checks see what is wrong."

import every_family
import pytest
import torch
import transformers
from every_family import CHECKS, OUTCOMES, RESULTS, WIDEST, build, floats, in_float64
from every_family import inputs_for, relevance, row_of, tasks_of

import lrp_loo
from lrp_loo import attn_lrp, cp_lrp
from lrp_loo.records.results import read_results

LIVE = (  # family, what it has
    'bert',  # one list of layers
    # a softmax of four dimensions that weighs streams, not tokens
    'deepseek_v4',
    'xlm',  # attentions and feed-forwards in lists of their own
    'deberta',  # attention that depends on relative positions
    'convbert',  # a convolution beside attention
    'fnet',  # a Fourier transform that knows no mask
    'longformer',  # windows written out, to which a text is padded
    'gpt_neo',  # every second layer sees a window
    'bloom',  # positions as slopes, gelu as a function of its own
    'mistral',  # a sliding window
    'mixtral',  # a router chooses experts
    'openai-gpt',  # a layer returns a list
    'mamba',  # a state, no attention
    'xlnet',  # texts on the second axis
    'cpmant',  # a prompt before the text
    'ibert',  # a table of embeddings that is no torch.nn.Embedding
    'hrm_text',  # cycles that keep no gradient, and norms at their ends
    'marian',  # an encoder and its decoder
    'vit',  # an image
)


# of two parts: texts that are padded before they are read, embeddings with a scale,
# images; family → the task
PARTS = dict(bert='two texts', llava='image in text', siglip='image beside text')
PARTS |= dict(clip='image beside text', siglip2='image beside text', t5='source')
PARTS |= dict(bart='class', ibert='two texts')


@pytest.fixture(scope='module')
def stored():
    "Stored outcomes of each family and task; {} for another version of transformers."
    table = read_results(RESULTS / 'every-family.json')
    if table['versions']['transformers'] != transformers.__version__:
        return {}
    rows = [r for r in table['rows'] if r['built'] and r['setting'] == WIDEST]
    return {(r['family'], r['task']): r['checks'] for r in rows}


def worse_than(stored, checks):
    "Why checks are worse than stored ones; without these, than a refusal."
    worst = {
        check: stored[check]['outcome'] if stored else 'refused' for check in checks
    }
    rank = OUTCOMES.index
    bad = [c for c, o in checks.items() if rank(o['outcome']) > rank(worst[c])]
    return {check: checks[check]['why'] for check in bad}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('family', [*LIVE, *(f'{f} of parts' for f in PARTS)])
def test_a_family_is_as_right_as_its_stored_row(family, stored):
    family, *of_parts = family.split()
    task = PARTS[family] if of_parts else tasks_of(family)[0]
    row = row_of(family, task, WIDEST)
    assert row['built'], row.get('why')
    # an empty row would hold nothing wrong
    assert list(row['checks']) == list(CHECKS)
    assert not worse_than(stored[family, task] if stored else {}, row['checks'])


# Longformer and the last three change a layer's output in place
@pytest.mark.parametrize('family', [*LIVE[:12], 'falcon', 'nystromformer', 'funnel'])
@pytest.mark.parametrize('make', [attn_lrp, cp_lrp])
@pytest.mark.filterwarnings('ignore:no rule for')
def test_a_small_eps_is_near_its_limit(family, make):
    task = tasks_of(family)[0]
    model = build(family, task, WIDEST)
    enc = inputs_for(model, task)[0]
    model = in_float64(model, task, enc) or model
    enc = floats(enc, next(model.parameters()).dtype)
    limit, R = (relevance(model, task, enc, make(eps=e))[0] for e in (0.0, 1e-8))
    assert float((R - limit).abs().max() / limit.abs().max()) < 1e-3


@pytest.fixture(scope='module')
def bert():
    return build('bert', 'class', WIDEST)


def off_by_a_percent(own, *args):
    loo, *rest = own(*args)
    return loo * 1.01, *rest


def flipped_in_a_batch(own, model, tokenizer, encs, *args):
    out = own(model, tokenizer, encs, *args)
    if len(encs) > 1:
        out[1].scores = out[1].scores.flip(0)
    return out


@pytest.mark.parametrize(
    'check, name, tampered, outcome',
    [
        ('LOO', 'leave_one_out', off_by_a_percent, 'wrong'),
        # another library's error, and our own
        ('LOO', 'leave_one_out', lambda *_: torch.zeros(2) @ torch.zeros(3), 'wrong'),
        (
            'LOO',
            'leave_one_out',
            lambda own, model, enc, target: lrp_loo.leave_one_out(model, {}, target),
            'refused',
        ),
        # a softmax that keeps its gradient
        ('CP softmax', 'cp_lrp', lambda own: lrp_loo.attn_lrp(), 'wrong'),
        ('batch attn_lrp', 'explain_batch', flipped_in_a_batch, 'wrong'),
    ],
)
def test_a_check_sees_what_is_wrong(bert, monkeypatch, check, name, tampered, outcome):
    def found():
        return CHECKS[check](bert, 'class', inputs_for(bert, 'class'))['outcome']

    own = getattr(every_family, name)
    assert found() == 'right'
    monkeypatch.setattr(every_family, name, lambda *args: tampered(own, *args))
    assert found() == outcome
