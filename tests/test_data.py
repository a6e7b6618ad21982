"A reader's own texts: separators, encodings, pairs, and rows without a text."

import pandas as pd
import pytest

from lrp_loo.data import read_texts

BOM = '\ufeff'
PAIR = dict(columns=('a', 'b'))
SKIP = dict(skip_missing=True)


def written(tmp_path, content, name='a.csv'):
    "A file of one's own."
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    return path


READ = {
    'a comma': ('label,text\n1,a fine film\n0,no\n', ['a fine film', 'no']),
    'a tab': ('label\ttext\n1\ta fine film\n0\tno\n', ['a fine film', 'no']),
    'quoted': ('text;label\n"slow; but, in the end";1\n', ['slow; but, in the end']),
    'one column': ('text\n"no, but"\n"yes; and"\n', ['no, but', 'yes; and']),
    'of the header': ('text,label\nold; dull; odd,0\n', ['old; dull; odd']),
    'where text is': ('text;who, when, where\na fine film;me\n', ['a fine film']),
    'a mark, then another': (f'{BOM}label;text\n1;fine\n', ['fine']),
    'Excel': ('sep=|\nlabel|text\n1|so, so; so\n', ['so, so; so']),
}


@pytest.mark.parametrize('content, texts', READ.values(), ids=READ)
def test_a_csv_is_read(tmp_path, content, texts):
    found = read_texts(written(tmp_path, content))
    assert sorted(found.texts) == texts
    if 'label' in content:
        wanted = {'a fine film': '1', 'no': '0'}
        for text, label in zip(found.texts, found.labels):
            assert label == wanted.get(text, label)


REFUSED = {
    'a blank row': ('text,label\nfine,1\n\nno,0\n\n', {}, '1 rows.*first is row 1'),
    'an empty row': ('text,label\nfine,1\n,\nno,0\n', {}, '1 rows.*first is row 1'),
} | {
    f'pair {columns}': ('a,b\nx,y\n', dict(columns=columns), 'two different names')
    for columns in ('ab', ('a', 'a'), ('a', 'b', 'c'))
}


@pytest.mark.parametrize('content, options, said', REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused(tmp_path, content, options, said):
    with pytest.raises(ValueError, match=said):
        read_texts(written(tmp_path, content), **options)


def test_a_number_is_not_a_missing_text(tmp_path):
    path = written(tmp_path, '{"text": 7}\n{"text": "fine"}\n', 'a.jsonl')
    said = "column 'text' of row 0 .counted from 0., but int"
    with pytest.raises(ValueError, match=said):
        read_texts(path, skip_missing=True)


WRITERS = {
    'a.csv': lambda d, path: d.to_csv(path, index=False),
    'a.tsv': lambda d, path: d.to_csv(path, index=False, sep='\t'),
    'a.json': lambda d, path: d.to_json(path, orient='records'),
    'a.jsonl': lambda d, path: d.to_json(path, orient='records', lines=True),
    'a.parquet': lambda d, path: d.to_parquet(path),
}


@pytest.mark.parametrize('name', WRITERS)
def test_rows_without_a_text_are_left_out_and_named(tmp_path, name):
    d = pd.DataFrame(dict(text=['fine', None, 'no', '  '], label=[1, 0, 0, 1]))
    WRITERS[name](d, tmp_path / name)
    found = read_texts(tmp_path / name, skip_missing=True)
    labels = [int(label) for label in found.labels]
    assert sorted(zip(found.texts, labels)) == [('fine', 1), ('no', 0)]
    assert found.info['missing'] == dict(n=2, rows=[1, 3])
    assert found.info['n_split'] == 2


MISSING = {
    'a blank line': ('text\nfine\n\nno\n', {}, [1]),
    'half of a pair': ('a,b\nx,y\nx,\n', PAIR, [1]),
    'many': ('text,label\nfine,1\n' + ' ,0\n' * 40, {}, range(1, 41)),
}


@pytest.mark.parametrize('content, options, rows', MISSING.values(), ids=MISSING)
def test_they_are_counted_and_the_first_named(tmp_path, content, options, rows):
    found = read_texts(written(tmp_path, content), **SKIP, **options)
    assert found.info['missing'] == dict(n=len(rows), rows=[*rows][:10])


@pytest.mark.parametrize('encoding', ['latin-1', 'utf-16', 'cp1252'])
def test_an_encoding_can_be_named(tmp_path, encoding):
    path = written(tmp_path, 'text,label\na café film,1\n'.encode(encoding))
    assert read_texts(path, encoding=encoding).texts == ['a café film']


def test_two_columns_make_pairs(tmp_path):
    path = written(tmp_path, 'a,b,label\na film,a work,1\nno film,a film,0\n')
    d = read_texts(path, **PAIR)
    assert sorted(d.texts) == [('a film', 'a work'), ('no film', 'a film')]
