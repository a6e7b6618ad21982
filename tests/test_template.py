"""What a template adds is not what is asked about: marks, r, curves, views, files, refusals."""

import json

import pytest
import torch

from lrp_loo.inputs.targets import fix_index
from lrp_loo.cli import main
from lrp_loo.methods import explain
from lrp_loo.models.loading import load_demo
from lrp_loo.reports.page import page_data
from lrp_loo.reports.summary import summarize_texts
from lrp_loo.stats import agreement
from lrp_loo.tasks.pairs import explain_pairs
from lrp_loo.evaluate.audit import audit
from lrp_loo.evaluate.intervals import calibrate
from lrp_loo.evaluate.results import Results
from lrp_loo.records import load

REVIEW = 'Review: {text}\nIn short, the movie was'
FILM = 'a slow start, then a gripping , funny second half'


@pytest.fixture(scope='module')
def encoder():
    return load_demo('sst2')


@pytest.fixture(scope='module')
def decoder():
    return load_demo('reviews-sst2')


def content(a):
    return [t for t, own in zip(a.tokens, a.is_content) if own]


@pytest.mark.parametrize('kind', ['encoder', 'decoder'])
@pytest.mark.parametrize('units', ['token', 'word', 'sentence'])
def test_content_is_the_text_in_any_unit(kind, units, request):
    model, tokenizer = request.getfixturevalue(kind)
    (a,) = explain(model, tokenizer, FILM, 'loo', units=units, template=REVIEW)
    (alone,) = explain(model, tokenizer, FILM, 'loo', units=units)
    bare = [t.lstrip('Ġ▁') for t in content(alone)]
    assert [t.lstrip('Ġ▁') for t in content(a)] == bare
    assert not (a.is_content & a.is_special).any()
    assert a.info['template'] == REVIEW


def test_without_a_template_all_but_special_tokens_is_content(encoder):
    (a,) = explain(*encoder, FILM)
    assert a.is_content.equal(~a.is_special)


@pytest.mark.parametrize('method', ['auto', 'ig', 'attn_lrp', 'removal', 'rollout'])
def test_scores_are_those_of_the_whole_prompt(decoder, method):
    (a,) = explain(*decoder, FILM, method, template=REVIEW)
    (whole,) = explain(*decoder, REVIEW.format(text=FILM), method)
    torch.testing.assert_close(a.scores, whole.scores)


def test_an_audit_counts_the_text_alone(decoder):
    model, tokenizer = decoder
    texts = [FILM, 'two hours that no one gives back', 'fine , and not too long']
    results, methods = Results(None, {}), ('loo', 'cp_lrp')
    options = dict(template=REVIEW, progress=False, results=results)
    table = audit(model, tokenizer, texts, methods, **options)
    for row, text in zip(results.rows, texts):
        (loo,) = explain(model, tokenizer, text, 'loo', template=REVIEW)
        target = fix_index(None, loo.target)
        (cp,) = explain(
            model, tokenizer, text, 'cp_lrp', target=target, template=REVIEW
        )
        r = agreement(cp.scores, loo.scores, ~loo.is_content)
        assert row['methods']['cp_lrp']['r'] == pytest.approx(r, abs=1e-5)
        r_all = agreement(cp.scores, loo.scores, loo.is_special, specials=True)
        assert row['methods']['cp_lrp']['r_all'] == pytest.approx(r_all, abs=1e-5)
    without = audit(model, tokenizer, texts, methods, progress=False)
    whole = [REVIEW.format(text=t) for t in texts]
    prompts = audit(model, tokenizer, whole, methods, progress=False)
    assert table.loo_r['cp_lrp'] != prompts.loo_r['cp_lrp']
    assert table.loo_r['cp_lrp'] != without.loo_r['cp_lrp']
    spans = [(8, 8 + len(t)) for t in texts]
    among = audit(model, tokenizer, whole, methods, among=spans, progress=False)
    assert among.loo_r['cp_lrp'] == pytest.approx(table.loo_r['cp_lrp'])


def test_one_text_asked_about_twice_is_no_copy(decoder):
    halves = [(0, 12), (13, len(FILM))]
    table = audit(
        *decoder, [FILM] * 3, 'cp_lrp', among=[*halves, halves[0]], progress=False
    )
    assert table.n['cp_lrp'] == 2
    assert len(table.below) == 1


def test_views_and_files_leave_the_template_out(encoder, tmp_path):
    (a,) = explain(*encoder, FILM, template=REVIEW)
    assert all(t.is_content for t in a.top())
    assert 'special or template tokens' in a._repr_html_()
    assert a.to_frame().is_content.tolist() == a.is_content.tolist()
    for name in ('a.json', 'a.html', 'a.parquet'):
        a.save(tmp_path / name)
        assert load(tmp_path / name).is_content.equal(a.is_content)
    kept = json.loads((tmp_path / 'a.json').read_text())
    for m in kept['maps']:
        del m['is_content']
    (tmp_path / 'old.json').write_text(json.dumps(kept))
    old = load(tmp_path / 'old.json')
    assert old.is_content.equal(~old.is_special)


