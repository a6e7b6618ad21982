"The command line: exit codes, what is said before a model is loaded, interruptions."

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import tqdm.auto
import tqdm.notebook
import transformers
from bad_world import without_progress_bars

import lrp_loo
from lrp_loo.cli import main
from lrp_loo.core.tools import progress_bar
from lrp_loo.records.results import Results, read_results
from lrp_loo.evaluate.sweep import BatchWorker, read_sweep

pytestmark = pytest.mark.usefixtures('loaded_once')
AUDIT = ('audit', '--data', 'embedded', '--limit', '2', '--method', 'cp_lrp')
SWEEP = ('sweep', '--data', 'embedded', '--limit', '2', '--method', 'cp_lrp,attn_lrp')
SMALL = ('--name', 'reviews-sst2')
TEXTS = ['a warm film', 'no', 'old jokes and slow scenes']
FINE = 'a fine film, if slow'


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    "Argv, and lines on standard input → exit code, stdout, stderr."
    monkeypatch.chdir(tmp_path)

    def run(*argv, lines=''):
        monkeypatch.setattr(sys, 'stdin', io.StringIO(lines))
        code = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, without_progress_bars(err)

    return run


EXIT_CODES = {
    'explain --help': 0,
    'explain fine --target splendid': 1,
    'summarize --data none.csv': 1,
    'explain fine --html a.html --out a.html': 2,
    'summarize --method loo,ig': 2,
    'pairs': 2,
    'explain a fine film': 2,
    'explian fine': 2,
    'summarize --min_count few': 2,
}


@pytest.mark.parametrize('words, code', EXIT_CODES.items())
def test_exit_codes_are_as_documented(run, words, code):
    got, out, err = run(*words.split())
    assert got == code, err
    assert 'Traceback' not in err and len(err.splitlines()) == (code != 0)
    assert (out == '') == (code != 0)


CONTROLS = 'a \x1b[31mfine\x07 film \x1b]8;;x\x1b\\\r\u202eslow \x9b31m\u2028end'
STEERED = dict(context=(CONTROLS,), generate=('--max-new-tokens', '1'))


@pytest.mark.parametrize('command', ['explain', 'compare', 'pairs', *STEERED])
@pytest.mark.parametrize('colours', ['NO_COLOR', 'FORCE_COLOR'])
def test_no_text_controls_the_terminal(run, monkeypatch, command, colours):
    monkeypatch.setenv(colours, '1')
    words = (command, CONTROLS, *STEERED.get(command, SMALL))
    words += ('--units', 'sentence' if command == 'context' else 'word')
    code, out, err = run(*words, '--out', 'a\x1b.json', '--html', 'a.html')
    assert code == 0, err
    out = re.sub(
        r'\x1b\[(3;4|[34]8;2;[\d;]+|30|0)m', '', out
    )  # the package's own colours
    printed = [out, err, run(*words, '--json')[1], repr(lrp_loo.load('a\x1b.json'))]
    printed += [Path('a.html').read_text(encoding='utf-8'), run(CONTROLS)[2]]
    seen = set(''.join(printed)) - {'\n', '\t'}
    assert all(map(str.isprintable, seen)), seen


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
    assert f'finished rows are in {path}; the same command without --fresh' in err
    assert err.endswith('lrp_loo audit: interrupted')
    assert len(read_results(path)['rows']) == 1


def test_an_interrupted_sweep_reports_its_rows(run, monkeypatch, tmp_path):
    interrupt(monkeypatch, BatchWorker, 'compute', 1)
    code, _, err = run(*SWEEP, '--batch_size', '1', '--out', tmp_path / 'rows')
    assert code == 130
    assert f"finished rows are in {tmp_path / 'rows'}" in err
    assert len(read_sweep(tmp_path / 'rows')) == 2


@pytest.mark.parametrize('error, code', [(KeyboardInterrupt, 130), (ValueError, 1)])
def test_explained_texts_are_kept(run, monkeypatch, error, code):
    plain = lrp_loo.explain

    def stop(model, tokenizer, texts, **options):
        if TEXTS[2] in texts:
            raise error('no more')
        return plain(model, tokenizer, texts, **options)

    monkeypatch.setattr('lrp_loo.methods.explain', stop)
    monkeypatch.setattr('lrp_loo.cli.commands.TEXTS_AT_ONCE', 1)
    words = ('explain', '--data', '-', *SMALL, '--out', 'a.json')
    got, out, err = run(*words, lines='\n'.join(TEXTS))
    assert got == code and len(lrp_loo.load('a.json')) == out.count('text ') == 2
    assert len(err.splitlines()) == 2 and err.startswith('written: a.json')


