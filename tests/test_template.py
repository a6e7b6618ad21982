"""What a template adds is not what is asked about: marks, r, curves, views, files, refusals."""

import copy
import json
import re

import pandas as pd
import pytest
from scipy.stats import pearsonr
import torch

from lrp_loo.evaluate.audit import frontier
from lrp_loo.inputs.targets import fix_index
from lrp_loo.cli import main
from lrp_loo.methods import explain
from lrp_loo.models.loading import load_demo
from lrp_loo.reports.page import page_data
from lrp_loo.reports.summary import summarize_texts
from lrp_loo.core.stats import agreement
from lrp_loo.tasks.generation import attribute_context, explain_generation
from lrp_loo.tasks.pairs import explain_pairs
from lrp_loo.evaluate.audit import audit
from lrp_loo.evaluate.intervals import calibrate
from lrp_loo.records.results import Results
from lrp_loo import load

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
    assert alone.is_content.equal(~alone.is_special)
    bare = [t.lstrip('Ġ▁') for t in content(alone)]
    assert [t.lstrip('Ġ▁') for t in content(a)] == bare
    assert not (a.is_content & a.is_special).any()
    assert a.info['template'] == REVIEW


@pytest.mark.parametrize('method', ['loo', 'attn_lrp'])
def test_spans_count_in_the_text(encoder, method):
    model, tokenizer = encoder
    prompt, start = REVIEW.format(text=FILM), REVIEW.index('{text}')
    spans = [(2, 12), (21, 29)]
    (a,) = explain(model, tokenizer, FILM, method, units=spans, template=REVIEW)
    assert a.tokens == ['slow start', 'gripping'] and a.is_content.all()
    enc = tokenizer(prompt, return_tensors='pt', return_offsets_mapping=True)
    places = enc.pop('offset_mapping')[0] - start
    (tokens,) = explain(model, tokenizer, prompt, method, target=a.target)
    for score, (first, last) in zip(a.scores, spans):
        gone = (places[:, 0] >= first) & (places[:, 1] <= last) & (places[:, 1] > 0)
        expected = tokens.scores[gone].sum()
        if method == 'loo':
            left = enc | dict(attention_mask=(~gone).long()[None])
            with torch.no_grad():
                expected = a.logit - model(**left).logits[0, a.target]
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_text_is_a_text_in_a_template(encoder):
    prompt, span = REVIEW.format(text=FILM), (8, 8 + len(FILM))
    one, other = ((FILM, dict(template=REVIEW)), (prompt, dict(among=span)))
    for units in ('word', 'sentence', 'token'):
        a, b = (explain(*encoder, x, units=units, **how)[0] for x, how in (one, other))
        assert a.is_content.equal(b.is_content) and not b.is_content.all()
        assert a.tokens == b.tokens and a.scores.equal(b.scores)
        assert a._repr_html_() == b._repr_html_()
    a, b = (explain_pairs(*encoder, x, 'exact', **how)[0] for x, how in (one, other))
    assert a.strongest() == b.strongest() and a.main.is_content.equal(b.main.is_content)
    how = dict(budgets=(4, 6), progress=False)
    a = frontier(*encoder, [FILM], template=REVIEW, **how)
    b = frontier(*encoder, [prompt], among=[span], **how)
    assert a.r.tolist() == b.r.tolist()
    (halves,) = explain(*encoder, prompt, among=[(8, 21), (21, span[1])])
    assert halves.is_content.equal(explain(*encoder, prompt, among=span)[0].is_content)


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
        how = dict(target=target, template=REVIEW)
        (cp,) = explain(model, tokenizer, text, 'cp_lrp', **how)
        r = agreement(cp.scores, loo.scores, ~loo.is_content)
        assert row['methods']['cp_lrp']['r'] == pytest.approx(r, abs=1e-5)
        r_all = agreement(cp.scores, loo.scores, loo.is_special, specials=True)
        assert row['methods']['cp_lrp']['r_all'] == pytest.approx(r_all, abs=1e-5)
    whole = [REVIEW.format(text=t) for t in texts]
    among = [(8, 8 + len(t)) for t in texts]
    parts = audit(model, tokenizer, whole, methods, among=among, progress=False)
    assert parts.loo_r['cp_lrp'] == pytest.approx(table.loo_r['cp_lrp'])


def test_two_parts_of_one_text_are_no_copies(decoder):
    halves = [(0, 12), (13, len(FILM))]
    among = [*halves, halves[0]]
    table = audit(*decoder, [FILM] * 3, 'cp_lrp', among=among, progress=False)
    assert table.n['cp_lrp'] == 2 and len(table.below) == 1


