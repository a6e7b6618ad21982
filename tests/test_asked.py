"Every entry takes model, texts, target, device and length alike; a class by label or index."

import json
import tempfile
from functools import partial

import pytest
import torch
from conftest import OPINIONS, random_bert
from transformers import pipeline

import lrp_loo
from lrp_loo import Target, explain, explain_labels, load_demo, summarize_texts
from lrp_loo.cli import main

TEXTS = OPINIONS[:4]
QUIET = dict(progress=False)


def scores(maps):
    return [a.scores.tolist() for a in maps]


def page(model, tokenizer, texts, **options):
    "A page shows one text."
    text = texts if isinstance(texts, str) else texts[0]
    return lrp_loo.explain_page(model, tokenizer, text, ['cp_lrp'], **options)


def audit(*args, **options):
    return lrp_loo.audit(*args, ['cp_lrp'], **QUIET, **options).loo_r.tolist()


def sweep(*args, **options):
    table = lrp_loo.sweep(*args, tempfile.mkdtemp(), 'cp_lrp', **QUIET, **options)
    return table.r.tolist()


def calibrate(*args, **options):
    return repr(lrp_loo.calibrate(*args, 'removal', **QUIET, **options).texts)


# name → a function whose results can be compared
ENTRIES = dict(
    explain=lambda *args, **options: scores(explain(*args, **options)),
    audit=audit,
    explain_pairs=lambda *args, **options: scores(
        lrp_loo.explain_pairs(*args, 'removal', **options)
    ),
    calibrate=calibrate,
    explain_page=page,
    sweep=sweep,
)
every_entry = pytest.mark.parametrize('entry', ENTRIES)


@pytest.fixture(scope='module')
def small(tokenizer):
    model = random_bert(layers=2)
    model.config.id2label = {0: 'negative', 1: 'positive'}
    return model, tokenizer


@every_entry
def test_a_compiled_model_a_pipeline_a_device_and_a_length(entry, small):
    (model, tokenizer), run = small, ENTRIES[entry]
    expected = run(*small, TEXTS)
    assert run(torch.compile(model), tokenizer, TEXTS) == expected
    pipe = pipeline('text-classification', model, tokenizer=tokenizer)
    assert run(pipe, None, TEXTS) == expected
    assert run(*small, TEXTS, device='cpu', max_length=64) == expected
    assert run(*small, TEXTS, max_length=7, truncation=True) != expected
    for options, message in (
        (dict(device='nowhere'), 'device'),
        (dict(max_length=4), 'tokens'),
        (dict(target=[0, 1, 0]), 'target has 3 entries for'),
    ):
        with pytest.raises(ValueError, match=message):
            run(*small, TEXTS, **options)
    for texts, message in (
        ([], 'texts is empty'),
        (['fine', ' '], 'empty'),
        ([3], 'str'),
    ):
        if entry != 'explain_page':
            with pytest.raises((ValueError, TypeError), match=message):
                run(*small, texts)


@every_entry
def test_one_string_is_a_list_of_one(entry, small):
    run = ENTRIES[entry]
    if entry == 'sweep':
        with pytest.raises(TypeError, match='texts must be a list of str'):
            run(*small, TEXTS[0])
    else:
        assert run(*small, TEXTS[0]) == run(*small, TEXTS[:1])


@every_entry
def test_a_target_for_each_text(entry, small):
    run, labels = ENTRIES[entry], ['positive', 'negative'] * 2
    if entry == 'explain_page':
        assert page(*small, TEXTS[0], target=[1]) == page(
            *small, TEXTS[0], target='positive'
        )
    elif entry in ('calibrate', 'sweep'):
        with pytest.raises(ValueError, match='has one target.* 2 different'):
            run(*small, TEXTS, target=labels)
        assert run(*small, TEXTS, target=[1] * 4) == run(*small, TEXTS, target=1)
    else:
        result = run(*small, TEXTS, target=labels)
        assert result == run(*small, TEXTS, target=[1, 0] * 2)
        assert result != run(*small, TEXTS, target=0)


CONTEXT = ('The acting is bad. The songs are fine.', ' bad')


