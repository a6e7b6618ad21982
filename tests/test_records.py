"""Every result has the same five: a file, a table, a dictionary, a view and a short
`repr`.
"""

import copy
import json
import re

import pandas as pd
import pytest

import lrp_loo
from lrp_loo import load
from lrp_loo.records.attributions import Comparison
from lrp_loo.records.base import KINDS, Record, Table

TEXTS = [
    'A gripping, funny film that never once talks down to us.',
    'The jokes are old, and the pace is slow.',
    'A warm film with a quiet end.',
    'Nothing in it is new, and none of it is true.',
    'You will not forget the last ten minutes.',
    'A slow start, but the last act is a triumph.',
]
QUIET = dict(progress=False)


def explanations(demo):
    "Those that `views` shows."
    maps = lrp_loo.explain(*demo, TEXTS[:2], 'cp_lrp')
    (pairs,) = lrp_loo.explain_pairs(*demo, TEXTS[:1])
    decoder = lrp_loo.load_demo('reviews')
    said = lrp_loo.explain_generation(*decoder, 'The film', max_new_tokens=2)
    several = [lrp_loo.explain(*demo, TEXTS[:2], m) for m in ('cp_lrp', 'attn_lrp')]
    return dict(
        one=maps[0],
        texts=maps,
        comparison=Comparison([of[0] for of in several]),
        pairs=pairs,
        generation=said,
    )


def results(demo):
    "All others."
    method = ['loo', 'auto', 'removal', 'cp_lrp', 'rollout']
    table = lrp_loo.audit(*demo, TEXTS, method, **QUIET)
    calibration = lrp_loo.calibrate(*demo, TEXTS * 2, 'removal', **QUIET)
    tokens = dict(calibration=calibration, confidence=0.5)
    words = [
        lrp_loo.summarize_texts(*demo, TEXTS, m, 1, min_count=1, **QUIET)
        for m in ('cp_lrp', 'removal')
    ]
    with lrp_loo.lrp_rules(demo[0], lrp_loo.attn_lrp()) as rules:
        out = demo[0](**demo[1](TEXTS[0], return_tensors='pt'))
        out.logits[0, 1].backward()
    return dict(
        audit=table,
        frontier=lrp_loo.frontier(*demo, TEXTS, budgets=(3, 5), **QUIET),
        verdict=lrp_loo.verdict(table),
        calibration=calibration,
        top=lrp_loo.top_tokens(*demo, TEXTS[0], 1, **tokens),
        summary=words[0],
        differing=lrp_loo.compare_summaries(*words),
        diagnosis=lrp_loo.diagnose(
            *demo, TEXTS, [0] * len(TEXTS), min_count=1, **QUIET
        ),
        report=rules.report(),
        texts=lrp_loo.load_texts('sst2', 'embedded', limit=4),
    )


@pytest.fixture(scope='module')
def records(demo):
    return {f'views: {k}': v for k, v in explanations(demo).items()} | results(demo)


NAMES = [f'views: {k}' for k in 'one texts comparison pairs'.split()]
NAMES += ['views: generation', 'audit', 'frontier', 'verdict', 'calibration']
NAMES += ['top', 'summary', 'differing', 'diagnosis', 'report', 'texts']
every_record = pytest.mark.parametrize('name', NAMES)


def test_none_is_left_out(records):
    "Neither here nor of those that `load` reads."
    assert list(records) == NAMES
    kinds = {type(r).__name__ for r in records.values() if isinstance(r, Record)}
    assert set(KINDS) <= kinds


@every_record
def test_a_record_has_the_five(records, name, tmp_path):
    record = records[name]
    frame = record.to_frame()
    assert isinstance(frame, pd.DataFrame) and len(frame)
    assert json.loads(json.dumps(record.to_dict()))
    assert 'lrp-loo' in record._repr_html_()
    # in a terminal of 100 columns; an explanation is one line for each text
    lines = repr(record).splitlines()
    shown = [line[i : i + 100] for line in lines for i in range(0, len(line), 100)]
    assert 1 <= len(shown) <= 12, repr(record)
    assert shown == lines or name.startswith('views: '), repr(record)
    is_drawn = name in ('views: one', 'views: texts', 'views: pairs')
    pictures = ['.png', '.pdf', '.svg'] * is_drawn
    printed = ['.tex'] * bool(record.tex_columns if isinstance(record, Record) else 0)
    for suffix in ('.json', '.html', *pictures, *printed):
        record.save(tmp_path / f'it{suffix}')
        assert (tmp_path / f'it{suffix}').stat().st_size > 100
    with pytest.raises(ValueError, match='must end in'):
        record.save(tmp_path / ('it.gif' if is_drawn else 'it.png'))


@pytest.mark.parametrize(
    ('name', 'columns'),
    {
        'audit': 'method & loo_r & loo_r_se & lerf & morf & passes & n',
        'summary': 'class & word & mean & low & high & texts',
        'differing': 'class & word & first & second & difference & low & high',
        'views: comparison': 'token & cp_lrp & attn_lrp',
    }.items(),
)
def test_a_table_for_a_paper(records, name, columns, tmp_path):
    record = records[name]
    record.save(tmp_path / 'it.tex')
    head, rule, *rows = (tmp_path / 'it.tex').read_text().splitlines()[2:]
    assert head.replace('\\_', '_') == columns + r' \\'
    assert rule == r'\midrule'
    numbers = [x for row in rows for x in row.split() if re.fullmatch(r'-?\d+\.\d+', x)]
    assert numbers and all(len(x.partition('.')[2]) == 3 for x in numbers)