def test_views_and_files_leave_the_template_out(encoder, tmp_path):
    (a,) = explain(*encoder, FILM, template=REVIEW)
    assert all(t.is_content for t in a.top())
    assert 'special or template tokens' in a._repr_html_()
    assert a.to_frame().is_content.tolist() == a.is_content.tolist()
    a.save(tmp_path / 'a.json')
    assert load(tmp_path / 'a.json').is_content.equal(a.is_content)


# names of roles are words of the contents; white space is stripped; the system's
# message stands in the last user's
CHATS = [
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    '{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}',
    "{{ bos_token }}be kind {% for m in messages %}{{ m['role'] }}: {{ m['content']|trim"
    ' }} end {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}',
    "{{ bos_token }}{% for m in messages[1:] %}[{{ m['role'] }}] {{ m['content'] }} [/"
    "{{ messages[0]['content'] if loop.first }}] {% endfor %}",
]
TURNS = [
    dict(role='system', content='a user'),
    dict(role='user', content=' is the user: slow? '),
    dict(role='assistant', content='assistant says it is'),
]


def letters(text):
    return sorted(text.replace(' ', ''))


@pytest.mark.parametrize('n_turns', [2, 3])
@pytest.mark.parametrize('chat', CHATS)
@pytest.mark.parametrize('demo', ['reviews', 'reviews-sst2'])
def test_a_chat_is_read_as_its_tokenizer_formats_it(demo, chat, n_turns):
    model, tokenizer = load_demo(demo)
    tokenizer.chat_template = chat
    turns, how = TURNS[:n_turns], {}
    if demo == 'reviews':  # an answer that is begun is continued
        how = {['add_generation_prompt', 'continue_final_message'][n_turns - 2]: True}
    ids = tokenizer.apply_chat_template(turns, return_tensors='pt', **how)['input_ids']
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0]
    logits = logits[-1] if demo == 'reviews' else logits
    film = turns[1]['content']
    asking = [turns[0], dict(role='user', content='{text}'), *turns[2:]]
    a, _ = explain(model, tokenizer, [turns, turns[:2]], 'loo')
    (inside,) = explain(model, tokenizer, film, 'loo', template=asking)
    (spans,) = explain(model, tokenizer, turns, 'loo', units=[(8, 12), (14, 18)])
    for one in (a, inside, spans):
        assert one.input_ids.tolist() == ids[0].tolist()
        assert one.logit == pytest.approx(float(logits[one.target]), abs=1e-5)
    assert tokenizer.decode(ids[0][inside.is_content]).split() == film.split()
    if demo == 'reviews':
        (g,) = explain_generation(model, tokenizer, turns, max_new_tokens=1)
        assert g.is_content.equal(a.is_content)
    contents = ''.join(turn['content'] for turn in turns)
    assert letters(tokenizer.decode(ids[0][a.is_content])) == letters(contents)
    assert spans.tokens == ['user', 'slow']
    slow = a.scores[a.tokens.index('Ġslow')]
    torch.testing.assert_close(spans.scores[1], slow, rtol=1e-4, atol=1e-5)


ASKED = ['the film is slow and fine', 'a slow film', 'the cast is fine', 'no slow film']
CRITIC = [dict(role='system', content='a critic')]
ASKED = [[*CRITIC, dict(role='user', content=t)][i % 2 :] for i, t in enumerate(ASKED)]
ASKED[2] += [dict(role='assistant', content='it is slow')]


