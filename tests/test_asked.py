"Every entry takes model, texts, target, device and length alike; a class by label or number."

import json
import tempfile
from functools import partial

from conftest import OPINIONS, random_bert
import pytest
import torch
from transformers import pipeline

import lrp_loo
from lrp_loo import Target, explain, explain_labels, load_demo, summarize_texts
from lrp_loo.cli import main

ONE = OPINIONS[0]
TEXTS = [*OPINIONS, 'A bold, odd little film.', 'The songs are all one song.']
QUIET = dict(progress=False)


def page(model, tokenizer, texts, **options):
    "A page is of one text."
    text = texts if isinstance(texts, str) else texts[0]
    return lrp_loo.explain_page(model, tokenizer, text, ['removal'], **options)


def audit(model, tokenizer, texts, **options):
    return lrp_loo.audit(model, tokenizer, texts, ['loo', 'cp_lrp'], **QUIET, **options)


def sweep(model, tokenizer, texts, **options):
    given = (model, tokenizer, texts, tempfile.mkdtemp(), 'cp_lrp')
    table = lrp_loo.sweep(*given, **QUIET, **options)
    return table.rename(columns={'r': 'loo_r'})


ENTRIES = dict(
    explain=lrp_loo.explain,
    audit=audit,
    explain_pairs=lrp_loo.explain_pairs,
    calibrate=partial(lrp_loo.calibrate, method='removal', **QUIET),
    fit_layers=partial(lrp_loo.fit_layers, **QUIET),
    explain_page=page,
    sweep=sweep,
)
every_entry = pytest.mark.parametrize('entry', ENTRIES)


def same(*found):
    def numbers(f):
        if isinstance(f, list):
            return [a.scores.tolist() for a in f]
        if hasattr(f, 'texts') and not hasattr(f, 'columns'):
            return repr(f.texts)
        return repr(f.weights if hasattr(f, 'weights') else f['loo_r'].tolist())

    a, b = (f if isinstance(f, str) else numbers(f) for f in found)
    return a == b


@pytest.fixture(scope='module')
def plain(demo):
    "What each entry gives for the model as it is."
    return {name: entry(*demo, TEXTS) for name, entry in ENTRIES.items()}


@every_entry
def test_a_compiled_model_a_pipeline_a_device_and_a_length(entry, demo, plain):
    model, tokenizer = demo
    run, wanted = ENTRIES[entry], plain[entry]
    assert same(run(torch.compile(model), tokenizer, TEXTS), wanted)
    pipe = pipeline('text-classification', model, tokenizer=tokenizer)
    assert same(run(pipe, None, TEXTS), wanted)
    assert same(run(*demo, TEXTS, device='cpu'), wanted)
    assert same(run(*demo, TEXTS, max_length=64), wanted)
    assert not same(run(*demo, TEXTS, max_length=7, truncation=True), wanted)
    for options, said in (
        (dict(device='nowhere'), 'device'),
        (dict(max_length=4), 'tokens'),
        (dict(target=[0, 1, 0]), 'target has 3 entries for'),
    ):
        with pytest.raises(ValueError, match=said):
            run(*demo, TEXTS, **options)
    for texts, said in (([], 'texts is empty'), ([ONE, ' '], 'empty'), ([3], 'str')):
        if entry != 'explain_page':
            with pytest.raises((ValueError, TypeError), match=said):
                run(*demo, texts)


@every_entry
def test_one_string_is_a_list_of_one(entry, demo):
    run = ENTRIES[entry]
    said = dict(fit_layers='texts', sweep='texts must be a list of str')
    if entry in said:
        with pytest.raises((ValueError, TypeError), match=said[entry]):
            run(*demo, ONE)
    else:
        assert same(run(*demo, ONE), run(*demo, [ONE]))


