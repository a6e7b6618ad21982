"""One sentence in the views of SHAP, Captum, bertviz and here, and what a language
model goes on with in Inseq's view and ours. Each by its own python.

    python research/benchmarks/beside.py FOLDER

The models and each view as HTML go into FOLDER, the numbers to results/beside.json,
the views joined by Chromium to figures/beside.png. Variables name the peers' pythons
(LRP_LOO_SHAP_PYTHON and likewise CAPTUM, BERTVIZ, INSEQ). bertviz' page fetches its
three libraries; here it takes d3.min.js, jquery.min.js and require.js of FOLDER.
"""

import html
import json
import os
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

TEXT = 'A gripping, funny film that never once talks down to us.'
NEW = 8  # generated tokens
TIMES = 3
LAB = Path(__file__).resolve().parents[1]
SCRIPTS = dict(d3='d3.min.js', jquery='jquery.min.js', require='require.js')


def timed(explained):
    """What a second call gives (a first builds what is kept), and its median seconds:
    by the clock, and of the processor, which other work on the machine hardly changes.
    """
    explained()
    clocks = (time.perf_counter, time.process_time)
    spent = []
    for _ in range(TIMES):
        start = [clock() for clock in clocks]
        found = explained()
        spent.append([clock() - t for clock, t in zip(clocks, start)])
    return found, dict(zip(('seconds', 'cpu'), map(statistics.median, zip(*spent))))


# ---- the peers: what each one's own documentation does


def shap(folder, _):
    from shap import Explainer, maskers, plots
    from shap.models import TransformersPipeline
    from transformers import pipeline

    asked = pipeline('text-classification', model=f'{folder}/sst2', top_k=None)
    asked = TransformersPipeline(asked, rescale_to_logits=True)
    explainer = Explainer(asked, maskers.Text(asked.inner_model.tokenizer), silent=True)
    found, spent = timed(lambda: explainer([TEXT]))
    k = list(found.output_names).index('positive')
    return dict(
        how='its text explainer: Shapley values of the log-odds',
        **spent,
        tokens=[t.strip() for t in found.data[0]],
        scores=found.values[0][:, k].tolist(),
        html=plots.text(found[0, :, k], display=False),
    )


def captum(folder, _):
    import torch
    from captum.attr import LayerIntegratedGradients
    from captum.attr import visualization as v
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(f'{folder}/sst2').eval()
    tokenizer = AutoTokenizer.from_pretrained(f'{folder}/sst2')
    batch = tokenizer(TEXT, return_tensors='pt')
    ids = batch.input_ids
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    start = torch.where(special, ids, tokenizer.pad_token_id)
    gradients = LayerIntegratedGradients(
        lambda ids: model(ids).logits, model.get_input_embeddings()
    )
    more = dict(target=1, n_steps=50, return_convergence_delta=True)
    (found, delta), spent = timed(lambda: gradients.attribute(ids, start, **more))
    scores = found.sum(-1)[0].detach()
    p = float(model(ids).logits.softmax(-1)[0, 1].detach())
    said = ('positive', 'positive', 'positive', float(scores.sum()), batch.tokens())
    record = v.VisualizationDataRecord(scores / scores.norm(), p, *said, float(delta))
    return dict(
        how='LayerIntegratedGradients from [PAD], 50 steps, of the logit',
        **spent,
        tokens=batch.tokens(),
        scores=scores.tolist(),
        html=v.visualize_text([record]).data,
    )


def bertviz(folder, _):
    from bertviz import head_view
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(f'{folder}/sst2')
    model = AutoModelForSequenceClassification.from_pretrained(
        f'{folder}/sst2', attn_implementation='eager', output_attentions=True
    ).eval()
    batch = tokenizer(TEXT, return_tensors='pt')
    last = model.config.num_hidden_layers - 1

    def view():
        attentions = model(**batch).attentions
        return head_view(attentions, batch.tokens(), layer=last, html_action='return')

    page, spent = timed(view)
    page = page.data
    for name, file in SCRIPTS.items():  # a path of require.js goes without .js
        there = file if name == 'require' else file.removesuffix('.js')
        page = re.sub(rf'https:[^"\']*/{name}[^"\']*', there, page)
    return dict(
        how='head view: attention of the last layer, a colour a head',
        **spent,
        tokens=batch.tokens(),
        scores=None,
        html=page,
    )


