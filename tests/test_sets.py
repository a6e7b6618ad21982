"""The smallest sets of units that keep, or lose, most of what all units do, against all
2^n removals by the model's own masked forward; `is_redundant`; the model's own answer.
"""

from functools import partial
from itertools import combinations

import pytest
import torch
from bad_world import t5
from conftest import demo_or_skip, random_bert
from small_tokenizers import decoder_for, of_sentencepiece
from transformers import pipeline

from lrp_loo import attribute_context, explain, explain_generation, load, load_demo
from lrp_loo.cli import main
from lrp_loo.estimate.sets import Subsets, find_sets
from lrp_loo.records.attribution import Attribution

BAD = 'The acting is bad and the plot is bad .'
POPCORN = 'My sister liked the popcorn .'
PROGRESS = dict(progress=False)
IN_PROMPT = dict(question='The music is', template='{context} {question} ')


# ---- by hand


@torch.no_grad()
def log_prob_by_hand(model, ids, answer, mask):
    "The answer's log-probability, with some tokens masked."
    logits = model(input_ids=ids[None], attention_mask=mask[None].long()).logits[0]
    rows = logits[-len(answer) - 1 : -1].log_softmax(-1)
    return float(rows[torch.arange(len(answer)), torch.tensor(answer)].sum())


@torch.no_grad()
def logit_by_hand(model, ids, target, mask):
    "A class's logit, with some tokens masked."
    out = model(input_ids=ids[None], attention_mask=mask[None].long())
    return float(out.logits[0, target])


def table_by_hand(a, number_of):
    "{kept units: number} of all subsets of a record's content units."
    number = torch.tensor(a.info['unit_of_token'])
    units, table = a.is_content.nonzero()[:, 0].tolist(), {}
    for k in range(len(units) + 1):
        for kept in combinations(units, k):
            removed = [i for i in units if i not in kept]
            mask = ~torch.isin(number, torch.tensor(removed, dtype=torch.long))
            table[frozenset(kept)] = number_of(mask)
    return frozenset(units), table


def check_against(whole, table, a, share=0.9):
    "A record's two sets are smallest ones of a table by hand, with its numbers."
    f_none, total = table[frozenset()], table[whole] - table[frozenset()]
    assert a.total_effect == pytest.approx(total, abs=1e-3)
    kept = {units: (value - f_none) / total for units, value in table.items()}
    lost = {whole - units: 1 - part for units, part in kept.items()}
    for found, parts, name in (
        (a.sufficient, kept, 'kept'),
        (a.necessary, lost, 'lost'),
    ):
        assert list(found) == sorted(found)
        part = parts[frozenset(found)]
        assert part >= share - 1e-3
        assert a.info['sets'][name] == pytest.approx(part * total, abs=1e-3)
        size = min(len(units) for units, x in parts.items() if x >= share)
        assert len(found) == size


def context_by_hand(model, tokenizer, a, answer, **how):
    ids = tokenizer(answer, add_special_tokens=False)['input_ids']
    assert a.input_ids[-len(ids) :].tolist() == ids
    number_of = partial(log_prob_by_hand, model, a.input_ids, ids)
    check_against(*table_by_hand(a, number_of), a, **how)


@pytest.fixture(scope='module')
def reviews():
    return load_demo('reviews')


# ---- sets are the smallest of all subsets


CONTEXTS = {
    'two equal passages': [BAD, POPCORN, BAD],
    'two that say the same': [BAD, POPCORN, 'A bad plot , bad acting .'],
    'a distractor': [BAD, 'The popcorn was bad .', POPCORN, 'It rained .'],
    'none is relevant': [POPCORN, 'It rained .', 'The train was late .'],
    'one passage': [BAD],
}


@pytest.mark.parametrize('name', CONTEXTS)
def test_sets_of_passages_are_the_smallest(reviews, name):
    a = attribute_context(*reviews, CONTEXTS[name], 'bad', sets=0.9, **IN_PROMPT)
    context_by_hand(*reviews, a, ' bad')
    n = len(CONTEXTS[name])
    assert a.info['sets']['search'] == f'all {2**n} subsets'
    assert a.info['sets']['is_smallest'] == dict(sufficient=True, necessary=True)
    assert a.info['sets']['open'] == ''
    assert n < a.info['sets']['passes'] <= 2**n + 4