@every_entry
def test_a_target_for_each_text(entry, demo):
    labels = ['positive', 'negative'] * (len(TEXTS) // 2)
    if entry == 'explain_page':  # of one text
        assert same(page(*demo, ONE, target=[1]), page(*demo, ONE, target='positive'))
    elif entry in ('calibrate', 'fit_layers'):
        with pytest.raises(ValueError, match='is fitted to one question.* 2 different'):
            ENTRIES[entry](*demo, TEXTS, target=labels)
        one = ENTRIES[entry](*demo, TEXTS, target=[1] * len(TEXTS))
        assert same(one, ENTRIES[entry](*demo, TEXTS, target=1))
    else:
        found = ENTRIES[entry](*demo, TEXTS, target=labels)
        assert same(found, ENTRIES[entry](*demo, TEXTS, target=[1, 0] * 4))
        assert not same(found, ENTRIES[entry](*demo, TEXTS, target=0))


CONTEXT = ('The acting is bad. The songs are fine.', ' bad')


def captum(model, tokenizer, **options):
    _, own = lrp_loo.load_demo('reviews')
    ids = own(CONTEXT[0], return_tensors='pt')['input_ids']
    return lrp_loo.LRP(model, tokenizer=tokenizer, **options).attribute(ids)


WRITERS = dict(
    context=lambda *given, **options: (
        lrp_loo.attribute_context(*given, *CONTEXT, **options).scores
    ),
    generation=lambda *given, **options: (
        lrp_loo.explain_generation(*given, CONTEXT[0], ' bad', **options)[0].scores
    ),
    captum=captum,
)


@pytest.mark.parametrize('entry', WRITERS)
def test_an_entry_that_puts_its_text_together(entry):
    "A compiled model, a pipeline, a device; what is not its own is named."
    run, (model, tokenizer) = WRITERS[entry], lrp_loo.load_demo('reviews')
    plain = run(model, tokenizer)
    pipe = pipeline('text-generation', model, tokenizer=tokenizer)
    assert torch.equal(run(pipe, None), plain)
    assert torch.equal(run(torch.compile(model), tokenizer), plain)
    if entry != 'captum':
        assert torch.equal(run(model, tokenizer, device='cpu'), plain)
        with pytest.raises(ValueError, match='device'):
            run(model, tokenizer, device='nowhere')
    for option in (dict(max_length=4), dict(target=['a', 'b'])):
        with pytest.raises(TypeError, match=next(iter(option))):
            run(model, tokenizer, **option)


def test_an_audit_of_pairs_takes_what_explain_pairs_takes(demo):
    targets = ['positive', 'negative', 'negative']
    texts = [TEXTS[0], TEXTS[1], TEXTS[0]]
    units = ['word', 'token', 'word']
    how = dict(target=targets, units=units)
    table = lrp_loo.audit_pairs(*demo, texts, **QUIET, **how)
    alone = [
        lrp_loo.audit_pairs(*demo, [text], **QUIET, target=t, units=u)
        for text, t, u in zip(texts, targets, units)
    ]
    for name in table.index:  # the third is no copy: its target is another
        mean = sum(one.r[name] for one in alone) / 3
        assert table.r[name] == pytest.approx(mean, abs=1e-4)
        assert table.n[name] == 3
    with pytest.raises(ValueError, match='target has 2 entries for 3 texts'):
        lrp_loo.audit_pairs(*demo, texts, target=[0, 1], **QUIET)
    compiled = lrp_loo.audit_pairs(torch.compile(demo[0]), demo[1], ONE, **QUIET)
    assert compiled.r.equals(lrp_loo.audit_pairs(*demo, ONE, **QUIET).r)


TEXT = 'a fine film'


@pytest.fixture(scope='module')
def stars(demo, tmp_path_factory):
    "Two classes, which are called '1' and '2'; and where they are saved."
    model = random_bert()
    model.config.id2label = {0: '1', 1: '2'}
    model.config.label2id = {'1': 0, '2': 1}
    model.folder = str(tmp_path_factory.mktemp('stars'))
    for part in (model, demo[1]):
        part.save_pretrained(model.folder)
    return model, demo[1]


NAMED = {
    '1': (0, '1'),  # a label; as a number it would be the other class
    '2': (1, '2'),  # a label; as a number there is none
    '0': (0, '1'),  # no label, so a number
    '2,1': ((1, 0), '2 − 1'),
    '2, 0': ((1, 0), '2 − 1'),
}


@pytest.mark.parametrize('target', NAMED)
def test_the_shell_and_python_mean_the_same(stars, target, capsys):
    (a,) = explain(*stars, TEXT, 'grad_x_input', target)
    assert (a.target, a.label) == NAMED[target]
    words = ('explain', TEXT, '--method', 'grad_x_input', '--json')
    assert main([*words, '--model', stars[0].folder, '--target', target]) == 0
    (a,) = json.loads(capsys.readouterr().out)
    found = tuple(a['target']) if isinstance(a['target'], list) else a['target']
    assert (found, a['label']) == NAMED[target]


def test_in_every_form_of_a_target(stars):
    for target in ('2', Target('2'), ('2', '1'), 1):
        (a,) = explain(*stars, TEXT, 'grad_x_input', target)
        assert a.label.startswith('2')
    s = summarize_texts(*stars, [TEXT, 'no'], target='1', min_count=1, progress=False)
    assert s.classes == ['1']
    (both,) = explain_labels(*stars, TEXT, ['2', '1'], 'grad_x_input')
    assert [a.target for a in both] == [1, 0]
    for target in (('2', '2'), '2,2', '1,0'):
        with pytest.raises(ValueError, match='no difference of two'):
            explain(*stars, TEXT, target=target)
    model = random_bert()
    model.config.id2label = {0: '-1', 1: '1'}
    (a,) = explain(model, stars[1], TEXT, 'grad_x_input', '-1')
    assert (a.target, a.label) == (0, '-1')


def test_a_model_without_labels_takes_numbers(stars):
    model = random_bert()
    model.config.id2label = {}
    with pytest.raises(ValueError, match='take its number$'):
        explain(model, stars[1], TEXT, target='good')
    assert explain(model, stars[1], TEXT, target='1')[0].target == 1


def test_a_decoders_number_is_the_token_that_is_written_so():
    lm, tokenizer = load_demo('reviews')
    (wanted,) = tokenizer('7', add_special_tokens=False)['input_ids']
    (a,) = explain(lm, tokenizer, TEXT, 'grad_x_input', '7')
    assert a.target == wanted
