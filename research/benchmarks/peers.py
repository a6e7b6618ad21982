"""One sentence through LXT, SHAP and inseq, as each one's documentation calls it.

    python research/benchmarks peers

An environment variable names each peer's Python; how the environment is made stands at
its function. Writes results/compared.json: the peer's versions, the tokens it read, a
score for each, and what was explained. A peer's Python runs this file without the package.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import transformers

PRODUCT = Path(__file__).parents[2] / 'results'


def lxt_sentence(folder, text):
    """(pip install torchvision 'transformers==4.52.4' lxt==2.1) AttnLRP of the
    largest logit; BERT's classes of transformers are changed for good. Of
    torchvision, which only vision models use, a module
    `torchvision.models.vision_transformer` with `from torch import nn` in it
    will do, and did for results/compared.json.
    """
    from lxt.efficient import monkey_patch
    from lxt.efficient.models import bert
    from transformers.models.bert import modeling_bert

    monkey_patch(modeling_bert, bert.attnLRP)
    kind = modeling_bert.BertForSequenceClassification
    # its copied file has no fused attention for texts alone
    model = kind.from_pretrained(folder, attn_implementation='eager').eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors='pt')
    words = model.get_input_embeddings()(batch.input_ids)
    x = words.detach().requires_grad_()
    mask = batch.attention_mask
    out = model(inputs_embeds=x, attention_mask=mask)
    out.logits.max().backward()
    return dict(
        explained='the predicted class',
        tokens=batch.tokens(),
        scores=(x * x.grad).sum(-1)[0].tolist(),
    )


def shap_sentence(folder, text):
    """(pip install shap==0.51.0 transformers==5.23.0) Shapley values over the
    words' own clustering, of the log-odds of the positive class.
    """
    from shap import Explainer, maskers
    from shap.models import TransformersPipeline

    asked = transformers.pipeline('text-classification', model=folder, top_k=None)
    asked = TransformersPipeline(asked, rescale_to_logits=True)
    found = Explainer(asked, maskers.Text(asked.inner_model.tokenizer))([text])
    k = list(found.output_names).index('positive')
    return dict(
        explained='log-odds of the positive class',
        tokens=[t.strip() for t in found.data[0]],
        scores=found.values[0][:, k].tolist(),
        base=float(found.base_values[0][k]),
    )


def inseq_sentence(folder, text, continuation):
    """(pip install inseq==0.7.1 transformers==5.23.0) Gradient × input of the
    next token's logit.
    """
    from inseq import load_model

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    wrapped = load_model(model, 'input_x_gradient', tokenizer=tokenizer)
    out = wrapped.attribute(
        text, text + continuation, attributed_fn='logit', show_progress=False
    )
    found = out.sequence_attributions[0]
    # rows: the tokens read; columns: the tokens that were generated
    of_last = found.target_attributions.sum(-1)[:-1, -1]
    return dict(
        explained=f'the logit of {continuation!r}',
        tokens=[t.token for t in found.target[:-1]],
        scores=of_last.tolist(),
    )


SENTENCE = ['a warm and funny film']
PROMPT = ['I expected little, and the film was', ' funny']  # with what follows it
PEERS = {  # peer → its function, a demo model, its words
    'lxt': (lxt_sentence, 'sst2', SENTENCE),
    'shap': (shap_sentence, 'sst2', SENTENCE),
    'inseq': (inseq_sentence, 'reviews', PROMPT),
}


def by_peer(peer, folder):
    "Print what a peer says of its sentence, by the peer's own Python."
    explained, _, words = PEERS[peer]
    names = (peer, 'transformers', 'torch')
    versions = dict(versions={name: version(name) for name in names})
    print(json.dumps(explained(folder, *words) | versions))


def sentence():
    "Write what each peer says of its sentence."
    from lrp_loo import load_demo
    from lrp_loo.core.files import write_text_atomic

    found = {}
    for peer, (_, demo, words) in PEERS.items():
        variable = f'LRP_LOO_{peer.upper()}_PYTHON'
        if not (python := os.environ.get(variable)):
            sys.exit(f'{peer}: {variable} names no Python (see {peer}_sentence)')
        with tempfile.TemporaryDirectory() as folder:
            for part in load_demo(demo):
                part.save_pretrained(folder)
            call = [python, __file__, 'by_peer', peer, folder]
            done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        found[peer] = dict(model=demo, text=''.join(words[:1]), **said)
        print(peer, said['versions'][peer], said['scores'])
    write_text_atomic(PRODUCT / 'compared.json', json.dumps(found, indent=1) + '\n')


COMMANDS = dict(sentence=sentence, by_peer=by_peer)


def main(words=None):
    name, *arguments = sys.argv[1:] if words is None else words or ['sentence']
    COMMANDS[name](*arguments)


if __name__ == '__main__':
    main()
