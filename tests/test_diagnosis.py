"""`diagnose`: the words that carry a classifier's answers, and the floor of reasons.

The models are bags of words with weights set by hand, so that every effect is known.
"""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

import lrp_loo.reports.diagnosis as module
from lrp_loo import diagnose, explain, load, load_demo
from lrp_loo.cli import main
from lrp_loo.core.stats import count_p, holm
from lrp_loo.records.results import Results
from lrp_loo.records.display import NO_REASON

FILLER = 'a the film plot cast scene music is was of in it on one two three'.split()
VOCABULARY = ['[UNK]', '[CLS]', *FILLER, 'tuesday', 'good', 'bad', 'review', ':', '.']
VOCABULARY += ['<b>', 'fine']
WORDS = {word: k for k, word in enumerate(VOCABULARY)}


class BagForSequenceClassification(torch.nn.Module):
    "Logits are a bias and the sum of the words' weights; a pair of words may be one."

    def __init__(self, weights, bias=(0.0, 0.0), either=(), n_classes=2):
        super().__init__()
        names = ['negative', 'positive', 'mixed'][:n_classes]
        self.config = SimpleNamespace(id2label=dict(enumerate(names)))
        self.embeddings = torch.nn.Embedding(len(WORDS), n_classes)
        self.embeddings.weight.data.zero_()
        for word, of_classes in weights.items():
            self.embeddings.weight.data[WORDS[word]] = torch.tensor(of_classes)
        self.bias = torch.nn.Parameter(torch.tensor(bias))
        self.either = either  # words, any of which adds 4 to the second logit once
        self.eval()

    def get_input_embeddings(self):
        return self.embeddings

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **_):
        if inputs_embeds is None:
            inputs_embeds = self.embeddings(input_ids)
        mask = torch.ones(inputs_embeds.shape[:2])
        mask = mask if attention_mask is None else attention_mask.float()
        logits = self.bias + (inputs_embeds * mask[..., None]).sum(1)
        if self.either:
            is_there = torch.isin(
                input_ids, torch.tensor([WORDS[w] for w in self.either])
            )
            any_there = (is_there * mask).amax(1, keepdim=True)
            logits = logits + 4.0 * any_there * torch.tensor([0.0, 1.0])
        return SequenceClassifierOutput(logits=logits)


@pytest.fixture(scope='module')
def tokenizer():
    tok = Tokenizer(models.WordLevel(WORDS, unk_token='[UNK]'))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single = dict(single='[CLS] $A', special_tokens=[('[CLS]', WORDS['[CLS]'])])
    tok.post_processor = processors.TemplateProcessing(**single)
    names = dict(unk_token='[UNK]', cls_token='[CLS]', pad_token='[UNK]')
    return PreTrainedTokenizerFast(tokenizer_object=tok, **names, model_max_length=64)


def sentence(seed):
    return ' '.join(np.random.default_rng(seed).choice(FILLER, 6, replace=False))


