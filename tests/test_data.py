"A user's own texts: kinds of files, encodings, pairs, and rows without a text."

import pandas as pd
import pytest

from lrp_loo.data import read_texts

BOM = '\ufeff'
PAIR = dict(column=('a', 'b'))


def written(tmp_path, content, name='a.csv'):
    "Write a file."
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    return path


@pytest.mark.parametrize(
    'name, content, texts',
    [
        ('a.csv', 'label,text\n1,a fine film\n0,no\n', ['a fine film', 'no']),
        ('a.csv', f'{BOM}label,text\n1,café\n', ['café']),
        ('a.csv', 'text,label\n"slow, but, in the end",1\n', ['slow, but, in the end']),
        ('a.csv', 'text\n"no, but"\n"yes; and"\n', ['no, but', 'yes; and']),
        ('a.csv', 'text,sentence\nfine,1\n', ['fine']),
        ('a.csv', '\n\nreview,label\nNA,1\nold; dull,0\n', ['NA', 'old; dull']),
        ('a.tsv', 'label\ttext\n1\tso, fine\n', ['so, fine']),
        (
            'a.txt',
            f'{BOM}fine, "so"\r\nNA\r\nno\u2028no\r\n\r\n',
            ['fine, "so"', 'NA', 'no\u2028no'],
        ),
    ],
)
def test_a_file_is_read(tmp_path, name, content, texts):
    found = read_texts(written(tmp_path, content, name))
    assert found.texts == texts  # in the order of the file
    assert found.info['n_split'] == len(texts)
    assert found.rows == list(range(len(texts)))


def test_a_separator_and_an_encoding_are_named_as_in_pandas(tmp_path):
    path = written(tmp_path, 'text;label\ncafé, fine;1\n'.encode('cp1252'))
    assert read_texts(path, sep=';', encoding='cp1252').texts == ['café, fine']
    with pytest.raises(ValueError, match='is not nonsense'):
        read_texts(path, encoding='nonsense')


def test_an_option_that_a_source_does_not_have_is_refused(tmp_path):
    lines = written(tmp_path, '{"text": "fine"}\n', 'a.jsonl')
    for source, option in (
        (lines, dict(sep=';')),
        ('embedded', dict(dropna=True)),
        ('embedded', dict(encoding='cp1252')),
    ):
        (name,) = option
        with pytest.raises(ValueError, match=f'has no use for {name}='):
            read_texts(source, **option)


WRITERS = {
    'a.csv': lambda d, path: d.to_csv(path, index=False),
    'a.tsv': lambda d, path: d.to_csv(path, index=False, sep='\t'),
    'a.json': lambda d, path: d.to_json(path, orient='records'),
    'a.jsonl': lambda d, path: d.to_json(path, orient='records', lines=True),
    'a.parquet': lambda d, path: d.to_parquet(path),
}


@pytest.mark.parametrize('name', WRITERS)
def test_rows_without_a_text_are_counted_and_the_first_named(tmp_path, name):
    d = pd.DataFrame(dict(text=['fine', None, 'no', '  '], label=[1, 0, 0, 1]))
    WRITERS[name](d, tmp_path / name)
    with pytest.raises(ValueError, match='2 rows without a text, the first is row 1'):
        read_texts(tmp_path / name)
    found = read_texts(tmp_path / name, dropna=True)
    assert found.rows == [0, 2] and found.info['n_split'] == 2
    labels = [int(label) for label in found.labels]
    assert list(zip(found.texts, labels)) == [('fine', 1), ('no', 0)]
    path = written(tmp_path, '', name)
    with pytest.raises(ValueError, match=f'{name} (is empty|cannot be read)'):
        read_texts(path)


def test_two_columns_make_pairs(tmp_path):
    path = written(tmp_path, 'a,b,label\na film,a work,1\nno film,a film,0\n')
    d = read_texts(path, **PAIR)
    assert d.texts == [('a film', 'a work'), ('no film', 'a film')]


@pytest.mark.parametrize(
    'name, content, options, message',
    [
        ('a.csv', 'text,label\nfine,1\n\nno,0\n\n', {}, '1 rows.*first is row 1'),
        ('a.csv', 'text,label\nfine,1\n,\nno,0\n', {}, '1 rows.*first is row 1'),
        ('a.csv', 'a,b\nx,y\nx,\n', PAIR, '1 rows.*first is row 1'),
        ('a.txt', '\nfine\n \nno', {}, '2 rows.*first is row 0'),
        (
            'a.jsonl',
            '{"text": 7}\n{"text": "fine"}\n',
            {},
            "'text' of row 0 .*, but int",
        ),
        ('a.csv', 'text;who, when\nfine;me, now\n', {}, 'which column of a.csv'),
        ('a.csv', b'text\n\xff\xfe', {}, 'a.csv is not utf-8'),
        *(
            ('a.csv', 'a,b\nx,y\n', dict(column=column), 'two different names')
            for column in (('a', 'a'), ('a', 'b', 'c'))
        ),
    ],
)
def test_what_is_refused(tmp_path, name, content, options, message):
    path = written(tmp_path, content, name)
    with pytest.raises(ValueError, match=message):
        read_texts(path, **options)
