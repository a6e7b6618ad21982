"Experiments as a user meets them: interrupted and resumed, on folders in the hub's layout, on a 12-layer BERT, through the command line."

import json
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pytest
import torch
from conftest import random_bert

from lrp_loo import audit, explain, load_texts
from lrp_loo.methods import METHODS
from lrp_loo.cli import main
from lrp_loo.studies.reproduce import against_paper
from lrp_loo.results import Results, read_results
from lrp_loo.data import load_digit_images
from lrp_loo.studies.table2 import TABLE2
from lrp_loo.faithfulness import faithfulness_table
from lrp_loo.stats import per_text
from lrp_loo.studies.experiments import text_experiment
from lrp_loo.studies.layerwise import (
    SWEEPS,
    sweep_layers,
    sweep_methods,
    table_a3_against_paper,
)
from lrp_loo.models import (
    accuracy,
    demo_base,
    demo_folder,
    describe_model,
    load_demo,
    load_model,
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Data in the hub's layout, our own sentences."
    d = tmp_path_factory.mktemp('data')
    short = load_texts('sst2', 'embedded')
    long = load_texts('imdb', 'embedded')
    for name, column, split, x in (
        ('sst2', 'sentence', 'validation', short),
        ('imdb', 'text', 'test', long),
    ):
        (d / name).mkdir()
        datasets.Dataset.from_dict(
            {column: x.texts[:12], 'label': x.labels[:12]}
        ).to_parquet(str(d / name / f'{split}-00000-of-00001.parquet'))
    (d / 'mnist').mkdir()
    images = np.random.default_rng(0).integers(
        0, 255, (20, 28, 28), dtype=np.uint8
    )
    feats = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(num_classes=10)
    )
    for split in ('train', 'test'):
        datasets.Dataset.from_dict(
            dict(image=list(images), label=list(range(10)) * 2), features=feats
        ).to_parquet(str(d / 'mnist' / f'{split}-00000-of-00001.parquet'))
    return d


@pytest.fixture(scope='module')
def paper_model(tmp_path_factory, tokenizer):
    "The paper's architecture in depth, saved as the hub lays it out."
    d = tmp_path_factory.mktemp('models') / 'bert-12'
    random_bert(layers=12, std=0.1).save_pretrained(d)
    tokenizer.save_pretrained(d)
    return d


def test_folder_data(folder):
    d = load_texts('sst2', folder)
    assert (
        len(d) == 12
        and d.info['source'] == 'folder'
        and d.info['split'] == 'validation'
        and str(folder) not in json.dumps(d.info)
    )
    x, y, info = load_digit_images(folder, 'test')
    assert (
        x.shape == (20, 14, 14)
        and 0 <= x.min()
        and x.max() <= 1
        and y.dtype == torch.long
        and info['name'] == 'mnist'
    )


def test_environment_variable(folder, monkeypatch):
    monkeypatch.setenv('LRP_LOO_DATA', str(folder))
    assert load_texts('imdb').info['source'] == 'folder'
    assert load_texts('imdb', 'embedded').info['source'] == 'embedded'


def test_the_papers_depth_end_to_end(folder, paper_model, tmp_path, tokenizer):
    """Twelve layers: 34 rule sets, Tables 2 and A3 and Figure 2, every number
    of the paper's table beside one of ours.
    """
    assert (
        main(
            [
                'reproduce',
                '--data',
                str(folder),
                '--model',
                str(paper_model),
                '--only',
                'sst2',
                '--limit',
                '3',
                '--longest',
                '64',
                '--out',
                str(tmp_path),
            ]
        )
        == 0
    )
    where = tmp_path / 'results' / 'folder-bert-12'
    r = read_results(where / 'sst2.json')
    assert len(r['rows']) == 3 and set(sweep_methods(12)) | set(TABLE2) == set(
        r['rows'][0]['methods']
    )
    compared = table_a3_against_paper({'sst2': r})
    assert len(compared) == 144 and compared.ours.notna().all()
    saved = json.loads((where / 'against_paper.json').read_text())
    assert len(saved['numbers']) == 20 + 144 and len(saved['claims']) == 6
    assert (
        tmp_path / 'figures' / 'folder-bert-12' / 'figure2.png'
    ).stat().st_size > 10_000
    assert (
        str(folder) not in (where / 'sst2.json').read_text()
        and str(tmp_path) not in (where / 'sst2.json').read_text()
    )