def captum(model, tokenizer, **options):
    ids = load_demo('reviews')[1](CONTEXT[0], return_tensors='pt')['input_ids']
    return lrp_loo.LRP(model, tokenizer=tokenizer, **options).attribute(ids)


OWN_TEXT = dict(
    context=lambda *args, **options: (
        lrp_loo.attribute_context(*args, *CONTEXT, **options).scores
    ),
    generation=lambda *args, **options: (
        lrp_loo.explain_generation(*args, CONTEXT[0], ' bad', **options)[0].scores
    ),
    captum=captum,
)


@pytest.mark.parametrize('entry', OWN_TEXT)
def test_an_entry_that_builds_its_text(entry):
    run, (model, tokenizer) = OWN_TEXT[entry], load_demo('reviews')
    plain = run(model, tokenizer)
    pipe = pipeline('text-generation', model, tokenizer=tokenizer)
    assert torch.equal(run(pipe, None), plain)
    assert torch.equal(run(torch.compile(model), tokenizer), plain)
    if entry != 'captum':
        assert torch.equal(run(model, tokenizer, device='cpu'), plain)
        with pytest.raises(ValueError, match='device'):
            run(model, tokenizer, device='nowhere')
    for option in (dict(max_length=4), dict(target=['a', 'b'])):
        # a context's target= is a tuple of two answers
        has_target = entry == 'context' and 'target' in option
        error = ValueError if has_target else TypeError
        with pytest.raises(error, match=next(iter(option))):
            run(model, tokenizer, **option)


# --- names of targets

TEXT = 'a fine film'
gradient = partial(explain, texts=TEXT, method='grad_x_input')


@pytest.fixture(scope='module')
def stars(tokenizer, tmp_path_factory):
    "A model whose two classes are called '1' and '2', and the folder it is saved in."
    model = random_bert()
    model.config.id2label = {0: '1', 1: '2'}
    model.config.label2id = {'1': 0, '2': 1}
    folder = tmp_path_factory.mktemp('stars')
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, str(folder)


@pytest.mark.parametrize(
    'target, index, label',
    [
        ('1', 0, '1'),  # a label; as an index it would be the other class
        ('2', 1, '2'),  # a label; as an index it would be refused
        ('0', 0, '1'),  # no label, so an index
    ],
)
def test_the_shell_and_python_read_a_target_alike(stars, target, index, label, capsys):
    *model, folder = stars
    (a,) = gradient(*model, target=target)
    assert (a.target, a.label) == (index, label)
    words = ('explain', TEXT, '--method', 'grad_x_input', '--json')
    assert main([*words, '--model', folder, '--target', target]) == 0
    (a,) = json.loads(capsys.readouterr().out)
    assert (a['target'], a['label']) == (json.loads(json.dumps(index)), label)


def test_every_form_of_a_target_accepts_a_label(stars):
    *model, _ = stars
    for target in ('2', Target('2'), ('2', '1'), 1):
        assert gradient(*model, target=target)[0].label.startswith('2')
    texts = [TEXT, 'no']
    s = summarize_texts(*model, texts, target='1', min_count=1, progress=False)
    assert s.classes == ['1']
    (maps,) = explain_labels(*model, TEXT, ['2', '1'], 'grad_x_input')
    assert [a.target for a in maps] == [1, 0]
    for target in (('2', '2'), ('1', '0')):
        with pytest.raises(ValueError, match='no difference of two'):
            gradient(*model, target=target)


def test_a_label_with_a_minus_and_a_model_without_labels(tokenizer):
    model = random_bert()
    model.config.id2label = {0: '-1', 1: '1'}
    (a,) = gradient(model, tokenizer, target='-1')
    assert (a.target, a.label) == (0, '-1')
    model.config.id2label = {}
    with pytest.raises(ValueError, match='take its index$'):
        gradient(model, tokenizer, target='good')
    assert gradient(model, tokenizer, target='1')[0].target == 1


def test_a_decoders_digit_is_the_token_written_so():
    lm, tokenizer = load_demo('reviews')
    (token_id,) = tokenizer('7', add_special_tokens=False)['input_ids']
    assert gradient(lm, tokenizer, target='7')[0].target == token_id
