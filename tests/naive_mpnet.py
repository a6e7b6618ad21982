"""MPNet and LRP derived a second time, of the parts in naive_bert.py: explicit
contributions in float64, no autograd, no module of transformers and nothing of
lrp_loo. Reads nothing but the state dict.
"""

import math

import naive_bert as nb
import torch


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
    """What is added to the attention's logits, [head, query, key]: a constant, which
    keeps its share of the logit's relevance, so that nb.Attention.back serves as it is.
    """
    buckets = [[bucket(key - query) for key in range(n)] for query in range(n)]
    return table[torch.tensor(buckets)].permute(2, 0, 1)


class MPNet:
    "The classifier; `unseen` tokens are hidden from every query."

    def __init__(self, state, *, layers, heads, ln_eps):
        self.sd = {k: v.double() for k, v in state.items()}
        self.sizes = layers, heads, ln_eps
        self.head = nb.Linear(self.sd, 'classifier.out_proj')
        self.dense = nb.Linear(self.sd, 'classifier.dense')
        self.ln0 = nb.LayerNorm(self.sd, 'mpnet.embeddings.LayerNorm', ln_eps)

    def layer(self, name, bias):
        _, heads, ln_eps = self.sizes
        attention = f'{name}.attention.attn'
        at = nb.Attention(self.sd, [f'{attention}.{n}' for n in 'qkv'], heads, bias)
        norm = f'{name}.attention.LayerNorm'
        return nb.block(self.sd, name, at, f'{attention}.o', norm, ln_eps)

    def __call__(self, ids, unseen=()):
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
        names = [f'mpnet.encoder.layer.{l}' for l in range(self.sizes[0])]
        self.layers = [self.layer(name, bias) for name in names]
        x = nb.forwards(self.layers, self.ln0(self.word + self.place))
        self.logits = self.head(self.dense(x[0]).tanh())
        return self.logits

    def back(self, target, bypass=(), eps=1e-12):
        "Relevance of the word embeddings, (n_tokens,)."
        r = self.head.back(nb.only_target(self.logits, target), eps)
        # tanh: one input, all of it
        R = nb.only_row(self.word, 0, self.dense.back(r, eps))
        R = self.ln0.back(nb.backwards(self.layers, R, eps, bypass), eps)
        return nb.add_back(self.word, self.place, R, eps)[0].sum(-1)
