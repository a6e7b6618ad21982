"The grid: its cells one by one, what is refused, one file a removal."

import pytest
import torch

import lrp_lab.grid as grid
from lrp_lab.grid import (
    ASKED,
    GRID_MODELS,
    GRID_PARTS,
    GRID_REMOVALS,
    PAINTED,
    GridModel,
    cp_gains_table,
    file_of,
    grid_columns,
    grid_examples,
    grid_experiment,
    grid_means,
    grid_rows,
    loo_by,
    methods_of,
    refusals_table,
)
from lrp_loo.methods.table import METHODS
from lrp_loo.methods import explain_batch
from lrp_loo.paper.common import PROMPTS, RunOptions, read_parts
from lrp_loo.paper.ledger import ledger
from lrp_loo.core.stats import mean_se, paired_difference
from lrp_loo.evaluate.audit import faithfulness_rows
from lrp_loo.records.results import read_results

# a language model that is asked about each text, and is small
ASKED_MODEL = GridModel(
    'a language model',
    GRID_MODELS['smollm2'].part._replace(
        demo='reviews', prompts={k: PROMPTS[k] for k in ('plain', 'last')}
    ),
    GRID_MODELS['smollm2'].removals,
)
SMALL = {k: GRID_MODELS[k] for k in ('minilm', 'decoder', 'vit')} | {
    'smollm2': ASKED_MODEL
}


@pytest.fixture(scope='module')
def small(shallow_parts):
    "The grid without its large models, of two layers each."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, 'GRID_MODELS', SMALL)
        yield


def measure(folder):
    "Three examples of each small model."
    for name in SMALL:
        grid_experiment(folder, name, RunOptions('embedded', limit=3))


@pytest.fixture(scope='module')
def folder(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp('grid')
    measure(folder)
    return folder


@pytest.fixture(scope='module')
def found(folder):
    return read_parts({part: part for part in GRID_PARTS}, folder)


CELLS = [(name, r) for name, asked in SMALL.items() for r in asked.removals]


@pytest.mark.parametrize('name, removal', CELLS)
def test_a_cell_is_what_is_measured_by_itself(found, name, removal):
    drawn = grid_examples(name, RunOptions('embedded', limit=1))
    i, enc, _ = drawn.examples[0]
    rows = found[file_of(name, removal)]['rows']
    (row,) = (row for row in rows if row['i'] == i)
    (alone,) = faithfulness_rows(
        drawn.model,
        drawn.tokenizer,
        [enc],
        methods_of(name),
        target=drawn.target(i),
        removal=GRID_REMOVALS[removal],
        curves=[],
        content=[drawn.content(i)],
    )
    assert row['n_tokens'] == alone['n_tokens']
    assert row['logit'] == pytest.approx(alone['logit'], abs=1e-4)
    assert set(alone['methods']) <= set(row['methods'])
    for method, readings in alone['methods'].items():
        for over in ('r', 'r_all'):
            r = row['methods'][method][over]
            assert r == pytest.approx(readings[over], abs=1e-3)


def test_a_row_says_which_text_it_is_of_in_which_template(found):
    for removal in ASKED_MODEL.removals:
        rows = found[file_of('smollm2', removal)]['rows']
        said = [(row['text'], row['template']) for row in rows]
        assert said == [(0, 'plain'), (1, 'last'), (2, 'plain')]
    assert 'template' not in found[file_of('minilm', 'delete')]['rows'][0]


def test_references_agree_with_each_other_both_ways(found):
    there = found[file_of('decoder', 'delete')]['rows']
    back = found[file_of('decoder', 'attention_mask')]['rows']
    for a, b in zip(there, back, strict=True):
        r = a['methods'][loo_by('attention_mask')]['r']
        assert b['methods'][loo_by('delete')]['r'] == pytest.approx(r)


def test_a_map_is_computed_once_for_all_removals(small):
    drawn = grid_examples('minilm', RunOptions('embedded', limit=1))
    _, enc, _ = drawn.examples[0]
    calls = []

    def counted(model, tokenizer, encs, target):
        calls.append(len(encs))
        return METHODS['grad_x_input'](model, tokenizer, encs, target)

    rows = grid_rows(drawn.model, drawn.tokenizer, enc, {'m': (counted, {})}, ASKED)
    assert calls == [1]
    assert set(rows) == set(ASKED)


# ---- what is refused


@pytest.mark.parametrize('name', SMALL)
def test_every_removal_is_measured_or_refused_with_its_reason(found, name):
    asked = SMALL[name]
    columns = [c for c in grid_columns(found) if c.model == asked.label]
    assert {c.removal for c in columns} == {*ASKED, *asked.removals}
    for column in columns:
        assert (column.rows is None) == bool(column.why)
        assert (column.rows is None) == (column.removal not in asked.removals)


@pytest.mark.parametrize(
    'name, removal, why',
    [
        ('decoder', 'mask_token', 'no token for'),
        ('smollm2', 'mask_token', 'no token for'),
        ('vit', 'mask_token', 'this is an image'),
        ('vit', 'delete', 'this is an image'),
    ],
)
def test_a_refusal_says_why(found, name, removal, why):
    table = refusals_table(found).set_index(['model', 'removal'])
    assert len(table) == 4
    said = table.why[SMALL[name].label, removal]
    assert removal in said
    assert why in said
    cells = grid_means(found)[SMALL[name].label, removal.replace('_', ' ')]
    assert set(cells) == {'–'}


def test_what_a_model_could_be_asked_is_not_left_out(small, monkeypatch):
    less = SMALL['decoder']._replace(removals=('attention_mask',))
    monkeypatch.setitem(SMALL, 'decoder', less)
    with pytest.raises(ValueError, match='zero_embedding, delete'):
        grid_experiment('.', 'decoder', RunOptions('embedded', limit=1))


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="model='bert' is not in the grid"):
        grid_examples('bert', RunOptions())