def inseq(folder, continuation):
    from inseq import load_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(f'{folder}/reviews')
    tokenizer = AutoTokenizer.from_pretrained(f'{folder}/reviews')
    wrapped = load_model(model, 'input_x_gradient', tokenizer=tokenizer)
    more = dict(attributed_fn='logit', show_progress=False)
    out, spent = timed(lambda: wrapped.attribute(TEXT, TEXT + continuation, **more))
    found = out.sequence_attributions[0]
    return dict(
        how='gradient × input of each generated logit; its table shows lengths',
        **spent,
        tokens=[t.token for t in found.target],
        # summed, with their sign; and as its table shows them
        scores=found.target_attributions.sum(-1).T.tolist(),
        shown=found.aggregate().target_attributions.T.tolist(),
        html=out.show(display=False, return_html=True),
    )


PEERS = dict(shap=shap, captum=captum, bertviz=bertviz, inseq=inseq)


def peer(name, folder, continuation):
    "Run by the peer's python: its answer as JSON in the folder."
    import numpy

    # SHAP's and Inseq's pages write colours as rgb(np.float64(…)) with numpy 2, which
    # no browser reads: they come out black and white. So they are as they were meant
    numpy.set_printoptions(legacy='1.25')
    said = PEERS[name](folder, continuation)
    said['versions'] = {n: version(n) for n in (name, 'numpy', 'torch', 'transformers')}
    (Path(folder) / f'{name}.json').write_text(json.dumps(said), encoding='utf-8')


# ---- ours


def asked(name, folder, continuation):
    "What a peer says, from its own process."
    variable = f'LRP_LOO_{name.upper()}_PYTHON'
    if variable not in os.environ:
        sys.exit(f'{name}: {variable} names no python')
    call = [os.environ[variable], __file__, '--peer', name, str(folder), continuation]
    if subprocess.run(call, env={**os.environ, 'PYTHONPATH': ''}).returncode:
        sys.exit(f'{name} failed; what it said stands above')
    return json.loads((folder / f'{name}.json').read_text(encoding='utf-8'))


def r(scores, tokens, exact):
    "With exact LOO over the text's own tokens."
    import torch

    if len(scores) != len(exact.scores):
        raise ValueError(f'read {tokens}, exact LOO has {exact.tokens}')
    both = torch.stack([torch.tensor(scores).float(), exact.scores])
    return float(both[:, exact.is_content].corrcoef()[0, 1])


def r_of_steps(rows, tokens, exact):
    "The mean over the generated tokens, each over the tokens before it."
    if tokens != exact.tokens:
        raise ValueError(f'{tokens} are not the tokens of {exact}')
    pairs = zip(rows, exact.steps, strict=True)
    found = [r(row[: len(e.scores)], tokens, e) for row, e in pairs]
    return statistics.mean(found)


def explained(folder):
    "The models, written for the peers; our rows; the others', each with its r."
    from lrp_loo import explain, explain_generation, load_demo

    models = {name: load_demo(name) for name in ('sst2', 'reviews')}
    for name, parts in models.items():
        for part in parts:
            part.save_pretrained(folder / name)
    sst2, reviews = models['sst2'], models['reviews']
    (logit,) = explain(*sst2, TEXT, method='loo', target='positive')
    (odds,) = explain(*sst2, TEXT, method='loo', target=('positive', 'negative'))
    how = dict(max_new_tokens=NEW, log_prob=False)
    steps = explain_generation(*reviews, TEXT, method='loo', **how)
    names = ('lrp_loo', 'numpy', 'torch', 'transformers')
    here = dict(versions={n: version(n) for n in names})

    (a,), spent = timed(lambda: explain(*sst2, TEXT))
    yield dict(
        here,
        tool='lrp_loo',
        model='sst2',
        how='explain: how the logit falls without each token',
        said=repr(a),
        **spent,
        r=r(a.scores.tolist(), a.tokens, logit),
        tokens=a.tokens,
        scores=a.scores.tolist(),
        html=a._repr_html_(),
    )
    for name, exact in dict(shap=odds, captum=logit, bertviz=None).items():
        said = asked(name, folder, '')
        found = exact and r(said['scores'], said['tokens'], exact)
        yield dict(said, tool=name, model='sst2', r=found)

    g, spent = timed(lambda: explain_generation(*reviews, TEXT, **how))
    pairs = zip(g.steps, steps.steps, strict=True)
    yield dict(
        here,
        tool='lrp_loo',
        model='reviews',
        how='explain_generation: how each generated logit falls without each token',
        said=repr(g).splitlines()[0],
        **spent,
        r=statistics.mean(r(s.scores.tolist(), s.tokens, e) for s, e in pairs),
        tokens=g.tokens,
        scores=[s.scores.tolist() for s in g.steps],
        html=g._repr_html_(),
    )
    said = asked('inseq', folder, reviews[1].convert_tokens_to_string(g.generated))
    of = (said['tokens'], steps)
    yield dict(
        said,
        tool='inseq',
        model='reviews',
        r=r_of_steps(said['scores'], *of),
        r_shown=r_of_steps(said.pop('shown'), *of),
    )