def test_sets_of_a_chat(reviews):
    model, tokenizer = demo_or_skip('smollm2')
    fact = 'The museum opens at ten.'
    passages = [fact, 'Dogs must wait outside.', fact]
    given = (passages, 'It opens at ten.', 'When does the museum open?')
    a = attribute_context(model, tokenizer, *given, sets=0.9)
    context_by_hand(model, tokenizer, a, 'It opens at ten.')
    assert len(a.sufficient) == 1 and {0, 2} <= {*a.necessary}
    assert a.is_redundant and 'some replace others' in repr(a)
    alone = attribute_context(model, tokenizer, passages[:2], *given[1:])
    assert alone.is_redundant is False and float(alone.scores[0]) > 5


@pytest.mark.parametrize('share', [0.5, 0.99])
def test_sets_of_words_are_the_smallest(share):
    model, tokenizer = load_demo('sst2')
    text = 'a gripping , funny and warm film'
    (a,) = explain(model, tokenizer, text, units='word', sets=share)
    number_of = partial(logit_by_hand, model, a.input_ids, a.target)
    check_against(*table_by_hand(a, number_of), a, share)
    assert not a.is_special[[*a.sufficient, *a.necessary]].any()


def test_sets_of_a_random_model_whatever_the_sign():
    model = random_bert()
    tokenizer = load_demo('sst2')[1]
    signs = set()
    for target in range(model.config.num_labels):
        for text in ('a slow film', 'never dull , never loud'):
            (a,) = explain(
                model, tokenizer, text, target=target, units='word', sets=0.8
            )
            number_of = partial(logit_by_hand, model, a.input_ids, a.target)
            check_against(*table_by_hand(a, number_of), a, 0.8)
            signs.add(a.total_effect > 0)
    assert False in signs


def test_sets_of_an_encoder_decoder():
    tokenizer, model = load_demo('sst2')[1], t5()
    with torch.no_grad():  # weights that matter
        for p in model.parameters():
            p.mul_(3)
    passages = ['The fox', 'a good row', 'a bad fox']
    template = '{context} a row'
    a = attribute_context(
        model, tokenizer, passages, 'a fox', sets=0.9, template=template
    )
    ids = tokenizer('a fox', add_special_tokens=False)['input_ids']
    source = a.input_ids[: len(a.info['unit_of_token']) - len(ids) - 1]
    start = torch.tensor([[0, *ids]])

    def number_of(mask):
        with torch.no_grad():
            logits = model(
                input_ids=source[None],
                attention_mask=mask[None, : len(source)].long(),
                decoder_input_ids=start,
            ).logits[0]
        rows = logits[: len(ids)].log_softmax(-1)
        return float(rows[torch.arange(len(ids)), torch.tensor(ids)].sum())

    check_against(*table_by_hand(a, number_of), a)


def test_sets_by_another_removal():
    model, tokenizer = load_demo('sst2')
    how = dict(method='loo', units='word', removal='mask_token', sets=0.9)
    (a,) = explain(model, tokenizer, 'a gripping , funny film', **how)

    def number_of(mask):
        ids = torch.where(mask, a.input_ids, tokenizer.mask_token_id)
        return logit_by_hand(model, ids, a.target, torch.ones_like(ids))

    check_against(*table_by_hand(a, number_of), a)


def test_sets_of_a_difference_of_two_answers(reviews):
    model, tokenizer = reviews
    a = attribute_context(
        *reviews, [BAD, POPCORN, BAD], target=('bad', 'good'), sets=0.9, **IN_PROMPT
    )
    ids = [
        tokenizer(x, add_special_tokens=False)['input_ids'] for x in (' bad', ' good')
    ]
    both = [torch.cat([a.input_ids[:-1], torch.tensor(i)]) for i in ids]

    def number_of(mask):
        first, second = (log_prob_by_hand(model, x, i, mask) for x, i in zip(both, ids))
        return first - second

    check_against(*table_by_hand(a, number_of), a)


def test_sets_of_each_sentence_of_an_answer(reviews):
    maps = attribute_context(
        *reviews,
        [BAD, POPCORN],
        'It was bad. I liked the popcorn.',
        answer_units='sentence',
        sets=0.9,
    )
    assert len(maps) == 2
    for a in maps:
        assert a.info['sets']['is_smallest'] == dict(sufficient=True, necessary=True)


# ---- the search