@every_record
def test_load_reads_what_was_saved(records, name, tmp_path):
    record = records[name]
    record.save(tmp_path / 'it.json')
    again = load(tmp_path / 'it.json')
    assert type(again) is type(record)
    assert json.dumps(again.to_dict()) == json.dumps(record.to_dict())
    assert again.to_frame().equals(record.to_frame())
    assert repr(again) == repr(record)


def test_a_table_whose_columns_have_equal_names_is_shown_and_read(tmp_path):
    table = Table([[0.125] * 40], columns=['first', *['word'] * 39])
    assert 'columns word, word' in repr(table)
    table.save(tmp_path / 'table.json')
    pd.testing.assert_frame_equal(load(tmp_path / 'table.json'), table)


def test_what_is_no_record_is_refused(tmp_path):
    for name, content, message in (
        ('old.json', '{"format": "lrp_loo attributions 1"}', "but 'lrp_loo attrib"),
        ('other.json', '{"a": 1}', 'holds no'),
        ('a.html', '<p>', 'must end in .json'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name)


def test_a_part_of_a_table_says_what_the_table_says(records):
    part = records['frontier'][['r', 'passes']].round(1)
    assert part.needed == records['frontier'].needed
    assert repr(part).endswith(records['frontier'].needed.split()[-1])


# ---- which units are exact is read in one way


def exact_calls(demo, decoder):
    "Name → explanations, and what is exact in them."
    text, both = 'a fine film', demo
    generated = lrp_loo.explain_generation(*decoder, 'The film', max_new_tokens=3)
    estimated = lrp_loo.explain(*both, 'a fine film with a dull end', passes=4)
    contrast = lrp_loo.attribute_context(
        *decoder, 'It is dull. It ends.', target=(' good', ' bad')
    )
    return {
        'auto': (lrp_loo.explain(*both, text), all),
        'loo': (lrp_loo.explain(*both, text, 'loo'), all),
        'words': (lrp_loo.explain(*both, text, 'loo', units='word'), all),
        'another removal': (lrp_loo.explain(*both, text, 'loo', removal='delete'), all),
        'parts': (lrp_loo.explain(*both, text, 'loo', units='layer'), all),
        'generated': (list(generated), all),
        'two answers': ([contrast], all),
        'estimate of rows': (estimated, None),
        'estimate': ([lrp_loo.refine(estimated[0], 2)], any),
        'refined': ([lrp_loo.refine(estimated[0], 99)], all),
        'removal': (lrp_loo.explain(*both, text, 'removal'), None),
        'gradient': (lrp_loo.explain(*both, text, 'grad_x_input'), None),
    }


def test_exact_units_is_a_list_in_every_record(demo, tmp_path):
    decoder = lrp_loo.load_demo('reviews')
    for name, (maps, which) in exact_calls(demo, decoder).items():
        for a in maps:
            units = a.exact_units
            assert isinstance(a.info.get('exact', []), list), name
            flags = [i in units for i in range(len(a))]
            assert len(units) == sum(flags), name  # none is out of range, or twice
            assert a.exact == (which is all) == all(flags), name
            assert any(flags) == (which is not None), name
            a.save(tmp_path / 'a.json')
            assert lrp_loo.load(tmp_path / 'a.json').exact_units == units, name


@pytest.mark.parametrize('exact', [True, False])
def test_a_file_of_a_version_that_stored_a_bool_is_read(demo, tmp_path, exact):
    (a,) = lrp_loo.explain(*demo, 'a fine film', 'loo')
    a.save(tmp_path / 'a.json')
    stored = json.loads((tmp_path / 'a.json').read_text())
    stored['record']['fields']['info']['exact'] = exact
    stored.pop('checksum', None)  # that version wrote none
    (tmp_path / 'a.json').write_text(json.dumps(stored))
    b = lrp_loo.load(tmp_path / 'a.json')
    assert b.exact == b.content_is_exact == exact
    assert b.exact_units == (list(range(len(a))) if exact else [])
    stored['record']['fields']['info']['exact'] = 'yes'
    (tmp_path / 'a.json').write_text(json.dumps(stored))
    with pytest.raises(ValueError, match='exact'):
        lrp_loo.load(tmp_path / 'a.json')


@pytest.mark.parametrize('name, near', [('top_k', 'top'), ('to_datframe', 'to_frame')])
def test_the_error_for_a_wrong_name_has_the_nearest_one(name, near):
    (a,) = lrp_loo.explain(*lrp_loo.load_demo('reviews-sst2'), TEXTS[:1], 'cp_lrp')
    with pytest.raises(AttributeError, match=f"'{name}'; did you mean '{near}'"):
        getattr(a, name)
    assert copy.deepcopy(a).tokens == a.tokens and not hasattr(a, '_none')
