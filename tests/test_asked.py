"""One door: every entry takes a model, texts, a target, a device and a length in
the same ways, or says in the same words why not.
"""

import tempfile

import pytest
import torch
from conftest import OPINIONS
from transformers import pipeline

import lrp_loo

ONE = OPINIONS[0]
TEXTS = [*OPINIONS, 'A bold, odd little film.', 'The songs are all one song.']
QUIET = dict(progress=False)


def page(model, tokenizer, texts, **options):
    "A page is of one text."
    text = texts if isinstance(texts, str) else texts[0]
    return lrp_loo.explain_page(model, tokenizer, text, ['removal'], **options)


def audit(model, tokenizer, texts, **options):
    return lrp_loo.audit(model, tokenizer, texts, ['loo', 'cp_lrp'], **QUIET, **options)


def explain_dataset(model, tokenizer, texts, **options):
    given = (texts, tempfile.mkdtemp(), ['cp_lrp'], (model, tokenizer, 'demo'))
    table = lrp_loo.explain_dataset(*given, **QUIET, **options)
    return table.rename(columns={'r': 'loo_r'})


def calibrate(*given, **options):
    return lrp_loo.calibrate(*given, **QUIET, **options)


def fit_layers(*given, **options):
    return lrp_loo.fit_layers(*given, **QUIET, **options)


ENTRIES = dict(
    explain=lrp_loo.explain,
    audit=audit,
    explain_pairs=lrp_loo.explain_pairs,
    calibrate=calibrate,
    fit_layers=fit_layers,
    explain_page=page,
    explain_dataset=explain_dataset,
)
every_entry = pytest.mark.parametrize('entry', ENTRIES)


def numbers(found):
    "What came out, to compare."
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return [a.scores for a in found]
    if hasattr(found, 'texts') and not hasattr(found, 'columns'):
        return repr(found.texts)
    if hasattr(found, 'weights'):
        return repr(found.weights)
    return repr(found['loo_r'].tolist())


def same(a, b):
    a, b = numbers(a), numbers(b)
    if isinstance(a, str):
        return a == b
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.fixture(scope='module')
def plain(demo):
    "What each entry gives for the model as it is."
    return {name: entry(*demo, TEXTS) for name, entry in ENTRIES.items()}


@every_entry
def test_a_compiled_model(entry, demo, plain):
    model, tokenizer = demo
    found = ENTRIES[entry](torch.compile(model), tokenizer, TEXTS)
    assert same(found, plain[entry])


@every_entry
def test_a_pipeline_without_a_tokenizer(entry, demo, plain):
    model, tokenizer = demo
    pipe = pipeline('text-classification', model, tokenizer=tokenizer)
    assert same(ENTRIES[entry](pipe, None, TEXTS), plain[entry])


@every_entry
def test_one_string_is_a_list_of_one(entry, demo):
    if entry == 'fit_layers':
        with pytest.raises(ValueError, match='texts'):
            fit_layers(*demo, ONE)
        return
    if entry == 'explain_dataset':
        with pytest.raises(TypeError, match='texts must be a list of str'):
            explain_dataset(*demo, ONE)
        return
    found = ENTRIES[entry](*demo, ONE)
    assert same(found, ENTRIES[entry](*demo, [ONE]))


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


@every_entry
def test_a_target_list_of_another_length_is_refused(entry, demo):
    with pytest.raises(ValueError, match='target has 3 entries for'):
        ENTRIES[entry](*demo, TEXTS, target=[0, 1, 0])


@every_entry
def test_a_device(entry, demo, plain):
    assert same(ENTRIES[entry](*demo, TEXTS, device='cpu'), plain[entry])
    with pytest.raises(ValueError, match='device'):
        ENTRIES[entry](*demo, TEXTS, device='nowhere')


@every_entry
def test_a_length(entry, demo, plain):
    assert same(ENTRIES[entry](*demo, TEXTS, max_length=64), plain[entry])
    with pytest.raises(ValueError, match='tokens'):
        ENTRIES[entry](*demo, TEXTS, max_length=4)


@every_entry
def test_a_text_cut_at_a_length(entry, demo, plain):
    cut = ENTRIES[entry](*demo, TEXTS, max_length=7, truncation=True)
    assert not same(cut, plain[entry])


@every_entry
@pytest.mark.parametrize(
    'texts, said', [([], 'texts is empty'), ([ONE, ' '], 'empty'), ([3], 'str')]
)
def test_no_text_is_refused_in_the_same_words(entry, demo, texts, said):
    if entry == 'explain_page':
        return
    with pytest.raises((ValueError, TypeError), match=said):
        ENTRIES[entry](*demo, texts)


CONTEXT = ('The acting is bad. The songs are fine.', ' bad')


def context(model, tokenizer, **options):
    return lrp_loo.attribute_context(model, tokenizer, *CONTEXT, **options).scores


def generation(model, tokenizer, **options):
    how = dict(continuation=' bad') | options
    found = lrp_loo.explain_generation(model, tokenizer, CONTEXT[0], **how)
    return found[0].scores


def captum(model, tokenizer, **options):
    _, own = lrp_loo.load_demo('reviews')
    ids = own(CONTEXT[0], return_tensors='pt')['input_ids']
    return lrp_loo.LRP(model, tokenizer=tokenizer, **options).attribute(ids)


WRITERS = dict(context=context, generation=generation, captum=captum)


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