def test_halves_and_copies_of_a_rule():
    "f = c · max(a, b) of eleven units: a and b are copies, each a half with c."

    def read(kept):
        kept = kept.double()
        f = kept[:, :2].amax(1) * kept[:, 2] + 1e-3 * kept[:, 3:].sum(1)
        return f, len(kept)

    subsets = Subsets(read, 11, 0.9, None)
    sets = find_sets(subsets, lambda: [0b11, 0b1100])
    assert sets['sufficient'] in ([0, 2], [1, 2]) and sets['necessary'] == [2]
    assert sets['is_smallest']['necessary']
    assert sets['passes'] == len(subsets.values) < 2**11


def test_likely_pairs_find_what_greedy_steps_miss():
    "Removing a or b alone gains a little, removing both loses all."

    def read(kept):
        kept = kept.double()
        f = kept[:, :2].amax(1) - 0.02 * kept[:, :2].sum(1) + 0.01 * kept[:, 2:].sum(1)
        return f, len(kept)

    sets = find_sets(Subsets(read, 10, 0.9, None), lambda: [0b11, 0b1100])
    assert sets['necessary'] == [0, 1] and sets['is_smallest']['necessary']


@pytest.mark.parametrize('passes', [5, 12, 40])
def test_the_bound_is_kept_and_what_it_leaves_open_is_said(passes):
    model, tokenizer = load_demo('sst2')
    text = 'a gripping , funny and often warm film with a great cast'
    given = (model, tokenizer, text)
    (a,) = explain(*given, units='word', sets=0.9, passes=passes)
    sets = a.info['sets']
    assert sets['passes'] <= passes + 3  # the first batch is checked on the model
    assert 'bound' in sets['search'] and 'smaller set may exist' in sets['open']
    assert sets['open'] in repr(a) and sets['open'] in a._repr_html_()
    # what is returned holds, however few passes there were
    number = torch.tensor(a.info['unit_of_token'])
    content = a.is_content.nonzero()[:, 0].tolist()
    others = [i for i in content if i not in a.sufficient]
    f, f_none, alone, without = (
        logit_by_hand(model, a.input_ids, a.target, ~torch.isin(number, removed))
        for removed in map(torch.tensor, ([-9], content, others or [-9], a.necessary))
    )
    assert (alone - f_none) / (f - f_none) >= 0.9 - 1e-3
    assert (f - without) / (f - f_none) >= 0.9 - 1e-3


def test_similar_words_and_gradients_name_the_pair():
    model, tokenizer = load_demo('reviews')
    passages = [f'My {x} liked the popcorn .' for x in ('sister', 'aunt', 'cat', 'dog')]
    passages += ['It rained .', 'The train was late .', 'We ate cake .', BAD, BAD]
    a = attribute_context(
        model, tokenizer, passages, 'bad', sets=0.9, passes=200, **IN_PROMPT
    )
    assert a.info['sets']['search'].startswith('greedy')
    assert a.info['sets']['passes'] <= 200
    number = torch.tensor(a.info['unit_of_token'])
    ids = tokenizer(' bad', add_special_tokens=False)['input_ids']

    def number_of(removed):
        mask = ~torch.isin(number, torch.tensor(removed, dtype=torch.long))
        return log_prob_by_hand(model, a.input_ids, ids, mask)

    f, f_none = number_of([]), number_of([*range(9)])
    rest = [i for i in range(9) if i not in a.sufficient]
    assert (number_of(rest) - f_none) / (f - f_none) >= 0.9 - 1e-3
    assert (f - number_of([*a.necessary])) / (f - f_none) >= 0.9 - 1e-3


def test_no_effect_has_no_units():
    "A model that reads its last token alone."
    tokenizer = of_sentencepiece(['▁The', '▁fox', '▁a', '▁good', '▁bad', '▁row'])
    model = decoder_for(tokenizer)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    a = attribute_context(
        model,
        tokenizer,
        ['The fox', 'a row'],
        'good',
        sets=0.9,
        template='a {context} a',
    )
    assert a.total_effect == 0 and a.sufficient == a.necessary == ()
    assert a.is_redundant is False


# ---- is_redundant


