"""One sentence in the views of SHAP, inseq, Captum, bertviz and here, beside each other.

    python benchmarks/beside.py FOLDER SHAP_PYTHON INSEQ_PYTHON CAPTUM_PYTHON BERTVIZ_PYTHON
    python benchmarks/beside.py --peer NAME FOLDER       one of them, by its own python

The first call writes the models and each view as HTML into FOLDER, prints the
seconds that each took (models are loaded, libraries imported) and its r with exact
LOO, and draws figures/beside.png with Chromium. bertviz' page fetches d3, jQuery and
require.js; where FOLDER has d3.min.js, jquery.min.js and require.min.js it takes
those.
"""

import html
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

TEXT = 'A gripping, funny film that never once talks down to us.'
CUT = len(' us.')  # what the language model is asked for stands behind this
PICTURE = Path(__file__).resolve().parents[1] / 'figures' / 'beside.png'


def timed(view):
    "A second call: the first one also builds what is built once."
    view()
    start = time.perf_counter()
    found = view()
    return found, time.perf_counter() - start


def shap(folder):
    "Its text explainer: Shapley values over a clustering of the words, log-odds."
    from shap import Explainer, maskers, plots
    from shap.models import TransformersPipeline
    from transformers import pipeline

    asked = pipeline('text-classification', model=f'{folder}/sst2', top_k=None)
    asked = TransformersPipeline(asked, rescale_to_logits=True)
    explainer = Explainer(asked, maskers.Text(asked.inner_model.tokenizer), silent=True)
    found, seconds = timed(lambda: explainer([TEXT]))
    k = list(found.output_names).index('positive')
    page = plots.text(found[0, :, k], display=False)
    return dict(
        shows='Shapley values of the log-odds; add up from a base value to f(x)',
        seconds=seconds,
        scores=found.values[0][:, k].tolist(),
        html=page,
    )


def captum(folder):
    "Integrated Gradients from [PAD] and its text visualizer, as its tutorial has it."
    import torch
    from captum.attr import LayerIntegratedGradients
    from captum.attr import visualization as v
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(f'{folder}/sst2').eval()
    tokenizer = AutoTokenizer.from_pretrained(f'{folder}/sst2')
    batch = tokenizer(TEXT, return_tensors='pt')
    ids = batch.input_ids
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    baseline = torch.where(special, ids, tokenizer.pad_token_id)
    path = LayerIntegratedGradients(
        lambda ids: model(ids).logits, model.get_input_embeddings()
    )
    explained = dict(target=1, n_steps=50, return_convergence_delta=True)
    (found, delta), seconds = timed(lambda: path.attribute(ids, baseline, **explained))
    scores = found.sum(-1)[0].detach()
    p = float(model(ids).logits.softmax(-1)[0, 1])
    shown = scores / scores.norm()
    words = batch.tokens()
    record = v.VisualizationDataRecord(
        shown, p, 'positive', 'positive', 'positive', float(scores.sum()), words, delta
    )
    return dict(
        shows='Integrated Gradients (50 steps), words coloured; special tokens 0',
        seconds=seconds,
        scores=scores.tolist(),
        html=v.visualize_text([record]).data,
    )


def inseq(folder):
    "Gradient × input of the next word's logit, in its table."
    from inseq import load_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = f'{folder}/reviews'
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wrapped = load_model(model, 'input_x_gradient', tokenizer=tokenizer)
    given = (TEXT[:-CUT], TEXT[:-1])
    more = dict(attributed_fn='logit', show_progress=False)
    out, seconds = timed(lambda: wrapped.attribute(*given, **more))
    found = out.sequence_attributions[0]
    of_last = found.target_attributions.sum(-1)[:-1, -1]
    return dict(
        shows='gradient × input of the next word " us", a language model; lengths alone',
        seconds=seconds,
        tokens=[t.token for t in found.target[:-1]],
        scores=of_last.tolist(),
        html=out.show(display=False, return_html=True),
    )


