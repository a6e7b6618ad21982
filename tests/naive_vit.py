"""ViT and LRP derived a second time, from the equations, in the manner of
naive_bert.py: explicit contributions, no autograd, no module of transformers
and nothing of lrp_loo. Reads nothing but the state dict.
"""

import torch
from naive_bert import Attention, LayerNorm, Linear, add_back
from scipy.special import erf


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


def gelu(u):
    return u * 0.5 * (1 + torch.from_numpy(erf((u / 2**0.5).numpy())))


def explain(
    state,
    pixels,
    *,
    layers,
    heads,
    ln_eps,
    patch,
    bypass=(),
    target=None,
    eps=1e-12,
):
    """→ logits, relevance of the patch embedding's output, before CLS and
    positions are added (n_patches,).
    """
    sd = {k: v.double() for k, v in state.items()}
    cls = sd['vit.embeddings.cls_token'][0]
    pos = sd['vit.embeddings.position_embeddings'][0]
    W, b = (
        sd[f'vit.embeddings.patch_embeddings.projection.{n}']
        for n in ('weight', 'bias')
    )
    w = torch.cat((cls, patches(pixels.double(), patch) @ W.flatten(1).T + b))
    x = w + pos
    tape = []
    for l in range(layers):
        n = f'vit.layers.{l}'
        ln1 = LayerNorm(sd, f'{n}.layernorm_before', ln_eps)
        at = ViTAttention(sd, f'{n}.attention', heads)
        o = Linear(sd, f'{n}.attention.o_proj')
        ln2 = LayerNorm(sd, f'{n}.layernorm_after', ln_eps)
        up = Linear(sd, f'{n}.mlp.fc1')
        down = Linear(sd, f'{n}.mlp.fc2')
        a = o(at(ln1(x)))
        y = a + x
        d = down(gelu(up(ln2(y))))
        tape.append((ln1, at, o, ln2, up, down, a, x, y, d))
        x = d + y
    ln = LayerNorm(sd, 'vit.layernorm', ln_eps)
    head = Linear(sd, 'classifier')
    h = ln(x)
    logits = head(h[0])
    t = int(logits.argmax()) if target is None else target
    r = torch.zeros_like(logits)
    r[t] = logits[t]
    R = torch.zeros_like(h)
    R[0] = head.back(r, eps)
    R = ln.back(R, eps)
    for l, (ln1, at, o, ln2, up, down, a, x_in, y, d) in reversed(
        list(enumerate(tape))
    ):
        Rd, Ry = add_back(d, y, R, eps)
        Ry = Ry + ln2.back(
            up.back(down.back(Rd, eps), eps), eps
        )  # GELU: one input, all of it
        Ra, Rx = add_back(a, x_in, Ry, eps)
        R = Rx + ln1.back(at.back(o.back(Ra, eps), eps, l in bypass), eps)
    return logits, add_back(w, pos, R, eps)[0].sum(-1)[1:]