def main(folder):
    from lrp_loo.core.files import processor
    from lrp_loo.trust.results import Results

    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(
        experiment='beside',
        text=TEXT,
        max_new_tokens=NEW,
        times=TIMES,
        threads=os.environ.get('OMP_NUM_THREADS'),
        processor=processor(),
        cpus=os.cpu_count(),
    )
    results = Results(LAB / 'results' / 'beside.json', config, fresh=True)
    views = []
    for i, row in enumerate(explained(folder)):
        row = dict(i=i, load=os.getloadavg()[0], **row)
        views.append((row, row.pop('html')))
        results.add(row)
        print({k: row[k] for k in ('tool', 'model', 'seconds', 'cpu', 'load', 'r')})
    draw(folder, views)


# ---- the picture

STYLE = """body{font:15px sans-serif;margin:0 10px 10px} p{margin:12px 0 3px}
i{float:right;font-style:normal;padding-left:1em} main{display:flex;gap:12px}
iframe{width:100%;border:1px solid #bbb;display:block}"""
START = '<!doctype html><meta charset="utf-8">'
MODELS = dict(sst2='MiniLM, SST-2', reviews='a small Llama')
# pixels: three views above each other, then two columns, of two views and of one
FULL, LEFT, RIGHT = 1258, 560, 686


def panel(folder, c, row, view, width):
    "A view as a page of its own, as high as it is, with its numbers above."
    name = row['tool'] if row['tool'] != 'lrp_loo' else f'ours-{row["model"]}'
    page = folder / f'{name}.html'
    page.write_text(f'{START}<body>{view}', encoding='utf-8')
    c.width(width, 60)
    c.open(page.as_uri())
    time.sleep(2)  # scripts draw
    height = c.js('document.documentElement.scrollHeight')
    agrees = 'no score a token' if row['r'] is None else f'r = {row["r"]:.2f}'
    if 'r_shown' in row:
        agrees += f' (of the lengths {row["r_shown"]:.2f})'
    numbers = f'{row["seconds"]:.2f} s (CPU {row["cpu"]:.2f} s) · {agrees}'
    title = f'{row["tool"]} {row["versions"][row["tool"]]}, {MODELS[row["model"]]}'
    return (
        f'<p><b>{title}</b> <i>{numbers}</i> {html.escape(row["how"])}</p>'
        f'<iframe src="{page.name}" style="height:{height}px"></iframe>'
    )


def draw(folder, views):
    "All views as one picture."
    sys.path.append(str(LAB.parent / 'tests'))
    import chromium
    from PIL import Image

    loads = [row['load'] for row, _ in views]
    said = (
        f'“{TEXT}” r: with exact LOO of the number that is explained, over the'
        f' text’s tokens. Seconds: median of {TIMES}, one thread; the machine’s load'
        f' was {min(loads):.1f} to {max(loads):.1f}.'
    )
    with chromium.Chromium(1280, 900) as c:
        widths = [FULL] * 3 + [LEFT] * 2 + [RIGHT]
        panels = [panel(folder, c, *v, w) for v, w in zip(views, widths, strict=True)]
        above, left, right = (''.join(panels[a:b]) for a, b in ((0, 3), (3, 5), (5, 6)))
        page = f'{START}<style>{STYLE}</style><p>{said}</p>{above}'
        page += f'<main><div style="width:{LEFT + 2}px">{left}</div>'
        page += f'<div style="flex:1">{right}</div></main>'
        (folder / 'beside.html').write_text(page, encoding='utf-8')
        c.width(1280, 900)
        c.open((folder / 'beside.html').as_uri())
        time.sleep(3)
        c.whole_picture(folder / 'beside.png')
        if c.errors or c.offline:
            raise RuntimeError(f'{c.errors}, asked for {c.offline}')
    picture = Image.open(folder / 'beside.png').convert('RGB')
    picture = picture.point(lambda v: round(v / 5) * 5)  # a fifth smaller, looks alike
    picture.save(LAB / 'figures' / 'beside.png', optimize=True)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--peer']:
        peer(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
