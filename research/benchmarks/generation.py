"""Every generated token over all tokens before it: peers beside exact LOO.

Eight prompts, 20 tokens each by SmolLM2, greedily. The reference is exact
Leave-One-Out of every earlier token, by attention mask and by the padding token
in its place, of the number that a method explains (the generated token's logit
or log-probability). r is Pearson's, a generated token at a time, averaged. Each
method is asked in a process of its own, ours by `explain_generation`.

python research/benchmarks/generation.py [--only PEER] [--out FILE]
"""

import argparse
import tempfile

import torch
from peer_protocol import log_probs
from peers import (
    HERE,
    OURS,
    PEERS,
    correlation,
    cost,
    keep,
    mean,
    measure,
    python_of,
    runner_of,
    save,
    wanted,
)

from lrp_loo import load_demo
from lrp_loo.asked.targets import Target
from lrp_loo.loo import all_but_one, leave_one_out
from lrp_loo.trust.results import Results

OUT = HERE.parent / 'results' / 'benchmarks-generation.json'
PROMPTS = (
    'The three primary colours of paint are',
    'Water boils at a lower temperature on a mountain because',
    'My sister keeps bees in her garden. In spring, the bees',
    'To make a simple bread you need flour, water, salt and',
    'Tom lost his keys on Monday and found them on Friday. On Tuesday, Tom',
    'A bicycle has two wheels, and a tricycle has',
    'The train to the coast leaves at noon, so we have to',
    'An owl hunts at night, when mice and other small animals',
)
NEW_TOKENS = 20
REMOVALS = ('attention_mask', 'pad_token')
ALL, ONE = len(PROMPTS), 1
TWO_ROWS = dict(n_rows=2, rest=False)
ASKED = (  # whose, its method, options, prompts: one where it takes minutes
    (OURS, 'loo', {}, ALL),
    (OURS, 'removal+rows', TWO_ROWS, ALL),
    (OURS, 'attn_lrp', {}, ALL),
    (OURS, 'cp_lrp', {}, ALL),
    (OURS, 'removal', {}, ALL),
    (OURS, 'grad_x_input', {}, ALL),
    ('Inseq', 'input_x_gradient', {}, ALL),
    ('Inseq', 'attention', {}, ALL),
    ('Captum', 'ablation_at_once', {}, ALL),
    ('Captum', 'grad_x_input', {}, ALL),
    ('FlashTrace', 'ifr', {}, ALL),
    ('FlashTrace', 'attn_lrp', {}, ALL),
    ('Interpreto', 'occlusion', {}, ALL),
    ('Inseq', 'value_zeroing', {}, ALL),
    ('Captum', 'ablation', {}, ONE),
    ('Captum', 'ablation_no_cache', {}, ONE),
    ('Inseq', 'occlusion', {}, ONE),
    ('Captum', 'integrated_gradients', {}, ONE),
    ('Inseq', 'integrated_gradients', {}, ONE),
    ('Inseq', 'lime', {}, ONE),
    ('Inseq', 'reagent', {}, ONE),
)


def generated(model, tokenizer, prompt, n=NEW_TOKENS):
    "An item: the prompt and what the model says next, greedily."
    given = tokenizer(prompt, return_tensors='pt')
    k = given['input_ids'].shape[1]
    ids = model.generate(**given, max_new_tokens=n, do_sample=False)[0].tolist()
    if ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    text = tokenizer.decode(ids[k:])
    again = tokenizer(prompt + text)['input_ids']
    assert again == ids, f'{prompt!r}: what was said is read otherwise'
    item = dict(
        prompt=prompt, continuation=text, prompt_ids=ids[:k], continuation_ids=ids[k:]
    )
    return item | dict(log_probs=log_probs(model, item))


def ids_of(item):
    return torch.tensor([item['prompt_ids'] + item['continuation_ids']])


@torch.no_grad()
def _said(model, item, inputs):
    "(2, batch, generated) logits and log-probabilities of what was said."
    said = torch.tensor(item['continuation_ids'])
    rows = model(**inputs, logits_to_keep=len(said) + 1).logits[:, :-1]
    index = said.expand(len(rows), -1)[..., None]
    both = torch.stack([rows, rows.log_softmax(-1)])
    return both.gather(-1, index.expand(2, *index.shape))[..., 0]