@torch.no_grad()
@pytest.mark.parametrize('demo, target', [('reviews-sst2', 1), ('reviews', (5, 9))])
def test_numbers_of_chats_are_those_of_their_ids(demo, target):
    "Words, of one token each, are masked by hand in what the tokenizer returns."
    model, tokenizer = load_demo(demo)
    tokenizer.chat_template = CHATS[0]
    how, loos, maps, rows = {}, [], [], []
    for k, turns in enumerate(ASKED):
        if demo == 'reviews':
            how = dict(add_generation_prompt=k != 2, continue_final_message=k == 2)
        text = tokenizer.apply_chat_template(turns, tokenize=False, **how)
        enc = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, tokens, words = torch.tensor([enc['input_ids']]), [], []
        for turn in turns:
            i, j = re.search(rf'(?<=\n){turn["content"]}', text).span()
            places = enumerate(enc['offset_mapping'])
            tokens += [k for k, (_, end) in places if i < end <= j]
            words += turn['content'].split()
        masks = torch.cat([torch.ones_like(ids), 1 - torch.eye(ids.numel())[tokens]])
        f = model(ids.expand(len(masks), -1), attention_mask=masks.long()).logits
        f = f[:, 1] if target == 1 else f[:, -1, 5] - f[:, -1, 9]
        loos.append((f[0] - f[1:]).tolist())
        (a,) = explain(model, tokenizer, dict(input_ids=ids), 'attn_lrp', target)
        maps.append(a.scores[tokens].tolist())
        rows += [(word, k, x) for word, x in zip(words, loos[-1], strict=True)]
    given = (model, tokenizer, ASKED)
    table = audit(*given, 'attn_lrp', target, progress=False)
    r = [pearsonr(*pair).statistic for pair in zip(loos, maps)]
    assert table.loo_r['attn_lrp'] == pytest.approx(sum(r) / len(r), abs=1e-5)
    c = calibrate(*given, 'attn_lrp', target=target, progress=False)
    for text, loo, scores in zip(c.texts, loos, maps, strict=True):
        assert text.loo == pytest.approx(loo, abs=1e-5)
        assert text.estimate.scores == pytest.approx(scores, abs=1e-5)
    s = summarize_texts(*given, 'loo', target, min_count=1, progress=False)
    mean = pd.DataFrame(rows).groupby([0, 1])[2].mean().groupby(level=0).mean()
    found = s.to_frame().set_index('word')['mean']
    assert dict(found) == pytest.approx(dict(mean), abs=1e-5)


@pytest.mark.parametrize(
    'chat, content, refusal',
    [
        (None, 'fine', 'no chat template'),
        ('hello', 'fine', 'leaves out the content'),
        ("{{ messages[0]['content'] * 2 }}", 'fine', 'repeats'),
        ("{{ messages[0]['content'] | upper }}", 'fine', 'changes'),
        ("{{ raise_exception('no such role') }}", 'fine', 'no such role'),
        (CHATS[0], [dict(type='image', url='a')], "model's processor"),
        (CHATS[0], ' ', 'chat is empty'),
    ],
)
def test_a_chat_that_hides_its_contents_is_refused(decoder, chat, content, refusal):
    model, tokenizer = decoder
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = chat
    with pytest.raises((TypeError, ValueError), match=refusal):
        explain(model, tokenizer, [dict(role='user', content=content)])


# jinja's errors, Python's, and the tokenizer's own
BROKEN = {
    'divides by zero': "{{ 1 / 0 }}",
    'divides a length by zero': "{{ messages | length // (messages | length - 1) }}",
    'syntax': "{% for m in messages %}{{ m.content }}",
    'unknown filter': "{{ messages | no_such_filter }}",
    'its own': "{{ raise_exception('no such role') }}",
    'adds a number to a str': "{{ messages[0]['content'] + 1 }}",
    'a key that is not there': "{{ messages[0]['name']['first'] }}",
    'calls a str': "{{ messages[0]['content']() }}",
    'calls itself': "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize('chat', BROKEN)
def test_a_chat_template_that_fails_is_refused_by_name(chat):
    model, tokenizer = load_demo('reviews')
    tokenizer.chat_template = BROKEN[chat]
    turns = [dict(role='user', content='fine')]
    calls = {
        'explain': lambda: explain(model, tokenizer, [turns]),
        'template=': lambda: explain(
            model, tokenizer, 'fine', template=[dict(role='user', content='{text}')]
        ),
        'explain_generation': lambda: explain_generation(model, tokenizer, turns),
        'attribute_context': lambda: attribute_context(model, tokenizer, 'a b.', 'c'),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match='the chat template refuses these 1') as e:
            call()
        assert 'set tokenizer.chat_template' in str(e.value)


def test_pairs_leave_the_template_out(encoder):
    (p,) = explain_pairs(*encoder, 'a slow film', 'exact', template=REVIEW)
    own = [i for i, c in enumerate(p.main.is_content) if c]
    assert [p.tokens[i] for i in own] == ['a', 'slow', 'film']
    assert {k for i, j, _ in p.strongest() for k in (i, j)} <= set(own)


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
    assert [bool(t['kind']) for t in data['tokens']] == (~loo.is_content).tolist()
    texts = [FILM, 'a slow film', 'a fine film', 'a dull film']
    given = dict(method='removal', target=1, min_count=2, progress=False)
    found = summarize_texts(model, tokenizer, texts, template=REVIEW, **given)
    said = set(found.to_frame().word)
    assert 'film' in said and said <= {w for t in texts for w in t.split()}