def test_a_chat_is_a_template(decoder, monkeypatch):
    model, tokenizer = decoder
    said = [dict(role='user', content='Is this good? {text} Say so.')]
    monkeypatch.setattr(tokenizer, 'chat_template', None)
    with pytest.raises(ValueError, match='no chat template'):
        explain(model, tokenizer, FILM, template=said)
    chat = "{% for m in messages %}you: {{ m['content'] }} me:{% endfor %}"
    monkeypatch.setattr(tokenizer, 'chat_template', chat)
    (a,) = explain(model, tokenizer, FILM, template=said)
    assert a.info['template'] == 'you: Is this good? {text} Say so. me:'
    (alone,) = explain(model, tokenizer, FILM)
    assert len(content(a)) == len(content(alone))
    monkeypatch.setattr(tokenizer, 'chat_template', 'hello')
    with pytest.raises(ValueError, match='drops the message'):
        explain(model, tokenizer, FILM, template=said)


@pytest.mark.parametrize(
    'options, error, said',
    [
        (dict(template='Review:'), ValueError, '0 times'),
        (dict(template='{text}{text}'), ValueError, '2 times'),
        (dict(template=3), TypeError, 'a str with {text}'),
        (dict(template='{text}', among=[(0, 3)]), ValueError, 'one of them'),
        (dict(template='{text}', truncation=True), ValueError, 'give shorter texts'),
        (dict(among=[(0, 999)]), ValueError, 'not in a text of'),
        (dict(among=[(0, 3), (2, 5)]), ValueError, 'overlap'),
        (dict(among=[]), ValueError, 'among='),
        (dict(among=5), TypeError, 'a list of them, got 5'),
        (dict(among=[(1, 2)]), ValueError, 'content has no token'),
        (dict(among=[(0, 3)]), ValueError, "'slow'"),
    ],
)
def test_what_cannot_be_combined_is_refused(encoder, options, error, said):
    with pytest.raises(error) as refused:
        explain(
            *encoder, 'a slow film' if 'slow' not in said else 'slow film', **options
        )
    assert said in str(refused.value)


def test_pairs_leave_the_template_out(encoder):
    (p,) = explain_pairs(*encoder, 'a slow film', 'exact', template=REVIEW)
    own = [i for i, c in enumerate(p.is_content) if c]
    assert [p.tokens[i] for i in own] == ['a', 'slow', 'film']
    assert {k for i, j, _ in p.strongest() for k in (i, j)} <= set(own)


def test_a_calibration_is_not_taken_into_a_template(encoder):
    few = ['a fine film', 'so dull', 'no']
    known = calibrate(*encoder, few, 'removal', progress=False)
    explain(*encoder, FILM, 'removal', calibration=known, confidence=0.5)
    for asked in (dict(template=REVIEW), dict(among=[(0, 6)])):
        with pytest.raises(ValueError, match='call calibrate for the latter'):
            explain(*encoder, FILM, 'removal', calibration=known, **asked)


def test_neither_a_pair_nor_an_encoding_has_a_template(encoder):
    model, tokenizer = encoder
    for given in (('a film', 'a play'), tokenizer('a film')):
        with pytest.raises(TypeError, match='template= is for single texts'):
            explain(model, tokenizer, given, template=REVIEW)


def test_the_command_line_takes_one(capsys):
    argv = ['explain', FILM, '--name', 'reviews-sst2', '--json']
    assert main([*argv, '--template', r'Review: {text}\nIn short, it was']) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert 0 < sum(row['is_content']) < len(row['tokens']) - 6
    assert main([*argv, '--template', 'Review:']) == 2
    assert '{text}' in capsys.readouterr().err


def test_a_page_and_a_summary_are_of_the_text(decoder):
    "What the page's script leaves out of r and colours; words of the template."
    model, tokenizer = decoder
    data = page_data(model, tokenizer, FILM, ['loo'], template=REVIEW)
    (loo,) = explain(model, tokenizer, FILM, 'loo', template=REVIEW)
    assert [t['special'] for t in data['tokens']] == (~loo.is_content).tolist()
    texts = [FILM, 'a slow film', 'a fine film', 'a dull film']
    given = dict(method='removal', target=1, min_count=2, progress=False)
    found = summarize_texts(model, tokenizer, texts, template=REVIEW, **given)
    said = set(found.to_frame().word)
    assert 'film' in said and said <= {w for t in texts for w in t.split()}
    with pytest.raises(ValueError, match='takes template=, not among='):
        summarize_texts(model, tokenizer, texts, among=[(0, 2)] * 4, **given)