def exact_loo(model, tokenizer, item, removal, batch=8):
    """By the plainest loop, a pass for each removed token: {'logit': (generated,
    tokens), 'log-prob': ...}.
    """
    ids = ids_of(item)
    keep = all_but_one(ids.shape[1])
    ones = torch.ones_like(ids)
    whole = _said(model, item, dict(input_ids=ids, attention_mask=ones))
    without = []
    for some in keep.split(batch):
        inputs = dict(input_ids=ids.expand(len(some), -1))
        if removal == 'attention_mask':
            inputs['attention_mask'] = some.long()
        else:
            pads = torch.full_like(ids, tokenizer.pad_token_id)
            inputs['input_ids'] = torch.where(some, ids, pads)
        without.append(_said(model, item, inputs))
    loo = (whole - torch.cat(without, 1)).transpose(1, 2)
    return dict(zip(('logit', 'log-prob'), loo))


def check_reference(model, tokenizer, item, reference):
    "The loop against the library, at the last generated token."
    ids = ids_of(item)[:, :-1]
    enc = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    target = Target(item['continuation_ids'][-1], position=-1, log_prob=True)
    loo, *_ = leave_one_out(model, enc, target)
    row = reference['attention_mask']['log-prob'][-1, : len(loo)]
    assert torch.allclose(row, loo, atol=1e-3), (row - loo).abs().max()


def agreement(answer, references):
    "Mean r of the answer's rows with each reference."
    kind = answer['explains'] if answer['explains'] == 'logit' else 'log-prob'
    return {
        f'r_{removal}': mean(
            correlation(row, exact.tolist())
            for item, reference in zip(answer['items'], references)
            if item['same_tokens']
            for row, exact in zip(item['scores'], reference[removal][kind])
        )
        for removal in REMOVALS
    }


def row_of(by, method, options, answer, references):
    row = dict(by=by, method=method, options=options)
    if 'error' in answer:
        return row | dict(error=answer['error'])
    row['explains'] = answer['explains']
    return row | agreement(answer, references) | cost(answer)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', choices=(*PEERS, OURS))
    parser.add_argument('--methods', nargs='+', help='all, unless named')
    parser.add_argument('--prompts', type=int, default=ALL)
    parser.add_argument('--out', default=str(OUT))
    return parser.parse_args()


def answers(args, model, tokenizer, items):
    "(whose, method, options, answer), as they are found."
    warm_up = generated(model, tokenizer, PROMPTS[0][:21], 2)
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        for by, method, options, n in ASKED:
            python = wanted(args, by, method) and python_of(by)
            if not python:
                continue
            question = dict(
                model=folder, task='generation', method=method, options=options
            )
            asked = question, items[:n], warm_up, model
            yield by, method, options, measure(python, runner_of(by), *asked)


def main():
    args = arguments()
    torch.set_num_threads(1)
    model, tokenizer = load_demo('smollm2')
    model.requires_grad_(False)
    prompts = PROMPTS[: args.prompts]
    items = [generated(model, tokenizer, prompt) for prompt in prompts]
    references = []
    for item in items:
        exact = {r: exact_loo(model, tokenizer, item, r) for r in REMOVALS}
        references.append(exact)
    check_reference(model, tokenizer, items[0], references[0])
    config = dict(
        experiment='peers on generated tokens',
        model='smollm2-135m-instruct',
        prompts=prompts,
        new_tokens=NEW_TOKENS,
        tokens=[ids_of(item).shape[1] for item in items],
        in_passes="seconds over those of one forward pass, in turn",
        threads=1,
    )
    # a part of the methods is measured into the file of all
    part = args.only or args.methods
    results = Results(args.out, config, fresh=not part)
    order = [tuple(named) for *named, _ in ASKED]
    for *named, answer in answers(args, model, tokenizer, items):
        keep(results, row_of(*named, answer, references), order)


if __name__ == '__main__':
    main()