def test_redundant_costs_one_row(reviews):
    how = dict(method='loo', **IN_PROMPT)
    a = attribute_context(*reviews, [BAD, POPCORN, BAD], 'bad', **how)
    T, first = len(a.input_ids), a.info['unit_of_token'].index(0)
    number = torch.tensor(a.info['unit_of_token'])
    rows = sum(T - int((number == i).nonzero()[0]) for i in range(3)) + T - first
    # the text, its variants, and one more that is checked on the model
    assert 1 + rows / T < a.passes < 2 + rows / T
    model, tokenizer = load_demo('sst2')
    (b,) = explain(model, tokenizer, 'a warm film', method='loo')
    assert b.passes == pytest.approx(1 + len(b) + 1, abs=1)
    f_none = logit_by_hand(model, b.input_ids, b.target, b.is_special)
    assert b.total_effect == pytest.approx(b.logit - f_none, abs=1e-4)


def test_the_rule(reviews):
    def record(scores, total, logit=4.0, **info):
        n = len(scores)
        info |= dict(exact=[*range(n)], total_effect=total)
        none, words = torch.zeros(n, dtype=torch.bool), [f'w{i}' for i in range(n)]
        return Attribution(
            words, torch.tensor(scores), none, 0, logit, 'loo', info=info
        )

    assert record([0.2, 0.2, 0.1], 2.0).is_redundant
    assert record([0.2, 0.2, 0.1], -2.0).is_redundant
    assert not record([0.6, 0.2, 0.1], 2.0).is_redundant  # one unit changes it
    assert not record([0.4, 0.4, 0.4], 2.0).is_redundant  # effects that add up
    assert not record([0.01, 0.02, 0.01], 0.3).is_redundant  # all change little
    assert record([0.01, 0.02, 0.01], 0.8, log_prob=True).is_redundant
    assert not record([0.01, 0.02, 0.01], 0.6, log_prob=True).is_redundant
    a = record([0.2, 0.2, 0.1], 2.0)
    (note,) = [line for line in repr(a).split('\n') if 'replace' in line]
    assert 'no single word changes this answer by more than 0.2' in note
    assert note.strip() in a._repr_html_() and a.to_dict()['is_redundant']


@pytest.mark.parametrize('method', ['attn_lrp', 'removal', 'ig'])
def test_methods_without_exact_rows(method):
    model, tokenizer = load_demo('sst2')
    (a,) = explain(model, tokenizer, 'a warm film', method=method)
    assert a.is_redundant is None and a.total_effect is None
    with pytest.raises(AttributeError, match='pass sets=0.9 to explain'):
        a.sufficient
    with pytest.raises(ValueError, match="take method='auto' or 'loo'"):
        explain(model, tokenizer, 'a warm film', method=method, sets=0.9)


def test_an_estimate_knows_no_redundancy_but_has_sets():
    model, tokenizer = load_demo('sst2')
    text = 'It drags, then it soars, then it drags again, and I would see it once more.'
    (a,) = explain(model, tokenizer, text, passes=4)
    assert not a.exact and a.is_redundant is None
    (a,) = explain(model, tokenizer, text, passes=4, sets=0.9)
    assert a.total_effect is not None and a.is_redundant is None and a.sufficient


def test_a_text_of_which_nothing_is_left():
    tokenizer = of_sentencepiece(['▁The', '▁fox', '▁a', '▁good', '▁bad', '▁row'])
    model = decoder_for(tokenizer)
    (a,) = explain(model, tokenizer, 'The fox a', method='loo')
    assert a.is_content.all() and a.is_redundant is None
    with pytest.raises(ValueError, match='bos_token'):
        explain(model, tokenizer, 'The fox a', sets=0.9)


@pytest.mark.parametrize('share', [0, 1, 1.5, 'all', True])
def test_a_share_lies_between_0_and_1(reviews, share):
    with pytest.raises(ValueError, match='sets must be a finite number'):
        explain(*load_demo('sst2'), 'a warm film', sets=share)
    with pytest.raises(ValueError, match='sets must be a finite number'):
        attribute_context(*reviews, BAD, 'bad', sets=share)


def test_parts_of_a_model_have_no_sets():
    with pytest.raises(ValueError, match='removes units of a text together'):
        explain(*load_demo('sst2'), 'a warm film', units='head', sets=0.9)


def test_sets_are_stored(reviews, tmp_path):
    a = attribute_context(*reviews, [BAD, POPCORN], 'bad', sets=0.9, **IN_PROMPT)
    a.save(tmp_path / 'a.json')
    b = load(tmp_path / 'a.json')
    assert (b.sufficient, b.necessary) == (a.sufficient, a.necessary)
    assert b.total_effect == a.total_effect and b.info['sets'] == a.info['sets']
    assert repr(b) == repr(a) and f'{a.total_effect:+.3g}' in repr(a)


