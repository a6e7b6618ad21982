"""Five jobs of a user, by this package, Captum, SHAP and inseq: lines of code and seconds.

    python research/benchmarks/five_jobs.py FOLDER TOOL …

Each function below is what a user writes once models, texts and imports are there; its
lines are counted as they stand, its docstring and comments left out. A tool that is not
named keeps its rows of research/results/five_jobs.json. The first run makes the models
in FOLDER and needs this package; a peer then runs by its own python. `CANNOT` says what
a peer has no call for. Models: the demo classifier (sst2), the small decoder (reviews),
and, for pairs and tags, two BERTs with random weights: answers mean nothing there.
"""

import inspect
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import transformers
from matplotlib import pyplot as plt

OUT = Path(__file__).parents[1] / 'results' / 'five_jobs.json'
CANNOT = {  # tool, job → why
    ('inseq', 'errors'): 'explains models that generate, no classifiers',
    ('inseq', 'trust'): 'explains models that generate, no classifiers',
    ('inseq', 'pair'): 'explains models that generate, no classifiers',
    ('inseq', 'tag'): 'explains models that generate, no classifiers',
    ('shap', 'trust'): 'has no comparison of methods on texts',
}
REVIEWS = ['A gripping, funny film.', 'Slow, and never funny.', 'Dull, but kind.']
MORE = [
    f'The {one} is {how}, but the {two} is {other}.'
    for one, two, how, other in (
        ('plot', 'cast', 'thin', 'a delight'),
        ('start', 'end', 'slow', 'a triumph'),
        ('music', 'story', 'fine', 'a mess'),
        ('idea', 'film', 'bold', 'a bore'),
        ('hero', 'joke', 'flat', 'a good one'),
        ('cast', 'script', 'kind', 'a failure'),
    )
]


def world(folder):
    "Return the models and texts of the jobs."
    auto = transformers
    kinds = dict(
        model=auto.AutoModelForSequenceClassification,
        lm=auto.AutoModelForCausalLM,
        nli=auto.AutoModelForSequenceClassification,
        tagger=auto.AutoModelForTokenClassification,
    )
    w = SimpleNamespace(texts=REVIEWS, labels=['positive', 'negative', 'positive'])
    for name, kind in kinds.items():
        tokenizer = auto.AutoTokenizer.from_pretrained(folder / name)
        setattr(w, name, kind.from_pretrained(folder / name).eval())
        setattr(w, f'{name}_tok', tokenizer)
    w.passages = ['The film is slow.', ' The actors are fine.', ' It has no jokes.']
    w.more = [*REVIEWS, *MORE]
    w.answer, w.pair = ' It is dull', ('a man plays the flute', 'nobody plays')
    w.sentence, w.folder = 'Ada met Grace in Paris', folder
    return w


def save_models(folder):
    "Write the four models."
    from lrp_loo import load_demo

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    sizes |= dict(num_attention_heads=4)
    torch.manual_seed(0)
    classifier, tokenizer = load_demo('sst2')
    made = dict(model=(classifier, tokenizer), lm=load_demo('reviews'))
    for name, kind, labels in (
        ('nli', 'SequenceClassification', ['entailed', 'neutral', 'contradicted']),
        ('tagger', 'TokenClassification', ['O', 'B-PER', 'B-LOC']),
    ):
        names = dict(id2label=dict(enumerate(labels)))
        names['label2id'] = {name: k for k, name in enumerate(labels)}
        config = transformers.BertConfig(**sizes, **names)
        model = getattr(transformers, f'BertFor{kind}')(config)
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.2)
        made[name] = (model, tokenizer)
    for name, parts in made.items():
        for part in parts:
            part.save_pretrained(folder / name)


# ------------------------------------------------------------- this package


def lrp_loo_errors(w, explain):
    maps = explain(w.model, w.model_tok, w.texts, units='word')
    errors = maps[maps.reasons()['predicted'] != w.labels]
    errors.reasons().save(w.folder / 'errors.csv')
    errors.save(w.folder / 'errors.html')
    errors.save(w.folder / 'errors.png')


def lrp_loo_passages(w, attribute_context):
    return attribute_context(w.lm, w.lm_tok, w.passages, w.answer)


def lrp_loo_trust(w, audit):
    return audit(w.model, w.model_tok, w.more, progress=False).best


def lrp_loo_pair(w, explain):
    return explain(w.nli, w.nli_tok, w.pair, units='word')[0]


def lrp_loo_tag(w, explain_entities):
    return explain_entities(w.tagger, w.tagger_tok, w.sentence, units='word')


# ------------------------------------------------------------------- Captum


