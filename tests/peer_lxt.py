"""Run by hand or by test_peer.py in an environment of its own, with lxt 2.1 and the older transformers it needs:
python peer_lxt.py MODEL_FOLDER IDS.json OUT.json: AttnLRP scores of the reference package for each list of token ids.
"""

import json
import sys

import torch
from lxt.efficient import monkey_patch
from transformers.models.bert import modeling_bert

monkey_patch(modeling_bert)
model = (
    modeling_bert.BertForSequenceClassification.from_pretrained(
        sys.argv[1], attn_implementation='eager'
    )
    .eval()
    .double()
)
for p in model.parameters():
    p.requires_grad_(False)
out = []
for ids in json.load(open(sys.argv[2])):
    x = (
        model.get_input_embeddings()(torch.tensor([ids]))
        .detach()
        .requires_grad_()
    )
    logits = model(inputs_embeds=x).logits
    logits.max().backward()
    out.append(
        dict(logit=float(logits.max()), scores=(x * x.grad).sum(-1)[0].tolist())
    )
json.dump(out, open(sys.argv[3], 'w'))