@pytest.mark.parametrize('method', ['cp_lrp', 'grad_x_input'])
def test_the_page_opens_with_the_method_that_was_named(run, tmp_path, method):
    words = ('explain', 'a fine film', '--method', method, '--html', 'a.html')
    assert run(*words)[0] == 0
    page = (tmp_path / 'a.html').read_text()
    data = json.loads(page.split('id="data">')[1].split('</script>')[0])
    assert list(data['methods'])[0] == method and 'loo' in data['methods']


RATED = [
    'a slow film with old jokes',
    'the film is slow, and slow it stays',
    'a warm film',
    'a slow start and a warm end',
]
SUMMARIZE = ('summarize', '--data', '-', '--min_count', '2', *SMALL)


@pytest.mark.parametrize(
    'options', [dict(method='cp_lrp', target=0), dict(target='positive')]
)
def test_summarize_has_the_numbers_of_the_library(run, options):
    words = [x for k, v in options.items() for x in (f'--{k}', str(v))]
    code, out, err = run(*SUMMARIZE, *words, '--json', lines='\n'.join(RATED))
    assert code == 0, err
    printed = json.loads(out)
    assert printed['n'] == 4
    demo = lrp_loo.load_demo('reviews-sst2')
    summary = lrp_loo.summarize_texts(
        *demo, RATED, **options, min_count=2, progress=False
    )
    got, want = (
        pd.DataFrame(frame).set_index(['class', 'word'])
        for frame in (printed['words'], summary.to_frame())
    )
    assert got.index.tolist() == want.index.tolist()
    assert got['count'].tolist() == want['count'].tolist()
    # float32 in batches of another order
    difference = got['mean'].astype(float) - want['mean']
    assert difference.abs().max() <= 1e-4 * want['mean'].abs().max()
    shown = run(*SUMMARIZE, *words, lines='\n'.join(RATED))[1]
    top = pd.concat(summary.top(20).values())  # without words that are no reasons
    assert len(top) and all(word in shown for word in top.word)


def test_an_error_of_another_library_says_whose_it_is(run, monkeypatch):
    def fail(*args, **options):
        transformers.AutoConfig.for_model('no-such-kind')

    monkeypatch.setattr('lrp_loo.methods.explain', fail)
    code, _, err = run('explain', 'fine')
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert 'raised by transformers: LRP_LOO_TRACEBACK=1 shows where' in err


