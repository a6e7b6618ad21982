"Weights of layers: fitted on training texts of a part, whatever its prompts are."

import pytest

import lrp_lab.weighed as weighed
from lrp_lab.parts import SENTENCES, part_examples
from lrp_lab.weighed import UNWEIGHED, fitted_layers, weighed_experiment
from lrp_loo.paper.common import PROMPTS, Prompt
from lrp_loo.trust.weights import CARRIERS

# a chat in a small model's own words
CHAT = Prompt([dict(role='user', content='{text} It was')], (' bad', ' good'))
WRITTEN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PART = SENTENCES['smollm2']._replace(
    demo='reviews', prompts={'plain': PROMPTS['plain'], 'chat': CHAT}
)
FEW, MORE = 5, 6


@pytest.fixture
def small(shallow_parts, monkeypatch):
    "A language model of two layers that is asked in a chat, among others."

    def drawn(*args):
        found = load(*args)
        found[1].chat_template = WRITTEN
        return found

    load = weighed.part_examples.__globals__['load_demo']
    monkeypatch.setattr('lrp_lab.parts.load_demo', drawn)
    monkeypatch.setitem(weighed.WEIGHED, 'weighed-smollm2', PART)
    monkeypatch.setattr(weighed, 'FEW', FEW)
    monkeypatch.setattr(weighed, 'MORE', MORE)


def test_weights_are_fitted_where_a_prompt_is_a_chat(small, monkeypatch):
    drawn = []

    def counted(part, data, n, *rest):
        drawn.append(n)
        return part_examples(part, data, n, *rest)

    monkeypatch.setattr(weighed, 'part_examples', counted)
    layers = fitted_layers('weighed-smollm2', 'embedded')
    assert drawn == [MORE]  # the few are among them
    sizes = {name: fit.n_texts for name, fit in layers.items()}
    assert sizes == {'weighed': MORE, f'weighed, {FEW} texts': FEW}
    assert all(fit.carrier in CARRIERS for fit in layers.values())


def test_a_row_says_its_template_and_has_every_method(small, tmp_path):
    path = tmp_path / 'weighed-smollm2.json'
    made = weighed_experiment(path, 'weighed-smollm2', 'embedded', limit=2)
    assert [row['template'] for row in made.rows] == ['plain', 'chat']
    names = {*UNWEIGHED, 'weighed', f'weighed, {FEW} texts'}
    for row in made.rows:
        assert set(row['methods']) == {*names, 'loo'}