# ---- patches of an image


@pytest.fixture(scope='module')
def digit(small):
    drawn = grid_examples('vit', RunOptions('embedded', limit=1))
    _, enc, _ = drawn.examples[0]
    return drawn.model, enc


def test_a_painted_patch_is_one_brightness(digit):
    model, enc = digit
    pixels = enc['pixel_values']
    keep = torch.ones(1, 49, dtype=torch.bool)
    keep[0, 8] = False  # second row, second column
    grey = PAINTED['grey_patch'].inputs(model, enc, keep)['pixel_values']
    assert (grey[0, 0, 4:8, 4:8] == 0).all()
    grey[0, 0, 4:8, 4:8] = pixels[0, 0, 4:8, 4:8]
    assert torch.equal(grey, pixels)


def test_an_empty_patch_is_blank_already(digit):
    model, enc = digit
    (loo,) = explain_batch(model, None, [enc], 'loo', removal=PAINTED['blank_patch'])
    patches = enc['pixel_values'].unfold(2, 4, 4).unfold(3, 4, 4)
    empty = patches.amax((-1, -2)).flatten() == -1
    assert 0 < int(empty.sum()) < 49
    assert loo.scores[empty].abs().max() < 1e-5
    assert loo.scores[~empty].abs().max() > 0.01


def test_an_images_mask_leaves_the_patch_out(digit):
    "Deletion, with every other patch in its place."
    model, enc = digit
    (loo,) = explain_batch(model, None, [enc], 'loo', removal='attention_mask')
    j = 24
    others = [k for k in range(50) if k != j + 1]  # the class token in front
    hook = model.vit.embeddings.register_forward_hook(
        lambda module, inputs, rows: rows[:, others]
    )
    with hook, torch.no_grad():
        without = model(**enc).logits[0, loo.target]
    assert loo.scores[j] == pytest.approx(float(loo.logit - without), abs=1e-4)


# ---- files


def test_a_lost_row_is_made_again_and_no_other(found, folder, small):
    path = folder / f"{file_of('minilm', 'delete')}.json"
    others = {p: p.read_bytes() for p in folder.glob('*.json') if p != path}
    whole = path.read_bytes()
    lines = whole.decode().splitlines(keepends=True)
    (first,) = (k for k, s in enumerate(lines) if s.startswith('  {"i": 0'))
    del lines[first]
    path.write_text(''.join(lines))
    assert len(read_results(path)['rows']) == 2
    measure(folder)
    assert path.read_bytes() == whole
    assert {p: p.read_bytes() for p in others} == others


def test_the_ledger_takes_the_files(folder):
    entries = [e for e in ledger([folder]) if e['claim'] == 'cp-above-attn']
    own = [e for e in entries if e['over'] == 'content']
    assert len(own) == len(CELLS)
    removals = {e['removal'] for e in own if e['model'] == 'vit-mnist'}
    assert removals == set(SMALL['vit'].removals)
    # of a language model also over the tokens of its templates
    of_prompts = [e for e in own if 'of two answers' in e['data']]
    assert {e['removal'] for e in of_prompts} == set(ASKED_MODEL.removals)
    over_all = [e for e in entries if e['over'] == 'all']
    assert [e['removal'] for e in over_all] == [e['removal'] for e in of_prompts]
    for e in (*of_prompts, *over_all):
        assert set(e['templates']) == {'plain', 'last'}


# ---- what is shown


def test_the_table_has_the_means(found):
    rows = found[file_of('minilm', 'delete')]['rows']
    r = [row['methods']['cp_lrp']['r'] for row in rows]
    mean, se, _ = mean_se(torch.tensor(r, dtype=torch.double).numpy())
    cells = grid_means(found)['MiniLM', 'delete']
    assert cells['CP-LRP'] == f'{mean:.2f} ± {se:.2f}'
    assert cells['n'] == '3'
    assert cells['LOO, delete'] == 'itself'


def test_the_gain_is_of_the_same_examples(found):
    gains = cp_gains_table(found)
    column = next(c for c in grid_columns(found) if c.model == 'our ViT')
    alone = paired_difference(column.of('cp_lrp'), column.of('attn_lrp'))
    assert gains.loc['our ViT', column.removal.replace('_', ' ')][
        'mean'
    ] == pytest.approx(alone['mean'])
