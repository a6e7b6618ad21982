"A removal of one's own goes wherever a name goes; a name stands for a small class."

import pickle

import pytest
import torch

from lrp_loo import explain, load_demo
from lrp_loo.loo import leave_one_out
from lrp_loo.loo.engines import read_subsets
from lrp_loo.loo.removals import REMOVALS, ModelInputs, Removal, Resample, as_removal
from lrp_loo.loo.removals import fill_id
from lrp_loo.models.encoding import encode
from lrp_loo.evaluate.faithfulness import perturbation_curves, removal_units

SENTENCE = "a slow start , but the last act is a quiet triumph"


class Neighbour(Removal):
    "The token before it in its place."

    name = 'neighbour'

    def inputs(self, model, enc, keep):
        ids = enc['input_ids']
        mixed = torch.where(keep, ids, ids.roll(1))
        mask = enc['attention_mask'].expand(len(keep), -1)
        return dict(input_ids=mixed, attention_mask=mask)


class Dimmed(Removal):
    "A share of its embedding stays; two shares, averaged."

    name = 'dimmed'

    def for_text(self, text, fill):
        def given(share, keep):
            kept = keep[..., None].to(text.embeddings)
            scaled = text.embeddings * (kept + share * (1 - kept))
            return ModelInputs(text.rows(len(keep)), embeddings=scaled)

        return [lambda k: given(0.25, k), lambda k: given(0.75, k)]


@pytest.fixture(scope='module')
def demo_text():
    model, tokenizer = load_demo('sst2')
    return model, tokenizer, encode(model, tokenizer, SENTENCE)


@pytest.fixture(scope='module')
def by_hand(demo_text):
    "LOO under `Neighbour`, one pass at a time, and the whole text's logits."
    model, _, enc = demo_text
    with torch.no_grad():
        logits = model(**enc).logits[0]
        c = int(logits.argmax())
        loo = []
        for i in range(enc['input_ids'].shape[1]):
            ids = enc['input_ids'].clone()
            ids[0, i] = enc['input_ids'][0, i - 1]
            loo.append(logits[c] - model(input_ids=ids).logits[0, c])
    return torch.stack(loo), logits, c


def test_a_removal_of_ones_own_in_exact_loo_and_along_curves(demo_text, by_hand):
    model, tokenizer, enc = demo_text
    removal = Neighbour()
    loo, logits, c = by_hand
    found, row, chosen = leave_one_out(model, enc, removal=removal)
    assert torch.allclose(found, loo, atol=1e-4)
    assert torch.allclose(row, logits, atol=1e-4)
    assert chosen == c
    without = ~torch.eye(len(loo), dtype=torch.bool)
    (found,) = read_subsets(model, [enc], [without], [c], removal)
    assert torch.allclose(logits[c] - found.values, loo, atol=1e-4)
    (a,) = explain(model, tokenizer, SENTENCE, 'loo', removal=removal)
    assert torch.allclose(a.scores, loo, atol=1e-4)
    assert a.info['removal'] == 'neighbour'
    special = torch.zeros(len(loo), dtype=torch.bool)
    special[[0, -1]] = True
    given = [{'loo': loo}], [removal_units(special)], [c]
    (curves,) = perturbation_curves(model, [enc], *given, removal=removal)
    morf, lerf = curves['loo']
    drops = [morf[0] - morf[1], lerf[0] - lerf[1]]
    content = loo[1:-1]
    near = pytest.approx([float(content.max()), float(content.min())], abs=1e-4)
    assert [float(d) for d in drops] == near
    assert float(morf[0]) == pytest.approx(float(logits[c]), abs=1e-4)


def test_draws_of_a_removal_of_ones_own_are_averaged(demo_text):
    model, _, enc = demo_text
    x = model.get_input_embeddings()(enc['input_ids']).detach()
    keep = torch.ones(1, x.shape[1], dtype=torch.bool)
    keep[0, 5] = False
    expected = 0
    for share in (0.25, 0.75):
        dimmed = x.clone()
        dimmed[0, 5] *= share
        with torch.no_grad():
            expected = expected + model(inputs_embeds=dimmed).logits / 2
    (found,) = read_subsets(model, [enc], [keep], [1], Dimmed())
    assert torch.allclose(found.values, expected[:, 1], atol=1e-4)


def test_padding_is_no_part_of_the_text_for_a_removal_of_ones_own(demo_text):
    model, _, enc = demo_text
    padded = {k: torch.nn.functional.pad(v, (3, 0), value=0) for k, v in enc.items()}
    n = enc['input_ids'].shape[1]
    asked = []

    class Watched(Neighbour):
        def inputs(self, model, enc, keep):
            asked.append(keep)
            return super().inputs(model, enc, keep)

    loo, _, _ = leave_one_out(model, padded, removal=Watched())
    assert len(loo) == n + 3
    assert all(keep[:, :3].all() for keep in asked)
    assert (loo[:3] == 0).all()


def test_what_is_no_removal_is_refused(demo_text):
    class Wrong(Neighbour):
        def inputs(self, model, enc, keep):
            return keep

    class NoSubclass:
        name, inputs = 'neighbour', Neighbour.inputs

    model, _, enc = demo_text
    with pytest.raises(TypeError, match="'neighbour' must return the model's"):
        leave_one_out(model, enc, removal=Wrong())
    for wrong in (['delete'], Neighbour, NoSubclass()):
        with pytest.raises(ValueError, match='is not known; .* a subclass of Removal'):
            leave_one_out(model, enc, removal=wrong)


def test_a_name_stands_for_its_class_and_all_are_pickled(demo_text):
    for name in REMOVALS:
        removal = Removal(name, **dict(pool=['a film']) if name == 'resample' else {})
        assert type(removal) is REMOVALS[name]
        assert removal.name == name
        assert as_removal(removal) is removal
        again = pickle.loads(pickle.dumps(removal))
        assert type(again) is type(removal)
        assert vars(again) == vars(removal)
    assert pickle.loads(pickle.dumps(Neighbour())).name == 'neighbour'
    assert fill_id(demo_text[1], Neighbour()) is None
    drawn = Resample(pool=['a film'], n_draws=3, seed=1)
    assert drawn.info() == dict(removal='resample', n_draws=3, seed=1)
