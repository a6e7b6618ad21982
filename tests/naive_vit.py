"""ViT and LRP derived a second time, from the equations, in the manner of
naive_bert.py: explicit contributions, no autograd, no module of transformers
and nothing of lrp_loo. Reads nothing but the state dict.
"""

import torch
from naive_bert import (
    Attention,
    LayerNorm,
    Linear,
    add_back,
    backwards,
    forwards,
    gelu,
    only_row,
    only_target,
)


class ViTAttention(Attention):
    def __init__(self, sd, name, heads):
        self.q, self.k, self.v = (Linear(sd, f'{name}.{n}_proj') for n in 'qkv')
        self.h = heads


def patches(pixels, p):
    "(C, H, W) → (n_patches, C*p*p), row by row."
    return (
        pixels.unfold(1, p, p)
        .unfold(2, p, p)
        .permute(1, 2, 0, 3, 4)
        .reshape(-1, len(pixels) * p * p)
    )


class Layer:
    "LayerNorm before attention and before the feed-forward part."

    def __init__(self, sd, name, heads, ln_eps):
        self.ln1 = LayerNorm(sd, f'{name}.layernorm_before', ln_eps)
        self.at = ViTAttention(sd, f'{name}.attention', heads)
        self.o = Linear(sd, f'{name}.attention.o_proj')
        self.ln2 = LayerNorm(sd, f'{name}.layernorm_after', ln_eps)
        self.up = Linear(sd, f'{name}.mlp.fc1')
        self.down = Linear(sd, f'{name}.mlp.fc2')

    def __call__(self, x):
        self.x = x
        self.a = self.o(self.at(self.ln1(x)))
        self.y = self.a + x
        self.d = self.down(gelu(self.up(self.ln2(self.y))))
        return self.d + self.y

    def back(self, R, eps, bypass):
        Rd, Ry = add_back(self.d, self.y, R, eps)
        # GELU: one input, all of it
        Rd = self.up.back(self.down.back(Rd, eps), eps)
        Ry = Ry + self.ln2.back(Rd, eps)
        Ra, Rx = add_back(self.a, self.x, Ry, eps)
        Ra = self.at.back(self.o.back(Ra, eps), eps, bypass)
        return Rx + self.ln1.back(Ra, eps)


def embedded(sd, pixels, patch):
    "CLS and the patches, without their positions."
    cls = sd['vit.embeddings.cls_token'][0]
    W, b = (
        sd[f'vit.embeddings.patch_embeddings.projection.{n}']
        for n in ('weight', 'bias')
    )
    return torch.cat((cls, patches(pixels, patch) @ W.flatten(1).T + b))


def explain(
    state, pixels, *, layers, heads, ln_eps, patch, bypass=(), target=None, eps=1e-12
):
    """→ logits, relevance of the patch embedding's output, before CLS and
    positions are added (n_patches,).
    """
    sd = {k: v.double() for k, v in state.items()}
    w = embedded(sd, pixels.double(), patch)
    positions = sd['vit.embeddings.position_embeddings'][0]
    stack = [Layer(sd, f'vit.layers.{l}', heads, ln_eps) for l in range(layers)]
    ln = LayerNorm(sd, 'vit.layernorm', ln_eps)
    head = Linear(sd, 'classifier')
    h = ln(forwards(stack, w + positions))
    logits = head(h[0])
    r = head.back(only_target(logits, target), eps)
    R = ln.back(only_row(h, 0, r), eps)
    R = backwards(stack, R, eps, bypass)
    return logits, add_back(w, positions, R, eps)[0].sum(-1)[1:]