def captum_errors(w, LayerIntegratedGradients, visualization):
    def logits(ids, mask):
        return w.model(ids, mask).logits

    ig = LayerIntegratedGradients(logits, w.model.get_input_embeddings())
    names, rows, records = w.model.config.id2label, [], []
    for text, label in zip(w.texts, w.labels):
        batch = w.model_tok(text, return_tensors='pt')
        ids, mask = batch['input_ids'], batch['attention_mask']
        out = logits(ids, mask)[0]
        k = int(out.argmax())
        if names[k] == label:
            continue
        baseline = torch.full_like(ids, w.model_tok.pad_token_id)
        scores = ig.attribute(ids, baseline, target=k, additional_forward_args=(mask,))
        scores, tokens = scores.sum(-1)[0].detach(), batch.tokens()
        best = scores.argsort(descending=True)[:3].tolist()
        rows.append((text, names[k], ' '.join(tokens[i] for i in best)))
        chances = float(out.softmax(-1)[k]), names[k], label, names[k]
        total = float(scores.sum())
        shown = visualization.VisualizationDataRecord
        records.append(shown(scores / scores.abs().max(), *chances, total, tokens, 0))
        plt.bar(range(len(tokens)), scores)
        plt.xticks(range(len(tokens)), tokens)
        plt.savefig(w.folder / 'errors.png')
    page = visualization.visualize_text(records).data
    (w.folder / 'errors.html').write_text(page)
    pd.DataFrame(rows).to_csv(w.folder / 'errors.csv')


def captum_passages(w, FeatureAblation, LLMAttribution, TextTemplateInput):
    llm = LLMAttribution(FeatureAblation(w.lm), w.lm_tok)
    read = TextTemplateInput('{}' * len(w.passages), values=w.passages)
    return llm.attribute(read, target=w.answer, use_cached_outputs=False).seq_attr


def captum_trust(
    w, FeatureAblation, LayerIntegratedGradients, LayerGradientXActivation
):
    def logits(ids, mask):
        return w.model(ids, mask).logits

    def ablated(mask, ids):
        return w.model(ids, mask).logits

    table = w.model.get_input_embeddings()
    methods = dict(
        ig=LayerIntegratedGradients(logits, table),
        grad_x_input=LayerGradientXActivation(logits, table),
    )
    r = {name: [] for name in methods}
    for text in w.more:
        batch = w.model_tok(text, return_tensors='pt')
        ids, mask = batch['input_ids'], batch['attention_mask']
        k = int(logits(ids, mask).argmax())
        how = dict(target=k, additional_forward_args=(ids,))
        loo = FeatureAblation(ablated).attribute(mask.float(), **how)[0, 1:-1]
        for name, method in methods.items():
            how = dict(target=k, additional_forward_args=(mask,))
            scores = method.attribute(ids, **how).sum(-1)[0, 1:-1].detach()
            r[name].append(np.corrcoef(scores, loo)[0, 1])
    return max(r, key=lambda name: np.mean(r[name]))


def captum_pair(w, FeatureAblation):
    batch = w.nli_tok(*w.pair, return_tensors='pt')
    ids, types = batch['input_ids'], batch['token_type_ids']

    def logits(mask):
        return w.nli(ids, mask, types).logits

    units = list(zip(batch.word_ids(), batch.sequence_ids()))
    places = {unit: k for k, unit in enumerate(dict.fromkeys(units))}
    groups = torch.tensor([[places[unit] for unit in units]])
    k, mask = int(logits(batch['attention_mask']).argmax()), batch['attention_mask']
    return FeatureAblation(logits).attribute(
        mask.float(), target=k, feature_mask=groups
    )


def captum_tag(w, FeatureAblation):
    batch = w.tagger_tok(w.sentence, return_tensors='pt')
    ids, mask = batch['input_ids'], batch['attention_mask']

    def logits(mask):
        return w.tagger(ids, mask).logits

    words = [-1 if k is None else k for k in batch.word_ids()]
    groups, maps = torch.tensor([words]) + 1, []
    for place, tag in enumerate(logits(mask)[0].argmax(-1).tolist()):
        if tag != w.tagger.config.label2id['O'] and words[place] >= 0:
            how = dict(target=(place, tag), feature_mask=groups)
            maps.append(FeatureAblation(logits).attribute(mask.float(), **how))
    return maps


# --------------------------------------------------------------------- SHAP


def shap_errors(w, shap):
    how = dict(model=w.model, tokenizer=w.model_tok, top_k=None)
    pipe = transformers.pipeline('text-classification', **how)
    found = [max(out, key=lambda x: x['score'])['label'] for out in pipe(w.texts)]
    wrong = [k for k, label in enumerate(w.labels) if found[k] != label]
    values = shap.Explainer(pipe)([w.texts[k] for k in wrong])
    page = shap.plots.text(values, display=False)
    (w.folder / 'errors.html').write_text(page)
    rows = []
    for one, k in zip(values, wrong):
        one = one[:, found[k]]
        best = np.argsort(-one.values)[:3]
        rows.append((w.texts[k], found[k], ' '.join(one.data[i] for i in best)))
        shap.plots.bar(one, show=False)
        plt.savefig(w.folder / 'errors.png')
    pd.DataFrame(rows).to_csv(w.folder / 'errors.csv')