def leaked(n=60, n_leaks=24):
    "Return texts, the first half positive; of these most contain *tuesday*."
    texts = [sentence(i) for i in range(n)]
    labels = ['positive'] * (n // 2) + ['negative'] * (n // 2)
    for i in range(n // 2):
        texts[i] += ' tuesday' if i < n_leaks else ' good'
    return texts, labels


LEAK = dict(tuesday=(0.0, 3.0), good=(0.0, 3.0))
NO = (1.0, 0.0)  # a bias for the first class


def diagnosed(model, tokenizer, texts, labels, **options):
    return diagnose(model, tokenizer, texts, labels, progress=False, **options)


def test_a_leak_is_named_first_in_one_sentence(tokenizer):
    model = BagForSequenceClassification(LEAK, NO)
    d = diagnosed(model, tokenizer, *leaked(), expected=['good', 'music', 'fine'])
    assert d.shortcuts == ['tuesday']
    assert d.sentence == (
        '*tuesday* carries 24 of 30 positive answers: without it 24 of them turn negative.'
    )
    row = d.words.iloc[0]
    assert (row.texts, row.carries, row.turned) == (24, 24, 24)
    assert row['mean'] == row.low == row.high == 3.0
    assert (row['in positive'], row['in negative']) == (24, 0)
    # one of 7 words turns each answer, and there are `len(d.words)` words
    assert row.p == pytest.approx(len(d.words) * 7.0**-24)
    # *good* turns 6 of 6, and is expected; *music* matters to no answer
    assert d.ignored == ['music', 'fine']
    assert len(d.errors) == 0
    negative = d.answers[d.answers.predicted == 'negative']
    assert d.carried_by_none.row.tolist() == negative.row.tolist()
    assert set(negative['words for']) == {NO_REASON}


def test_without_a_shortcut_none_is_named(tokenizer):
    texts = [sentence(i) + (' good' if i % 9 == 0 else '') for i in range(60)]
    model = BagForSequenceClassification(dict(good=(0.0, 0.5)), NO)
    d = diagnosed(model, tokenizer, texts, [0] * 59 + [1])
    assert d.shortcuts == []
    assert d.sentence.startswith('No word is a shortcut')
    assert '1 of 60 answers are wrong' in d.sentence
    assert d.errors[['row', 'label', 'predicted']].to_numpy().tolist() == [
        [59, 'positive', 'negative']
    ]


def test_a_frequent_word_that_turns_no_more_than_others_is_no_shortcut(tokenizer):
    weights = {word: (0.0, 0.4) for word in FILLER}
    texts = [sentence(i) for i in range(40)]
    d = diagnosed(
        BagForSequenceClassification(weights, (2.2, 0.0)), tokenizer, texts, [1] * 40
    )
    assert d.words.turned.max() >= 10  # every word of every text turns its answer
    assert d.shortcuts == []


@torch.no_grad()
def naive(model, tokenizer, text, word):
    "Return the lead of the answer, and the lead without every occurrence of a word."
    enc = tokenizer(text, return_tensors='pt')
    logits = model(**enc).logits[0]
    answer = int(logits.argmax())
    enc['attention_mask'] = enc['attention_mask'] * (enc['input_ids'] != WORDS[word])
    without = model(**enc).logits[0]
    others = [k for k in range(len(logits)) if k != answer]
    return tuple(float(x[answer] - x[others].max()) for x in (logits, without))


@pytest.mark.parametrize('n_classes', [2, 3])
def test_every_occurrence_goes_at_once_and_any_class_may_win(tokenizer, n_classes):
    torch.manual_seed(1)
    weights = {w: torch.randn(n_classes).tolist() for w in VOCABULARY[2:-2]}
    options = dict(bias=(0.0,) * n_classes, n_classes=n_classes)
    model = BagForSequenceClassification(weights, **options)
    texts = [f'{word} a {word} the {word}' for word in VOCABULARY[4:20]]
    d = diagnosed(model, tokenizer, texts, [0] * 16, min_count=1)
    assert {'positive', 'negative'} <= set(d.answers.predicted)
    turned = 0
    for row in d.effects[~d.effects.word.str.contains(' ')].itertuples():
        lead, without = naive(model, tokenizer, texts[row.text], row.word)
        assert row.score == pytest.approx(lead - without, abs=1e-5)
        assert row.turned == (without < 0)
        turned += row.turned
    assert 0 < turned < len(d.effects)
    counted = d.words[~d.words.word.str.contains(' ')].turned.sum()
    assert counted == turned


def test_words_are_removed_as_asked_and_the_rows_are_kept_apart(tokenizer, tmp_path):
    texts, labels = leaked(20, 10)
    model = BagForSequenceClassification(LEAK, NO)
    calls = [
        diagnosed(model, tokenizer, texts, labels, removal=how, results=file)
        for file in [Results(tmp_path / 'rows.json', {})]
        for how in (None, 'delete')
    ]
    pd.testing.assert_frame_equal(calls[0].words, calls[1].words)
    stored = json.loads((tmp_path / 'rows.json').read_text())
    assert len(stored['rows']) + len(stored.get('others', [])) == 2 * 20


def test_a_prefix_of_two_words_is_one_shortcut(tokenizer):
    texts = [sentence(i) for i in range(40)]
    texts = [f'review : {text}' if i < 20 else text for i, text in enumerate(texts)]
    model = BagForSequenceClassification({}, NO, either=('review', ':'))
    d = diagnosed(model, tokenizer, texts, [1] * 20 + [0] * 20)
    alone = d.words[d.words.word.isin(['review', ':'])]
    assert len(alone) == 2 and alone.turned.sum() == 0
    assert d.shortcuts == ['review :']
    assert set(d.answers.carried_by[:20]) == {'review :'}


def test_copies_count_once_and_keep_their_rows(tokenizer):
    texts, labels = leaked(20, 10)
    model = BagForSequenceClassification(LEAK, NO)
    labels[0] = 'negative'
    once = diagnosed(model, tokenizer, texts, labels)
    twice = diagnosed(model, tokenizer, texts * 2, labels * 2)
    pd.testing.assert_frame_equal(once.words, twice.words)
    assert once.sentence == twice.sentence
    assert (once.errors.row.tolist(), twice.errors.row.tolist()) == ([0], [0, 20])


@pytest.mark.parametrize(
    ('labels', 'error', 'message'),
    [
        (['positive'], ValueError, 'row 1 has no text, or no label'),
        (['positive'] * 3, ValueError, 'labels has 3 entries for 2 texts: row 2'),
        (['positive', None], ValueError, 'row 1 has the label None'),
        (['positive', np.nan], ValueError, 'row 1 has the label nan'),
        (['fine', 1], ValueError, "row 0 has the label 'fine', which is no class"),
        ([0, 2], ValueError, 'one of negative, positive, or its index'),
        ([0, [1]], ValueError, r'row 1 has the label \[1\]'),
    ],
)
def test_labels_are_refused_by_row(tokenizer, labels, error, message):
    model = BagForSequenceClassification(LEAK)
    with pytest.raises(error, match=message):
        diagnosed(model, tokenizer, ['a film', 'the plot'], labels)


@pytest.mark.parametrize('labels', [['0', 1.0], np.array([0, 1]), ['negative', '1']])
def test_labels_are_names_or_indices(tokenizer, labels):
    model = BagForSequenceClassification(LEAK)
    d = diagnosed(model, tokenizer, ['a film', 'the plot'], labels)
    assert d.answers.label.tolist() == ['negative', 'positive']


def test_a_model_with_one_number_is_refused(tokenizer):
    model = BagForSequenceClassification({}, (0.0,), n_classes=1)
    with pytest.raises(TypeError, match='takes a classifier with two or more'):
        diagnosed(model, tokenizer, ['a film'], [0])


def test_finished_rows_are_not_computed_again(tokenizer, tmp_path, monkeypatch):
    texts, labels = leaked(20, 10)
    model = BagForSequenceClassification(LEAK, NO)
    whole = diagnosed(model, tokenizer, texts, labels)
    file, read = tmp_path / 'rows.json', module.read_subsets
    calls = []

    def interrupted(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(args[1]))
        return read(*args)

    monkeypatch.setattr(module, 'read_subsets', interrupted)
    with pytest.raises(KeyboardInterrupt, match='finished rows are in .*rows.json'):
        diagnosed(model, tokenizer, texts, labels, results=Results(file, {}))
    kept = json.loads(file.read_text())
    n_kept = len(kept['rows']) + len(kept.get('others', []))
    assert n_kept == sum(calls) == 16
    calls.clear()
    resumed = diagnosed(model, tokenizer, texts, labels, results=Results(file, {}))
    assert calls == [4]
    pd.testing.assert_frame_equal(resumed.effects, whole.effects)
    # another model, or another text, is computed
    calls.clear()
    model.bias.data += torch.tensor([1.0, 0.0])
    diagnosed(model, tokenizer, texts[:8], labels[:8], results=Results(file, {}))
    assert calls == [8]


def test_it_is_saved_and_read_back(tokenizer, tmp_path):
    texts, labels = leaked()
    texts[40] += ' <b>'
    model = BagForSequenceClassification(LEAK, NO)
    d = diagnosed(model, tokenizer, texts, labels, expected=['fine', 'music'])
    for name in ('page.html', 'd.json', 'd.csv'):
        d.save(tmp_path / name)
    again = load(tmp_path / 'd.json')
    assert (again.sentence, again.shortcuts) == (d.sentence, d.shortcuts)
    pd.testing.assert_frame_equal(again.answers, d.answers)
    page = (tmp_path / 'page.html').read_text()
    assert '<em>tuesday</em> carries 24 of 30 positive answers' in page
    assert '<em>fine</em> should matter and stands in no text' in page
    assert '<em>music</em> should matter and carries no answer' in page
    assert 'a diagnosis on 60 texts</title>' in page
    # of tuesday, of good, of answers that no word carries, of music
    assert page.count('class="map"') == 4 * 3
    assert '<b>' not in page
    assert len(pd.read_csv(tmp_path / 'd.csv')) == len(d.words)


def test_a_constant_in_the_logits_changes_no_reason(tokenizer):
    texts, _ = leaked(20, 10)
    model = BagForSequenceClassification(LEAK, NO)
    before = explain(model, tokenizer, texts, 'loo', units='word').reasons()
    model.bias.data += 100.0
    after = explain(model, tokenizer, texts, 'loo', units='word').reasons()
    assert before['words for'].tolist() == after['words for'].tolist()
    assert before['words for'].tolist() == ['tuesday'] * 10 + [NO_REASON] * 10


def test_a_word_below_the_floor_is_no_reason(tokenizer):
    model = BagForSequenceClassification(dict(good=(0.0, 0.05)), (0.0, 2.0))
    (a,) = explain(model, tokenizer, 'a good film', 'loo', units='word')
    assert a.least_reason == pytest.approx(0.05 * 2.05)
    assert a.top() == [] and a.largest.token == 'good'
    assert f'So {NO_REASON}.' in a._repr_html_()
    weights = dict(good=(0.0, 0.15))
    (b,) = explain(
        BagForSequenceClassification(weights, (0.0, 2.0)),
        tokenizer,
        'a good film',
        'loo',
    )
    assert [t.token for t in b.top()] == ['good']
    assert NO_REASON not in b._repr_html_()


def test_count_p_is_the_tail_of_independent_draws():
    draws = np.random.default_rng(0).random((100_000, 3)) < [0.1, 0.5, 0.9]
    for n in range(4):
        share = (draws.sum(1) >= n).mean()
        assert count_p(n, np.array([0.1, 0.5, 0.9])) == pytest.approx(share, abs=0.01)
    assert holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx(
        [0.03, 0.06, 0.06]
    )


def test_from_a_shell(tmp_path, capsys):
    file = tmp_path / 'r.csv'
    rows = ['review,class', '"A gripping, funny film.",positive']
    rows += ['"Slow, and never funny.",negative', '"Dull, but kind.",negative']
    file.write_text('\n'.join(rows), encoding='utf-8')
    words = ['diagnose', '--model', 'demo', '--name', 'reviews-sst2', '--data', file]
    words += ['--column', 'review', '--labels', 'class', '--min-count', 1]
    words += ['--out', tmp_path / 'page.html', '--results', tmp_path / 'rows.json']
    assert main(words) == 0
    out = capsys.readouterr().out
    assert '3 answers are wrong' in out or 'of 3 answers are wrong' in out
    assert (tmp_path / 'page.html').exists()
    assert len(json.loads((tmp_path / 'rows.json').read_text())['rows']) == 3
    assert main([*words[:-4], '--labels', 'missing']) == 1
    assert "has no column 'missing'" in capsys.readouterr().err


def test_a_shell_removes_as_python_does(tmp_path, capsys):
    texts, labels = ['A gripping, funny film.', 'Dull, never funny.'], [1, 0]
    file = tmp_path / 'r.csv'
    pd.DataFrame(dict(text=texts, label=labels)).to_csv(file, index=False)
    words = ['diagnose', '--name', 'reviews-sst2', '--data', file, '--labels', 'label']
    words += ['--min-count', 1, '--json', '--removal']
    found = {}
    for removal in ('attention_mask', 'delete'):
        assert main([*words, removal]) == 0
        found[removal] = json.loads(capsys.readouterr().out)['words']
        options = dict(removal=removal, min_count=1, progress=False)
        d = diagnose(*load_demo('reviews-sst2'), texts, labels, **options)
        means = [row['mean'] for row in found[removal]]
        assert means == pytest.approx(d.words['mean'].tolist(), abs=1e-5)
    assert found['attention_mask'] != found['delete']
