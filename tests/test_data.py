"A reader's own texts: kinds of files, separators, encodings, pairs, and rows without a text."

import gzip
import importlib.util
import sys

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
    'a.csv.gz': lambda d, path: d.to_csv(path, index=False),
    'a.jsonl.gz': lambda d, path: d.to_json(path, orient='records', lines=True),
    'a.xlsx': lambda d, path: excel(path, one=d),
}
needs_openpyxl = pytest.mark.skipif(
    importlib.util.find_spec('openpyxl') is None, reason="openpyxl is not installed"
)


def excel(path, **sheets):
    "A file of Excel's."
    pytest.importorskip('openpyxl')
    with pd.ExcelWriter(path) as book:
        for name, d in sheets.items():
            d.to_excel(book, sheet_name=name, index=False)
    return path


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


def test_a_text_a_line(tmp_path):
    content = f'{BOM}fine, "so"\r\nNA\r\nno\u2028no\r\n\r\n'
    found = read_texts(written(tmp_path, content, 'a.txt'))
    assert sorted(found.texts) == ['NA', 'fine, "so"', 'no\u2028no']
    path = written(tmp_path, '\nfine\n \nno', 'b.txt')
    with pytest.raises(ValueError, match='2 rows without a text, the first is row 0'):
        read_texts(path)
    assert read_texts(path, **SKIP).info['missing'] == dict(n=2, rows=[0, 2])


@needs_openpyxl
def test_the_sheet_is_named_where_there_are_several(tmp_path):
    one, two = (pd.DataFrame(dict(text=[t, 'NA'], label=[1, 0])) for t in ('a', 'b'))
    none = pd.DataFrame()
    found = read_texts(excel(tmp_path / 'a.xlsx', one=one, none=none))
    assert sorted(zip(found.texts, found.labels)) == [('NA', 0), ('a', 1)]
    path = excel(tmp_path / 'b.xlsx', one=one, two=two)
    assert sorted(read_texts(path, split='two').texts) == ['NA', 'b']
    for split in (None, 'three'):
        with pytest.raises(ValueError, match='it has the sheets one, two; name one'):
            read_texts(path, split=split)
    with pytest.raises(ValueError, match="no text in column 'text' of row 0.*but int"):
        read_texts(excel(tmp_path / 'c.xlsx', one=pd.DataFrame(dict(text=[7]))))
    with pytest.raises(ValueError, match='c.xlsx cannot be read as xlsx: it is empty'):
        read_texts(excel(tmp_path / 'c.xlsx', one=none))


def test_openpyxl_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'openpyxl', None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lrp_loo\[xlsx\]'"):
        read_texts(written(tmp_path, 'x', 'a.xlsx'))


PACKED = gzip.compress(b'text\nfine\n' * 99)
DAMAGED = {
    'not packed': ('a.csv.gz', b'text\nfine\n', 'is not packed.*rename it a.csv$'),
    'packed': ('a.csv', PACKED, 'is packed by gzip; rename it a.csv.gz'),
    'cut off': ('a.csv.gz', PACKED[:-9], 'cannot be unpacked'),
    'garbled': ('a.csv.gz', PACKED[:12] + b'xx' + PACKED[14:], 'cannot be unpacked'),
    'packed parquet': ('a.parquet.gz', PACKED, 'is not a data file that can be read'),
    'no Excel': ('a.xlsx', b'PK', 'a.xlsx cannot be read as xlsx'),
} | {
    f'empty {name}': (name, content, f'{name} is empty')
    for name in (*WRITERS, 'a.txt')
    for content in [gzip.compress(b'\n') if name.endswith('.gz') else b'']
}


@pytest.mark.parametrize('name, content, said', DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_none(tmp_path, name, content, said):
    if content and name.endswith('.xlsx'):
        pytest.importorskip('openpyxl')
    with pytest.raises(ValueError, match=said):
        read_texts(written(tmp_path, content, name))
