"""ViT and LRP derived a second time, from the equations, of the parts in
naive_bert.py: explicit contributions, no autograd, no module of transformers and
nothing of lrp_loo. Reads nothing but the state dict.
"""

import naive_bert as nb
import torch


def patches(pixels, p):
    "(C, H, W) → (n_patches, C*p*p), row by row."
    windows = pixels.unfold(1, p, p).unfold(2, p, p)
    return windows.permute(1, 2, 0, 3, 4).reshape(-1, len(pixels) * p * p)


def vit_layer(sd, name, heads, ln_eps):
    attention = f'{name}.attention'
    return nb.PreNormLayer(
        norm1=nb.LayerNorm(sd, f'{name}.layernorm_before', ln_eps),
        at=nb.Attention(sd, [f'{attention}.{n}_proj' for n in 'qkv'], heads),
        o=nb.Linear(sd, f'{attention}.o_proj'),
        norm2=nb.LayerNorm(sd, f'{name}.layernorm_after', ln_eps),
        ff=nb.FeedForward(sd, f'{name}.mlp.fc1', f'{name}.mlp.fc2'),
    )


def embedded(sd, pixels, patch):
    "CLS and the patches, without their positions."
    cls = sd['vit.embeddings.cls_token'][0]
    name = 'vit.embeddings.patch_embeddings.projection'
    W, b = sd[f'{name}.weight'], sd[f'{name}.bias']
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
    stack = [vit_layer(sd, f'vit.layers.{l}', heads, ln_eps) for l in range(layers)]
    ln = nb.LayerNorm(sd, 'vit.layernorm', ln_eps)
    head = nb.Linear(sd, 'classifier')
    h = ln(nb.forwards(stack, w + positions))
    logits = head(h[0])
    R = ln.back(nb.only_row(h, 0, head.back(nb.only_target(logits, target), eps)), eps)
    R = nb.backwards(stack, R, eps, bypass)
    return logits, nb.add_back(w, positions, R, eps)[0].sum(-1)[1:]