def test_sets_of_a_function():
    def answer(texts):
        return [('good' in t or 'fine' in t) + 0.01 * len(t.split()) for t in texts]

    asked, how = [], dict(units='word', replacement='_', progress=False)
    function = lambda texts: asked.extend(texts) or answer(texts)  # noqa: E731
    (a,) = explain(function, None, 'a good fine film today', sets=0.9, **how)
    assert a.sufficient in [(1,), (2,)] and a.necessary == (1, 2)
    assert a.total_effect == pytest.approx(1) and a.is_redundant
    assert a.info['sets']['search'] == 'all 32 subsets'
    assert len(set(asked)) == a.passes + a.info['sets']['passes'] == 32
    passages = ['good one', 'a bad one', 'a fine one']
    b = attribute_context(
        function, None, passages, question='So?', sets=0.8, **PROGRESS
    )
    assert b.necessary == (0, 2) and len(b.sufficient) == 1
    text = 'a good fine film'  # without its words it is empty
    (c,) = explain(function, None, text, units='word', sets=0.9, **PROGRESS)
    assert c.total_effect == pytest.approx(1.04) and c.necessary == (1, 2)


# ---- the model's own answer


def own_answer(model, tokenizer, prompt, n):
    enc = tokenizer(prompt, return_tensors='pt')
    out = model.generate(**enc, do_sample=False, max_new_tokens=n)
    return out[0, enc['input_ids'].shape[1] :].tolist()


def test_the_model_writes_the_answer(reviews):
    model, tokenizer = reviews
    call = dict(question='The music is', template='{context} {question}')
    a = attribute_context(*reviews, [BAD, POPCORN], max_new_tokens=5, **call)
    ids = own_answer(model, tokenizer, f'{BAD}\n\n{POPCORN} The music is', 5)
    assert a.input_ids[-len(ids) :].tolist() == ids
    assert a.label == tokenizer.decode(ids)
    number_of = log_prob_by_hand(
        model, a.input_ids, ids, torch.ones(len(a.input_ids), dtype=torch.bool)
    )
    assert a.logit == pytest.approx(number_of, abs=1e-3)
    assert a.info['generation_config']['max_new_tokens'] == 5
    given = attribute_context(*reviews, [BAD, POPCORN], a.label, **call)
    assert torch.allclose(given.scores, a.scores, atol=1e-4)
    maps = attribute_context(*reviews, BAD, answer_units='word', max_new_tokens=5)
    assert len(maps) > 1


def test_a_pipeline_says_how_long_the_answer_is(reviews):
    model, tokenizer = reviews
    made = pipeline('text-generation', model, tokenizer=tokenizer, max_new_tokens=3)
    a = attribute_context(made, None, BAD, question='The music is')
    assert a.info['generation_config']['max_new_tokens'] == 3
    (steps,) = [explain_generation(model, tokenizer, f'{BAD}\n\nThe music is\n')]
    assert a.label == tokenizer.decode([t.target for t in steps[:3]])


def test_a_chat_answers_and_ends():
    model, tokenizer = demo_or_skip('smollm2')
    a = attribute_context(
        model, tokenizer, 'The museum opens at ten.', question='When?'
    )
    assert a.label and '<|im_end|>' not in a.label and a.info['chat']


def test_an_answer_that_is_empty(reviews, monkeypatch):
    model, tokenizer = reviews
    with pytest.raises(ValueError, match='answer is empty'):
        attribute_context(*reviews, BAD, '')
    ids = tokenizer(BAD, add_special_tokens=False)['input_ids']
    with monkeypatch.context() as m:
        m.setattr(
            model, 'generate', lambda input_ids, **how: torch.cat([input_ids, end], 1)
        )
        end = torch.tensor([[tokenizer.eos_token_id]])
        with pytest.raises(ValueError, match='writes no answer'):
            attribute_context(*reviews, BAD)
        end = torch.tensor([[*ids, tokenizer.eos_token_id]])
        assert attribute_context(*reviews, BAD).label == tokenizer.decode(ids)


# ---- the shell


def test_the_shell_names_sets(capsys):
    argv = ['context', f'{BAD} {POPCORN}', 'bad', '--sets', '0.9', '--question', 'The']
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert 'sufficient for 0.9 of' in out and 'necessary for 0.9 of' in out
    assert main(['context', BAD, '--question', 'The music is', '--json']) == 0
    assert '"total_effect"' in capsys.readouterr().out