@pytest.mark.parametrize('words', ['--method loo', '--method loo,cp_lrp'])
def test_each_line_of_standard_input_is_explained(run, words):
    words = (*words.split(), *SMALL, '--json')
    out = run('explain', '--data', '-', *words, lines='\n'.join(TEXTS))[1]
    rows = list(map(json.loads, out.splitlines()))
    alone = [a for t in TEXTS for a in json.loads(run('explain', t, *words)[1])]
    assert [row.pop('text') for row in rows] == sorted([0, 1, 2] * (len(rows) // 3))
    for got, want in zip(rows, alone, strict=True):
        assert got['tokens'] == want['tokens'] and got['method'] == want['method']
        assert got['scores'] == pytest.approx(want['scores'], abs=1e-4)


def test_texts_are_explained_into_a_file(run, tmp_path):
    words = ('explain', '--data', '-', *SMALL, '--out', 'a.json', '--html', 'a.html')
    code, out, err = run(*words, lines='\n'.join(TEXTS))
    assert code == 0, err
    kept = lrp_loo.load(tmp_path / 'a.json')
    assert [a.tokens[-1] for a in kept] == ['Ġfilm', 'Ġno', 'Ġscenes']
    assert out.count('text ') == 3
    assert 'scenes' in (tmp_path / 'a.html').read_text()


@pytest.mark.parametrize('command', ['audit', 'summarize', 'calibrate', 'sweep'])
def test_many_texts_may_be_piped_in(run, tmp_path, command):
    "A text a line is what a file of lines is."
    lines = '\n'.join(TEXTS * 4)
    (tmp_path / 'lines.txt').write_text(lines)
    own = dict(summarize=['--min-count', '2'], sweep=['--out', 'rows', '--fresh'])
    method = 'attn_lrp' if command != 'calibrate' else 'removal'
    words = (*SMALL, '--method', method, *own.get(command, ()))
    piped = run(command, '--data', '-', *words, lines=lines)
    of_file = run(command, '--data', 'lines.txt', *words)
    assert piped[0] == of_file[0] == 0, piped
    printed = [re.sub(' 3 +[\\d.]+', ' 3', out) for _, out, _ in (piped, of_file)]
    assert printed[0].replace('standard input.txt', 'lines.txt') == printed[1]


def test_targets_and_models_are_compared(run, tmp_path):
    for part in lrp_loo.load_demo('reviews-sst2'):
        part.save_pretrained(tmp_path / 'mine')
    words = ('compare', FINE, *SMALL, '--other-model', 'mine', '--method', 'cp_lrp')
    words += ('--target', 'positive', '--other-target', 'negative')
    maps = json.loads(run(*words, '--json')[1])
    assert [a['label'] for a in maps] == ['positive', 'negative'] * 2
    assert maps[0]['scores'] == maps[2]['scores'] != maps[1]['scores']
    alone = ('explain', FINE, *SMALL, '--method', 'cp_lrp', '--target', 'negative')
    (a,) = json.loads(run(*alone, '--json')[1])
    assert maps[1]['scores'] == pytest.approx(a['scores'], abs=1e-4)
    rows = [x.split('\t') for x in run(*words)[1].splitlines() if '\t' in x]
    assert rows[0] == ['(1)', '(2)', '(3)', '(4)', 'token']
    shown = [float(row[1]) for row in rows[1:]]
    assert shown == pytest.approx(a['scores'], abs=1e-4)


PAGES = {
    'explain': (FINE, *SMALL),
    'compare': (FINE, *SMALL),
    'pairs': (FINE, *SMALL),
    'context': ('It was fine. It was slow.', 'A film.'),
    'generate': ('It was', '--max-new-tokens', '2'),
    'audit': ('--data', 'embedded', '--limit', '3', '--method', 'loo,cp_lrp', *SMALL),
    'summarize': ('--data', 'embedded', '--limit', '20', '--min-count', '2', *SMALL),
}


@pytest.mark.parametrize('command', PAGES)
def test_a_command_has_json_and_a_page(run, tmp_path, command):
    code, out, err = run(command, *PAGES[command], '--json', '--html', 'a.html')
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


# ---- bars of long work, and the time that is announced before it

SENTENCE = "The jokes are old, and the pace is slow."  # 13 tokens


@pytest.mark.parametrize('kind', [tqdm.auto.tqdm, tqdm.notebook.tqdm])
def test_no_bar_is_shown_if_the_environment_disables_it(monkeypatch, capsys, kind):
    monkeypatch.setattr('lrp_loo.core.tools.tqdm', kind)
    monkeypatch.setenv('TQDM_DISABLE', '1')
    assert list(progress_bar(range(2))) == [0, 1]
    assert capsys.readouterr().err == ''


def test_the_bar_counts_texts(demo, monkeypatch):
    bars = []

    def made(iterable, progress, **options):
        bars.append(tqdm.auto.tqdm(**options, disable=False, file=io.StringIO()))
        return bars[-1]

    monkeypatch.setattr('lrp_loo.records.results.progress_bar', made)
    lrp_loo.audit(*demo, [SENTENCE, 'a fine film', SENTENCE], method=['attn_lrp'])
    assert [(bar.n, bar.total) for bar in bars] == [(2, 2)]  # one is a copy


def test_the_command_line_shows_a_bar_of_loo(monkeypatch):
    bars = []

    def made(**options):
        bar = progress_bar(**options | dict(delay=0))
        bars.append((bar, bar.disable))  # a bar that is closed is disabled
        return bar

    monkeypatch.setattr('lrp_loo.loo.progress_bar', made)
    monkeypatch.delenv('TQDM_DISABLE', raising=False)
    assert main(['explain', SENTENCE, '--method', 'loo']) == 0
    assert [(bar.n, bar.total, hidden) for bar, hidden in bars] == [
        (13, 13, False)
    ]  # and one without all words
