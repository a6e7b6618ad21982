"""MPNet and LRP derived a second time, in the manner of naive_bert.py: explicit
contributions in float64, no autograd, no module of transformers and nothing of
lrp_loo. Reads nothing but the state dict.
"""

import math

import torch
from naive_bert import Attention, LayerNorm, Linear, add_back
from naive_bert import Layer as BertLayer


def bucket(distance, n_buckets=32, longest=128):
    """The entry of the table of relative positions for a key that stands so
    far behind the query (Raffel et al. 2020): near ones have one each, far
    ones share one by their logarithm.
    """
    half = n_buckets // 2
    first = half if distance > 0 else 0
    far = abs(distance)
    if far < half // 2:
        return first + far
    share = math.log(far / (half // 2)) / math.log(longest / (half // 2))
    return first + min(half // 2 + int(share * (half - half // 2)), half - 1)


def position_bias(table, n):
    "What is added to the attention's logits: [head, query, key]."
    buckets = [[bucket(key - query) for key in range(n)] for query in range(n)]
    return table[torch.tensor(buckets)].permute(2, 0, 1)


class BiasedAttention(Attention):
    """The bias is a constant that is added: it keeps its share of the logit's
    relevance, so that Attention.back serves as it is.
    """

    def __init__(self, sd, name, heads, bias):
        self.q, self.k, self.v = (Linear(sd, f'{name}.{n}') for n in 'qkv')
        self.h = heads
        self.bias = bias


class Layer(BertLayer):
    "BERT's block under MPNet's names, with its attention."

    def __init__(self, sd, name, heads, bias, ln_eps):
        self.at = BiasedAttention(sd, f'{name}.attention.attn', heads, bias)
        self.o = Linear(sd, f'{name}.attention.attn.o')
        self.ln1 = LayerNorm(sd, f'{name}.attention.LayerNorm', ln_eps)
        self.up = Linear(sd, f'{name}.intermediate.dense')
        self.down = Linear(sd, f'{name}.output.dense')
        self.ln2 = LayerNorm(sd, f'{name}.output.LayerNorm', ln_eps)


class MPNet:
    "The classifier; `unseen` tokens are hidden from every query."

    def __init__(self, state, *, layers, heads, ln_eps):
        self.sd = {k: v.double() for k, v in state.items()}
        self.sizes = layers, heads, ln_eps
        self.head = Linear(self.sd, 'classifier.out_proj')
        self.dense = Linear(self.sd, 'classifier.dense')
        self.ln0 = LayerNorm(self.sd, 'mpnet.embeddings.LayerNorm', ln_eps)

    def __call__(self, ids, unseen=()):
        layers, heads, ln_eps = self.sizes
        table = self.sd['mpnet.encoder.relative_attention_bias.weight']
        bias = position_bias(table, len(ids))
        bias[:, :, list(unseen)] = -math.inf
        words, places = (
            self.sd[f'mpnet.embeddings.{n}_embeddings.weight']
            for n in ('word', 'position')
        )
        self.word = words[ids]
        # place 1 is the padding's
        self.place = places[2 : 2 + len(ids)]
        x = self.ln0(self.word + self.place)
        self.layers = []
        for l in range(layers):
            name = f'mpnet.encoder.layer.{l}'
            self.layers.append(Layer(self.sd, name, heads, bias, ln_eps))
            x = self.layers[-1](x)
        self.logits = self.head(self.dense(x[0]).tanh())
        return self.logits

    def back(self, target, bypass=(), eps=1e-12):
        "Relevance of the word embeddings, (n_tokens,)."
        r = torch.zeros_like(self.logits)
        r[target] = self.logits[target]
        R = torch.zeros_like(self.word)
        # tanh: one input, all of it
        R[0] = self.dense.back(self.head.back(r, eps), eps)
        for l, layer in reversed(list(enumerate(self.layers))):
            R = layer.back(R, eps, l in bypass)
        Rw, _ = add_back(self.word, self.place, self.ln0.back(R, eps), eps)
        return Rw.sum(-1)