def test_identities_of_table_a3(demo, tmp_path):
    """All layers from the front = all from the back = CP-LRP; first rows of
    two sweeps equal; no layer = AttnLRP: computed apart, not by sharing a
    name.
    """
    model, tokenizer = demo
    apart = {
        f'{s}{k}': (
            'attn_lrp',
            dict(bypass_softmax=list(sweep_layers(s, k, 6))),
        )
        for s in SWEEPS
        for k in (1, 6)
    } | {'none': ('attn_lrp', dict(bypass_softmax=[])), **TABLE2}
    r = text_experiment(
        tmp_path / 't.json',
        model,
        tokenizer,
        load_texts('sst2', 'embedded', limit=6),
        {},
        apart,
    )
    for a, b in (
        ('first6', 'last6'),
        ('first6', 'cp_lrp'),
        ('first1', 'single1'),
        ('last1', 'single6'),
        ('none', 'attn_lrp'),
    ):
        for c in ('loo_r', 'lerf', 'morf', 'delta'):
            assert np.allclose(
                per_text(r.rows, a, c),
                per_text(r.rows, b, c),
                atol=1e-5,
                equal_nan=True,
            ), (a, b, c)
    assert not np.allclose(
        per_text(r.rows, 'first6', 'loo_r'),
        per_text(r.rows, 'none', 'loo_r'),
        atol=1e-3,
    )


