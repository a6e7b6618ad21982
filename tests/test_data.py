"A reader's own texts: separators, encodings, pairs, and rows without a text."

import pandas as pd
import pytest

from lrp_loo.data import read_texts


def written(tmp_path, content, name='a.csv'):
    "A file of one's own."
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    return path


@pytest.mark.parametrize('separator', [',', ';', '\t', '|'])
def test_the_separator_of_a_csv_is_found(tmp_path, separator):
    path = written(
        tmp_path, f'label{separator}text\n1{separator}a fine film\n0{separator}no\n'
    )
    d = read_texts(path)
    assert sorted(zip(d.texts, d.labels)) == [('a fine film', '1'), ('no', '0')]


def test_separators_inside_quoted_sentences_are_text(tmp_path):
    path = written(tmp_path, 'text;label\n"slow; but, in the end, fine";1\n')
    assert read_texts(path).texts == ['slow; but, in the end, fine']


def test_quoted_commas_in_a_file_of_one_column_are_text(tmp_path):
    path = written(tmp_path, 'text\n"slow, but fine"\n"no; not at all"\n')
    assert sorted(read_texts(path).texts) == ['no; not at all', 'slow, but fine']


def test_semicolons_in_sentences_do_not_make_a_separator(tmp_path):
    path = written(tmp_path, 'text,label\nslow; old; dull,0\nfine; warm; odd,1\n')
    assert sorted(read_texts(path).texts) == ['fine; warm; odd', 'slow; old; dull']


def test_a_header_with_two_separators_is_cut_where_the_text_column_appears(tmp_path):
    path = written(tmp_path, 'text;who, when, where\na fine film;me\n')
    assert read_texts(path).texts == ['a fine film']


def test_an_unquoted_comma_that_adds_a_column_is_refused(tmp_path):
    """pandas would take the first half of each sentence for a row's name and
    explain the second.
    """
    path = written(tmp_path, 'text\nslow, but fine\nold, but warm\n')
    with pytest.raises(
        ValueError,
        match=(
            'line 2 has 2 columns and the first line 1; a text that holds .,.'
            ' must stand in quotes'
        ),
    ):
        read_texts(path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = written(tmp_path, 'text,text\na,b\n')
    with pytest.raises(ValueError, match="two columns named 'text'"):
        read_texts(path)


def test_the_refusal_of_missing_texts_names_the_option(tmp_path):
    path = written(tmp_path, 'text,label\nfine,1\n ,0\n')
    with pytest.raises(
        ValueError,
        match=(
            'row 1 .counted from 0.; leave them out by skip_missing=True,'
            ' --skip-missing$'
        ),
    ):
        read_texts(path)


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


def test_a_blank_line_in_a_file_of_one_column_is_a_row_without_a_text(tmp_path):
    path = written(tmp_path, 'text\nfine\n\nno\n')
    with pytest.raises(ValueError, match='1 rows without a text, the first is row 1'):
        read_texts(path)
    assert read_texts(path, skip_missing=True).info['missing'] == dict(n=1, rows=[1])


@pytest.mark.parametrize('line', ['', ',', ' ,1'])
def test_no_kind_of_empty_row_is_skipped_in_silence(tmp_path, line):
    path = written(tmp_path, f'text,label\nfine,1\n{line}\nno,0\n\n')
    with pytest.raises(ValueError, match='1 rows without a text, the first is row 1'):
        read_texts(path)


def test_many_rows_without_a_text_are_counted_and_the_first_named(tmp_path):
    path = written(tmp_path, 'text,label\nfine,1\n' + ' ,0\n' * 40)
    assert read_texts(path, skip_missing=True).info['missing'] == dict(
        n=40, rows=list(range(1, 11))
    )


def test_nothing_but_rows_without_a_text_is_refused(tmp_path):
    path = written(tmp_path, 'text,label\n ,0\n')
    with pytest.raises(ValueError, match='no row with a text'):
        read_texts(path, skip_missing=True)


def test_a_number_is_not_a_missing_text(tmp_path):
    path = written(tmp_path, '{"text": 7}\n{"text": "fine"}\n', 'a.jsonl')
    with pytest.raises(
        ValueError, match="column 'text' of row 0 .counted from 0., but int"
    ):
        read_texts(path, skip_missing=True)


@pytest.mark.parametrize('encoding', ['latin-1', 'utf-16', 'cp1252'])
def test_an_encoding_can_be_named(tmp_path, encoding):
    path = written(tmp_path, 'text,label\na café film,1\n'.encode(encoding))
    assert read_texts(path, encoding=encoding).texts == ['a café film']


@pytest.mark.parametrize('content', ['text,label\nfine,1\n', 'label;text\n1;fine\n'])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, content):
    path = written(tmp_path, content.encode('utf-8-sig'))
    assert read_texts(path, column='text').texts == ['fine']
    assert read_texts(path).labels == ['1']


def test_a_file_that_cannot_be_decoded_names_the_option(tmp_path):
    path = written(tmp_path, 'text\ncafé\n'.encode('latin-1'))
    with pytest.raises(ValueError, match='cannot be read as utf-8.*--encoding'):
        read_texts(path)


def test_an_unknown_encoding_is_refused(tmp_path):
    path = written(tmp_path, 'text\nfine\n')
    with pytest.raises(ValueError, match="encoding 'utf-88' is not known"):
        read_texts(path, encoding='utf-88')


def test_two_columns_make_pairs(tmp_path):
    path = written(
        tmp_path, 'premise,hypothesis,label\na film,a work,1\nno film,a film,0\n'
    )
    d = read_texts(path, columns=('premise', 'hypothesis'))
    assert sorted(d.texts) == [('a film', 'a work'), ('no film', 'a film')]


def test_a_pair_that_lacks_a_half_is_a_row_without_a_text(tmp_path):
    path = written(tmp_path, 'a,b\nx,y\nx,\n')
    assert read_texts(path, columns=('a', 'b'), skip_missing=True).info[
        'missing'
    ] == dict(n=1, rows=[1])


@pytest.mark.parametrize('columns', ['ab', ('a',), ('a', 'a'), ('a', 'b', 'c')])
def test_a_pair_is_two_names(tmp_path, columns):
    path = written(tmp_path, 'a,b\nx,y\n')
    with pytest.raises(ValueError, match='two different names'):
        read_texts(path, columns=columns)


def test_a_column_and_a_pair_cannot_both_be_meant(tmp_path):
    path = written(tmp_path, 'a,b\nx,y\n')
    with pytest.raises(ValueError, match='cannot both be meant'):
        read_texts(path, column='a', columns=('a', 'b'))