def bertviz(folder):
    "Every head's attention; it explains no number."
    from bertviz import head_view
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(f'{folder}/sst2')
    model = AutoModelForSequenceClassification.from_pretrained(
        f'{folder}/sst2', attn_implementation='eager', output_attentions=True
    ).eval()
    batch = tokenizer(TEXT, return_tensors='pt')

    def view():
        attentions = model(**batch).attentions
        return head_view(attentions, batch.tokens(), layer=5, html_action='return')

    page, seconds = timed(view)
    page = page.data
    for name in ('d3', 'jquery', 'require'):
        if (here := Path(folder) / f'{name}.min.js').exists():
            page = local(page, name, here.resolve().as_uri())
    return dict(
        shows='attention of the last layer, a colour a head; explains no output',
        seconds=seconds,
        scores=None,
        html=page,
    )


def local(page, name, uri):
    "A page with one library's address replaced."
    import re

    address = rf'(https?:)?//[^"\']*/{name}(\.min)?(\.js)?(?=["\'])'
    return re.sub(address, uri if name == 'require' else uri.removesuffix('.js'), page)


PEERS = dict(shap=shap, inseq=inseq, captum=captum, bertviz=bertviz)
LIBRARIES = ('torch', 'transformers')


def ours(folder):
    "The models, written for the peers; what this package shows; exact LOO of both."
    import torch

    from lrp_loo import explain, load_demo

    models = {name: load_demo(name) for name in ('sst2', 'reviews')}
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    maps, seconds = timed(lambda: explain(*models['sst2'], TEXT))
    (a,) = maps
    asked = dict(method='loo', target=' us')
    (next_word,) = explain(*models['reviews'], TEXT[:-CUT], **asked)

    def r(scores, loo):
        both = torch.stack([torch.tensor(scores).float(), loo.scores])
        return float(both[:, loo.is_content].corrcoef()[0, 1])

    said = dict(
        shows='exact LOO: how the logit falls without each token',
        seconds=seconds,
        scores=a.scores.tolist(),
        html=a._repr_html_(),
        versions={'lrp_loo': version('lrp_loo')},
    )
    return said, lambda name, scores: r(scores, next_word if name == 'inseq' else a)


def main(folder, *pythons):
    "Every peer, a line each, and the picture."
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said, r = ours(folder)
    found = {'lrp_loo': said}
    for name, python in zip(PEERS, pythons, strict=True):
        command = [python, __file__, '--peer', name, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f'{name}: {done.stderr[-2000:]}')
        found[name] = json.loads((folder / f'{name}.json').read_text())
    for name, peer in found.items():
        peer['r'] = peer['scores'] and r(name, peer['scores'])
        agrees = '—' if peer['r'] is None else f'{peer["r"]:.2f}'
        print(f'{name}: {peer["seconds"]:.2f} s, r with exact LOO {agrees}', end='; ')
        print(peer['shows'], peer['versions'])
    draw(folder, found)


def draw(folder, found):
    "The views, one under another, as one picture."
    sys.path.append(str(Path(__file__).resolve().parents[2] / 'tests'))
    import chromium

    heights = dict(lrp_loo=110, shap=190, inseq=430, captum=110, bertviz=420)
    rows = []
    for name, peer in found.items():
        (folder / f'{name}.html').write_text(
            f'<!doctype html><meta charset="utf-8">{peer["html"]}', encoding='utf-8'
        )
        agrees = '' if peer['r'] is None else f' · r with exact LOO {peer["r"]:.2f}'
        versions = ' '.join(f'{k} {v}' for k, v in peer['versions'].items())
        head = f'{versions} · {peer["seconds"]:.2f} s{agrees} · {peer["shows"]}'
        rows.append(
            f'<p>{html.escape(head)}</p><iframe src="{name}.html"'
            f' style="height:{heights[name]}px"></iframe>'
        )
    style = (
        'body{font:13px sans-serif;margin:8px;width:1040px}p{margin:10px 0 2px;'
        'font-weight:600}iframe{width:100%;border:1px solid #bbb}'
    )
    page = f'<!doctype html><meta charset="utf-8"><style>{style}</style>{"".join(rows)}'
    (folder / 'beside.html').write_text(page, encoding='utf-8')
    with chromium.Chromium(1060, 1500) as c:
        c.open((folder / 'beside.html').as_uri())
        time.sleep(4)
        c.picture(PICTURE)


if __name__ == '__main__':
    if sys.argv[1] == '--peer':
        _, _, name, folder = sys.argv
        said = PEERS[name](folder)
        said['versions'] = {n: version(n) for n in (name, *LIBRARIES)}
        (Path(folder) / f'{name}.json').write_text(json.dumps(said))
    else:
        main(*sys.argv[1:])
