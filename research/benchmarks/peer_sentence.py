"""One sentence explained by one peer, as its own documentation calls it.

    python research/benchmarks/peer_sentence.py PEER FOLDER TEXT [CONTINUATION]

Prints one JSON object: the peer's versions, the tokens it read, a score for
each, and what was explained. Run by each peer's own python (`compared.py`);
this package is not needed there.
"""

import json
import sys
from importlib.metadata import version

from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline


def lxt(folder, text):
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
    tokenizer = AutoTokenizer.from_pretrained(folder)
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


def shap(folder, text):
    """(pip install shap==0.51.0 transformers==5.23.0) Shapley values over the
    words' own clustering, of the log-odds of the positive class.
    """
    from shap import Explainer, maskers
    from shap.models import TransformersPipeline

    asked = pipeline('text-classification', model=folder, top_k=None)
    asked = TransformersPipeline(asked, rescale_to_logits=True)
    found = Explainer(asked, maskers.Text(asked.inner_model.tokenizer))([text])
    k = list(found.output_names).index('positive')
    return dict(
        explained='log-odds of the positive class',
        tokens=[t.strip() for t in found.data[0]],
        scores=found.values[0][:, k].tolist(),
        base=float(found.base_values[0][k]),
    )


def inseq(folder, text, continuation):
    """(pip install inseq==0.7.1 transformers==5.23.0) Gradient × input of the
    next token's logit.
    """
    from inseq import load_model

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
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


PEERS = dict(lxt=lxt, shap=shap, inseq=inseq)


def main(words):
    peer, *rest = words
    said = PEERS[peer](*rest)
    names = (peer, 'transformers', 'torch')
    said['versions'] = {name: version(name) for name in names}
    print(json.dumps(said))


if __name__ == '__main__':
    main(sys.argv[1:])
