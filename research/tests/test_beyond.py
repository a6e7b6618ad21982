"Studies of the lab as a user meets them: end to end, through the command."

import sys
from types import ModuleType

import pytest
from conftest import load_demo

from lrp_lab import __main__ as run
from lrp_lab.beyond import REWRITINGS, rewritten
from lrp_loo.models.encoding import encode
from lrp_loo.paper.common import Study, add_rows
from lrp_loo.estimate import removal_scores
from lrp_loo.records.results import Results, read_results

BEYOND_PARTS = ('decoder', 'lm', 'lm-zero', 'vit')


def reproduce(out, only, *words, data='embedded'):
    "Run the command; return its exit code or its message."
    words = ['reproduce', only, '--data', data, '--out', out, *words]
    with pytest.raises(SystemExit) as end:
        run.main(list(map(str, words)))
    return end.value.code


@pytest.fixture(scope='module')
def beyond(shallow_parts, tmp_path_factory):
    "The parts that are not the paper's, on embedded data."
    out = tmp_path_factory.mktemp('beyond')
    assert not reproduce(out, 'beyond', '--limit', 2)
    return out


def beyond_rows(beyond, part):
    return read_results(beyond / 'results' / 'studies-embedded' / f'{part}.json')


@pytest.mark.parametrize(
    'part, n', [('rewritings', 4), *((part, 2) for part in BEYOND_PARTS)]
)
def test_every_part_has_its_rows(beyond, part, n):
    assert len(beyond_rows(beyond, part)['rows']) == n


def test_finished_parts_are_printed_again_and_not_computed(beyond, capsys):
    folder = beyond / 'results' / 'studies-embedded'
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert not reproduce(beyond, 'beyond', '--limit', 2)
    out = capsys.readouterr().out
    for part in ('rewritings', *BEYOND_PARTS):
        assert f', {part}: ' in out
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_parts_read_what_they_name(beyond):
    vit, lm = (beyond_rows(beyond, part) for part in ('vit', 'lm'))
    assert vit['rows'][0]['n_tokens'] == 49  # patches
    assert lm['config']['data']['tokens'] == 'first 48'
    assert {row['n_tokens'] for row in lm['rows']} == {48}


def test_images_of_a_folder_are_explained(folder, tmp_path):
    assert not reproduce(tmp_path, 'vit', '--limit', 2, data=str(folder))


def test_rows_of_another_limit_are_not_mixed(beyond):
    assert not reproduce(beyond, 'vit', '--limit', 3)
    stored = beyond_rows(beyond, 'vit')
    assert (len(stored['rows']), len(stored['others'])) == (3, 2)
    assert not reproduce(beyond, 'vit', '--limit', 2)
    assert len(beyond_rows(beyond, 'vit')['rows']) == 2


@pytest.mark.parametrize('demo_name', ['sst2', 'reviews-sst2'])
def test_a_rewritten_program_has_the_same_estimate(demo_name):
    model, tokenizer = load_demo(demo_name)
    enc = encode(model, tokenizer, 'a slow start , but the last act is a quiet triumph')
    plain = removal_scores(model, tokenizer, [enc]).scores
    names = [n for n, (which, _) in REWRITINGS.items() if demo_name in which]
    assert len(names) >= 5
    for name in names:
        other = removal_scores(rewritten(model, name), tokenizer, [enc]).scores
        assert float((other - plain).abs().max() / plain.abs().max()) < 2e-3, name


def count_letters(path, part, options):
    "Rows of a study: the length of three words."
    words = enumerate(('one', 'three', 'eleven'))
    data = dict(name='words', source='by hand', split='none')
    results = Results(path, dict(data=data), options.fresh)
    return add_rows(results, words, lambda word: dict(n=len(word)))


@pytest.fixture
def letters(monkeypatch):
    "A new study, in a module of its own."
    module = ModuleType('lrp_lab.letters')

    def tables(part, results):
        return [('Letters', ' '.join(str(r['n']) for r in results['rows']))]

    module.STUDIES = (
        Study('letters', '', dict(letters='letters'), count_letters, tables),
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run, 'MODULES', (*run.MODULES, module.__name__))


def test_a_new_study_is_run_and_printed(letters, tmp_path, capsys):
    assert not reproduce(tmp_path, 'letters')
    assert 'Letters\n-------\n3 5 6' in capsys.readouterr().out
    rows = read_results(tmp_path / 'results' / 'studies-embedded' / 'letters.json')
    assert [r['n'] for r in rows['rows']] == [3, 5, 6]


def test_an_unknown_study_is_refused_with_the_known_ones(letters, tmp_path):
    assert 'letters' in reproduce(tmp_path, 'leters')
