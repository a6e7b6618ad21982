"""A class by its label or number, the same in Python and in the shell: what is a label is that
label, whatever number it looks like.
"""

import json

import pytest
from conftest import random_bert

from lrp_loo import Target, explain, explain_labels, load_demo, summarize_texts
from lrp_loo.cli import main

TEXT = 'a fine film'


@pytest.fixture(scope='module')
def stars():
    "Two classes, which are called '1' and '2'."
    model = random_bert()
    model.config.id2label = {0: '1', 1: '2'}
    model.config.label2id = {'1': 0, '2': 1}
    return model, load_demo('sst2')[1]


@pytest.fixture(scope='module')
def folder(stars, tmp_path_factory):
    path = tmp_path_factory.mktemp('stars')
    for part in stars:
        part.save_pretrained(path)
    return path


def in_python(stars, folder, target):
    (a,) = explain(*stars, TEXT, 'grad_x_input', target)
    return a.target, a.label


def in_the_shell(stars, folder, target, capsys):
    words = ('explain', TEXT, '--method', 'grad_x_input', '--json')
    assert main([*words, '--model', str(folder), '--target', target]) == 0
    (a,) = json.loads(capsys.readouterr().out)
    target = a['target']
    return tuple(target) if isinstance(target, list) else target, a['label']


NAMED = {
    '1': (0, '1'),  # a label; as a number it would be the other class
    '2': (1, '2'),  # a label; as a number there is none
    '0': (0, '1'),  # no label, so a number
    '2,1': ((1, 0), '2 − 1'),
    '2, 0': ((1, 0), '2 − 1'),
}


@pytest.mark.parametrize('target', NAMED)
def test_the_shell_and_python_mean_the_same(stars, folder, target, capsys):
    assert in_python(stars, folder, target) == NAMED[target]
    assert in_the_shell(stars, folder, target, capsys) == NAMED[target]


def test_a_label_that_looks_like_a_negative_number():
    model, tokenizer = random_bert(), load_demo('sst2')[1]
    model.config.id2label = {0: '-1', 1: '1'}
    (a,) = explain(model, tokenizer, TEXT, 'grad_x_input', '-1')
    assert (a.target, a.label) == (0, '-1')


def test_a_number_is_a_number(stars):
    (a,) = explain(*stars, TEXT, 'grad_x_input', 1)
    assert (a.target, a.label) == (1, '2')


@pytest.mark.parametrize('target', ['2', Target('2'), ('2', '1')])
def test_in_every_form_of_a_target(stars, target):
    (a,) = explain(*stars, TEXT, 'grad_x_input', target)
    assert a.label.startswith('2')


def test_in_a_summary(stars):
    s = summarize_texts(*stars, [TEXT, 'no'], target='1', min_count=1, progress=False)
    assert s.classes == ['1']


def test_of_several_labels(stars):
    (both,) = explain_labels(*stars, TEXT, ['2', '1'], 'grad_x_input')
    assert [a.target for a in both] == [1, 0]


def test_what_is_neither_is_named(stars):
    with pytest.raises(ValueError, match="target='3'|target=3"):
        explain(*stars, TEXT, target='3')
    with pytest.raises(ValueError, match="'splendid' is not a class.*1, 2"):
        explain(*stars, TEXT, target='splendid')


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


def test_a_decoders_id_in_quotes_is_told_from_a_token():
    lm, tokenizer = load_demo('reviews')
    with pytest.raises(ValueError, match="'4711' is .* tokens.*target=4711"):
        explain(lm, tokenizer, TEXT, target='4711')


@pytest.mark.parametrize('target', [(1, 1), ('2', '2'), '2,2', '1,0'])
def test_a_difference_of_one_with_itself_is_named(stars, target):
    with pytest.raises(ValueError, match='no difference of two'):
        explain(*stars, TEXT, target=target)


def test_a_difference_of_three_is_named():
    with pytest.raises(ValueError, match='no difference of two'):
        Target((0, 1, 0))


def test_no_labels_at_all_is_named(stars):
    with pytest.raises(ValueError, match='labels=.* take a list of at least one class'):
        explain_labels(*stars, TEXT, labels=[])