def test_a_killed_reproduce_keeps_its_rows(tmp_path):
    """Kill the command in the middle, look, start it again: the finished rows
    are the same bytes, none twice, none lost.
    """
    words = [
        sys.executable,
        '-c',
        'import sys; from lrp_loo.cli import main; sys.exit(main())',
        'reproduce',
        '--data',
        'embedded',
        '--only',
        'sst2',
        '--limit',
        '12',
        '--out',
        str(tmp_path),
    ]
    path = tmp_path / 'results' / 'embedded' / 'sst2.json'
    p = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(1200):
        time.sleep(0.1)
        if path.exists() and len(read_results(path)['rows']) >= 3:
            break
    p.send_signal(signal.SIGKILL)
    p.wait()
    kept = read_results(path)['rows']
    assert 3 <= len(kept) < 12
    subprocess.run(
        words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    r = read_results(path)
    rows = {x['i']: x for x in r['rows']}
    assert (
        len(r['rows']) == len(rows) == 12
        and all(rows[x['i']] == x for x in kept)
        and r['summary']['n'] == 12
    )


def test_an_adapter_is_trained_again(tmp_path, capsys):
    assert (
        main(
            [
                'train',
                'sst2',
                '--data',
                'embedded',
                '--limit',
                '16',
                '--out',
                str(tmp_path / 'a'),
            ]
        )
        == 0
    )
    assert 'accuracy' in capsys.readouterr().out and {
        p.name for p in (tmp_path / 'a').iterdir()
    } == {'adapter_model.safetensors', 'adapter_config.json', 'README.md'}
    card = (tmp_path / 'a' / 'README.md').read_text()
    assert (
        'epochs | 4' in card
        and 'seed | 0' in card
        and 'sentence-transformers/all-MiniLM-L6-v2' in card
    )
    assert load_demo('sst2', folder=tmp_path / 'a')[0].num_labels == 2
    assert main(['train', 'imdb2']) == 2


def test_training_needs_data_that_was_named(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv('LRP_LOO_DATA', raising=False)
    assert (
        main(['train', 'sst2', '--out', str(tmp_path)]) == 2
        and 'name a folder' in capsys.readouterr().err
        and not list(tmp_path.iterdir())
    )


def test_small_models_are_trained_again(tmp_path, capsys, folder):
    assert (
        main(
            [
                'train',
                'mnist',
                '--data',
                'embedded',
                '--limit',
                '256',
                '--out',
                str(tmp_path / 'v'),
            ]
        )
        == 0
        and 'accuracy' in capsys.readouterr().out
    )
    assert (
        load_demo('mnist', folder=tmp_path / 'v')[0].num_labels == 10
        and 'seed | 0' in (tmp_path / 'v' / 'README.md').read_text()
    )
    assert (
        main(
            [
                'train',
                'reviews',
                '--data',
                'embedded',
                '--limit',
                '4',
                '--out',
                str(tmp_path / 'l'),
            ]
        )
        == 0
        and 'nats per token' in capsys.readouterr().out
    )
    assert (
        main(
            [
                'train',
                'reviews-sst2',
                '--data',
                'embedded',
                '--limit',
                '16',
                '--out',
                str(tmp_path / 'c'),
            ]
        )
        == 0
        and 'accuracy' in capsys.readouterr().out
    )
    for f in tmp_path.glob('*/*'):
        assert f.suffix in ('.safetensors', '.json', '.md'), f


def test_beyond_end_to_end(tmp_path, folder, capsys):
    """The parts that are not the paper's: rows, tables, figures; on embedded
    data and on a folder.
    """
    assert (
        main(
            [
                'reproduce',
                '--data',
                'embedded',
                '--only',
                'beyond',
                '--limit',
                '2',
                '--out',
                str(tmp_path),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    where = tmp_path / 'results' / 'embedded'
    for part in (
        'conservation',
        'rewritings',
        'decoder',
        'lm',
        'lm-zero',
        'vit',
    ):
        r = read_results(where / f'{part}.json')
        assert (
            len(r['rows'])
            == (4 if part in ('conservation', 'rewritings') else 2)
            and f'{part}: ' in out
        )
    vit = read_results(where / 'vit.json')
    assert (
        vit['config']['data']['name'] == 'scikit-learn digits'
        and vit['rows'][0]['n_tokens'] == 49
        and abs(vit['rows'][0]['methods']['loo']['r'] - 1) < 1e-6
    )
    lm = read_results(where / 'lm.json')
    assert (
        lm['config']['data']['tokens'] == 'first 48'
        and lm['rows'][0]['n_tokens'] == 48
    )
    assert {p.name for p in (tmp_path / 'figures' / 'embedded').iterdir()} >= {
        'conservation.png',
        'beyond.png',
    }
    assert (
        main(
            [
                'reproduce',
                '--data',
                str(folder),
                '--only',
                'vit',
                '--limit',
                '2',
                '--out',
                str(tmp_path),
            ]
        )
        == 0
    )
    assert (
        main(
            [
                'reproduce',
                '--data',
                'embedded',
                '--only',
                'vit',
                '--model',
                'paper',
                '--out',
                str(tmp_path),
            ]
        )
        == 2
        and 'demo models' in capsys.readouterr().err
    )
    assert (
        main(
            [
                'reproduce',
                '--data',
                'embedded',
                '--only',
                'vit',
                '--limit',
                '3',
                '--out',
                str(tmp_path),
            ]
        )
        == 1
        and 'limit' in capsys.readouterr().err
    )  # rows of another run are not mixed


def test_explain_on_the_command_line_takes_units_and_targets(capsys):
    assert (
        main(
            [
                'explain',
                'A gripping, funny film.',
                '--units',
                'word',
                '--target',
                '1,0',
                '--json',
            ]
        )
        == 0
    )
    (a,) = json.loads(capsys.readouterr().out)
    assert a['tokens'] == [
        '[CLS]',
        'A',
        'gripping',
        ',',
        'funny',
        'film',
        '.',
        '[SEP]',
    ] and a['target'] == [1, 0]
    assert (
        main(
            [
                'explain',
                'The acting is',
                '--name',
                'reviews',
                '--method',
                'loo',
                '--target',
                ' bad',
            ]
        )
        == 0
        and 'bad' in capsys.readouterr().out
    )
    assert (
        main(['explain', 'fine', '--target', 'splendid']) == 1
        and 'negative, positive' in capsys.readouterr().err
    )
    assert (
        main(['explain', 'fine', '--name', 'mnist']) == 2
        and 'images' in capsys.readouterr().err
    )


@pytest.mark.parametrize('name', ['sst2', 'imdb'])
def test_what_ships(name):
    """Adapters of at most 2 MB, safetensors alone, with a card; enough texts
    of both classes; good answers on them.
    """
    folder = demo_folder(name)
    files = {p.name for p in folder.iterdir()}
    assert (
        files
        == {
            'adapter_model.safetensors',
            'adapter_config.json',
            'README.md',
        }
        and sum(p.stat().st_size for p in folder.iterdir()) <= 2 * 2**20
    )
    card = (folder / 'README.md').read_text()
    assert all(w in card for w in ('seed', 'accuracy', 'epochs', 'lr'))
    d = load_texts(name, 'embedded')
    assert (
        len(d) >= (200 if name == 'sst2' else 20)
        and len(set(d.texts)) == len(d)
        and 0.4 <= sum(d.labels) / len(d) <= 0.6
    )
    model, tokenizer = load_demo(name)
    assert accuracy(model, tokenizer, d.texts, d.labels) >= 0.85
    if name == 'imdb':
        assert all(
            150 <= len(tokenizer(t)['input_ids']) <= 400 for t in d.texts
        )


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    import lrp_loo.studies.reproduce as experiments

    def stop(*a, **k):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, 'text_experiment', stop)
    assert (
        main(
            [
                'reproduce',
                '--data',
                'embedded',
                '--only',
                'sst2',
                '--out',
                str(tmp_path),
            ]
        )
        == 130
        and 'goes on from there' in capsys.readouterr().err
    )


def test_same_seed_same_rows(demo, tmp_path):
    model, tokenizer = demo
    data = load_texts('sst2', 'embedded', limit=3, seed=5)
    a, b = (
        text_experiment(
            tmp_path / f'{n}.json', model, tokenizer, data, {}, TABLE2
        )
        for n in 'ab'
    )
    assert (tmp_path / 'a.json').read_bytes() == (
        tmp_path / 'b.json'
    ).read_bytes() and len(a.rows) == 3


def test_rows_of_another_model_are_not_mixed(demo, tmp_path):
    model, tokenizer = demo
    data = load_texts('sst2', 'embedded', limit=2)
    few = dict(loo=TABLE2['loo'])
    text_experiment(
        tmp_path / 't.json',
        model,
        tokenizer,
        data,
        describe_model(model, 'a'),
        few,
    )
    with pytest.raises(ValueError, match='model'):
        text_experiment(
            tmp_path / 't.json',
            model,
            tokenizer,
            data,
            describe_model(model, 'b'),
            few,
        )


BAD = [  # what is said, what must be named in the answer
    (lambda m, t: explain(m, t, ['']), 'empty'),
    (lambda m, t: explain(m, t, ['  \n\t']), 'empty'),
    (lambda m, t: explain(m, t, []), 'at least one'),
    (lambda m, t: explain(m, t, [None]), 'NoneType'),
    (
        lambda m, t: explain(m, t, ['word ' * 10_000]),
        '10002 tokens and the model takes 512',
    ),
    (
        lambda m, t: explain(m, t, ['fine'], method='lime'),
        "'lime' is not known; take one of loo",
    ),
    (lambda m, t: explain(m, t, ['fine'], target=2), 'target=2'),
    (lambda m, t: explain(m, t, ['fine'], target=-1), 'target=-1'),
    (lambda m, t: explain(m, t, ['fine'], target='splendid'), "'splendid'"),
    (lambda m, t: explain(m, t, ['fine'], method='loo', target=9), 'target=9'),
    (lambda m, t: explain(m, t, ['fine'], method='ig', n_steps=0), 'n_steps'),
    (
        lambda m, t: explain(m, t, ['fine'], bypass_softmax=[6]),
        r'layers \[6\]; this model has layers 0 to 5',
    ),
    (lambda m, t: explain(m, t, ['fine'], eps=-1.0), 'eps'),
    (lambda m, t: explain(m, t, ['fine'], colour='red'), 'colour'),
    (lambda m, t: explain(m, t, ['fine'], batch_size=0), 'batch_size'),
    (lambda m, t: explain(m, t, ['fine'], embeddings='position'), "'position'"),
    (
        lambda m, t: explain(m, t, ['fine'], method='loo', removal='burn'),
        "'burn'",
    ),
    (lambda m, t: explain(torch.nn.Linear(2, 2), t, ['fine']), 'Linear'),
    (lambda m, t: audit(m, t, ['fine'], methods=[]), 'methods is empty'),
    (lambda m, t: audit(m, t, ['fine', '']), 'empty'),
    (lambda m, t: load_texts('sst2', '/no/such/folder'), 'no data folder'),
    (lambda m, t: load_texts('news'), "'news'"),
    (lambda m, t: load_texts('sst2', 'embedded', split='train'), 'no split'),
    (lambda m, t: load_model('/no/such/model'), 'no model folder'),
    (lambda m, t: load_model('paper', 'mnist'), 'no model for'),
    (lambda m, t: faithfulness_table([]), 'no rows'),
    (lambda m, t: read_results('/no/such/file.json'), 'no results'),
]


@pytest.mark.parametrize('k', range(len(BAD)))
def test_bad_input_gets_a_clear_error(demo, k):
    call, said = BAD[k]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=said):
        call(*demo)


def test_nan_weights_are_named(tokenizer):
    model = random_bert(layers=1)
    with torch.no_grad():
        model.classifier.bias[0] = float('nan')
    for method in METHODS:
        with pytest.raises(ValueError, match='not finite|NaN'):
            explain(model, tokenizer, 'fine', method=method, target=0)


def test_a_folder_without_a_trained_head_is_refused():
    with pytest.raises(
        ValueError,
        match="no trained weights for classifier.bias, classifier.weight",
    ):
        load_model(str(demo_base()))


def test_training_mode_is_refused(tokenizer):
    with pytest.raises(ValueError, match='eval'):
        explain(random_bert(layers=1).train(), tokenizer, 'fine')


def test_folder_without_the_columns(tmp_path):
    (tmp_path / 'sst2').mkdir()
    datasets.Dataset.from_dict(dict(words=['fine'], label=[1])).to_parquet(
        str(tmp_path / 'sst2' / 'validation-00000-of-00001.parquet')
    )
    with pytest.raises(ValueError, match=r"\['label', 'sentence'\] are needed"):
        load_texts('sst2', tmp_path)


def test_truncation_where_it_was_asked_for(demo):
    model, tokenizer = demo
    a = explain(
        model, tokenizer, 'word ' * 600, method='cp_lrp', truncation=True
    )[0]
    assert len(a) == 512


def test_a_damaged_results_file_is_named(tmp_path):
    (tmp_path / 't.json').write_text('{"config": ')
    with pytest.raises(ValueError, match='not a results file'):
        Results(tmp_path / 't.json', {})


def test_against_paper_of_an_empty_folder(tmp_path):
    assert against_paper(tmp_path) == dict(numbers=[], claims=[])