def shap_passages(w, shap):
    n = len(w.lm_tok(w.answer, add_special_tokens=False)['input_ids'])

    @torch.no_grad()
    def score(keep):
        out = []
        for row in keep:
            text = ''.join(p for p, kept in zip(w.passages, row) if kept) + w.answer
            ids = w.lm_tok(text, return_tensors='pt')['input_ids']
            steps = w.lm(ids).logits[0, -n - 1 : -1].log_softmax(-1)
            out.append(float(steps.gather(1, ids[0, -n:, None]).sum()))
        return np.array(out)

    k = len(w.passages)
    masker = shap.maskers.Independent(np.zeros((1, k)))
    return shap.explainers.Exact(score, masker)(np.ones((1, k))).values


def shap_pair(w, shap):
    sep = ' [SEP] '

    @torch.no_grad()
    def logits(texts):
        pairs = [(one, two) for one, _, two in (t.partition(sep) for t in texts)]
        batch = w.nli_tok(pairs, padding=True, return_tensors='pt')
        return w.nli(**batch).logits.numpy()

    values = shap.Explainer(logits, shap.maskers.Text(r'\W+'))([sep.join(w.pair)])
    return values[0, :, int(logits([sep.join(w.pair)]).argmax())]


def shap_tag(w, shap):
    batch = w.tagger_tok(w.sentence, return_tensors='pt')
    tags = w.tagger(**batch).logits[0].argmax(-1).tolist()
    places = [i for i, tag in enumerate(tags) if tag != w.tagger.config.label2id['O']]

    @torch.no_grad()
    def logits(texts):
        batch = w.tagger_tok(list(texts), padding=True, return_tensors='pt')
        out = w.tagger(**batch).logits
        return np.stack([out[:, i, tags[i]].numpy() for i in places], 1)

    return shap.Explainer(logits, shap.maskers.Text(w.tagger_tok))([w.sentence])


# -------------------------------------------------------------------- inseq


def inseq_passages(w, inseq):
    model = inseq.load_model(w.lm, 'input_x_gradient', tokenizer=w.lm_tok)
    prompt = ''.join(w.passages)
    out = model.attribute(prompt, prompt + w.answer, show_progress=False)
    scores = out.sequence_attributions[0].target_attributions.sum(-1).nansum(-1)
    ends = np.cumsum([len(p) for p in w.passages])
    spans = w.lm_tok(prompt, return_offsets_mapping=True)['offset_mapping']
    groups = np.searchsorted(ends, [start for start, _ in spans], side='right')
    totals = [0.0] * len(w.passages)
    for k, score in zip(groups, scores):
        totals[min(k, len(totals) - 1)] += float(score)
    return totals


JOBS = ('errors', 'passages', 'trust', 'pair', 'tag')


def names_of(tool):
    "Import what a tool's programs use."
    if tool == 'captum':
        import captum.attr

        return vars(captum.attr)
    module = __import__(tool)
    if tool == 'lrp_loo':
        return {name: getattr(module, name) for name in module.__all__}
    return {tool: module}


def lines_of(program):
    "Count the lines of a program, without its head and blank lines."
    lines = [line.strip() for line in inspect.getsource(program).splitlines()]
    return sum(bool(line) for line in lines) - 1


def main(folder, *tools):
    folder = Path(folder)
    if not (folder / 'tagger').exists():
        save_models(folder)
    rows = json.loads(OUT.read_text(encoding='utf-8')) if OUT.exists() else []
    rows = [row for row in rows if row['tool'] not in tools]
    w = world(folder)
    for tool in tools:
        names = names_of(tool)
        for job in JOBS:
            row = dict(tool=tool, job=job)
            if reason := CANNOT.get((tool, job)):
                rows.append(row | dict(cannot=reason))
                continue
            program = globals()[f'{tool}_{job}']
            taken = list(inspect.signature(program).parameters)[1:]
            start = time.perf_counter()
            result = program(w, *(names[name] for name in taken))
            seconds = round(time.perf_counter() - start, 2)
            rows.append(row | dict(lines=lines_of(program), seconds=seconds))
            print(rows[-1], result if job == 'trust' else '')
    rows.sort(key=lambda row: (JOBS.index(row['job']), row['tool']))
    OUT.write_text(json.dumps(rows, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main(*sys.argv[1:])
