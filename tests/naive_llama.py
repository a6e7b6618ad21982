"""Llama and LRP derived a second time, from the equations (AttnLRP, Achtibat et
al. 2024), in the manner of naive_bert.py: explicit contributions, no
autograd, no module of transformers and nothing of lrp_loo. Reads nothing but
the state dict.
"""

import torch
from naive_bert import (
    Attention,
    Linear,
    add_back,
    backwards,
    forwards,
    only_row,
    only_target,
)


def rotation(n, d, theta):
    "→ (n, d, d): position p's rotary map as a matrix, q_rot = q @ M[p]."
    inv = 1 / theta ** (
        torch.arange(0, d, 2).float() / d
    )  # float32, as the model's own table is at any dtype
    angle = torch.arange(n).float()[:, None] * inv
    angle = torch.cat((angle, angle), -1)
    i = torch.arange(d // 2)
    H = torch.zeros(d, d, dtype=torch.double)
    H[i + d // 2, i] = -1
    H[i, i + d // 2] = 1  # rotate_half(q) = q @ H
    return torch.diag_embed(angle.cos().double()) + H * angle.sin().double()[:, None]


def rms_norm(x, w, rms_eps, dtype):
    """Diagonal once the root mean square is a constant, so R_x = R_y: it needs
    no way back.
    """
    h = x.to(dtype)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + rms_eps)).to(x.dtype)


def silu(x):
    return x / (1 + (-x).exp())


class Rotary(Linear):
    "A linear map of its own at every position; [token, head, d]."

    def __init__(self, M):
        self.W = M[:, None]

    def __call__(self, x):
        self.x = x
        self.z = (x[..., :, None] * self.W).sum(-2)
        return self.z


class Heads:
    """Projection into n heads, rotated where M is given, each repeated `times`
    times; [token, n*times*d].
    """

    def __init__(self, sd, name, n, times=1, M=None):
        self.f = Linear(sd, name)
        self.n = n
        self.times = times
        self.rot = None if M is None else Rotary(M)

    def __call__(self, x):
        z = self.f(x).view(len(x), self.n, -1)
        if self.rot:
            z = self.rot(z)
        return z.repeat_interleave(self.times, 1).reshape(len(x), -1)

    def back(self, R, eps):
        R = R.view(len(R), self.n, self.times, -1).sum(2)
        if self.rot:
            R = self.rot.back(R, eps)
        return self.f.back(R.reshape(len(R), -1), eps)


class CausalAttention(Attention):
    """Attention.back serves as it is: a masked entry has A = 0, so 3a and 5
    give it nothing.
    """

    def __init__(self, sd, name, heads, kv_heads, M):
        self.q = Heads(sd, f'{name}.q_proj', heads, 1, M)
        self.h = heads
        self.k = Heads(sd, f'{name}.k_proj', kv_heads, heads // kv_heads, M)
        self.v = Heads(sd, f'{name}.v_proj', kv_heads, heads // kv_heads)

    def __call__(self, x):
        self.Q, self.K, self.V = (self.split(f(x)) for f in (self.q, self.k, self.v))
        d = self.Q.shape[-1]
        self.c = self.Q[:, :, None, :] * self.K[:, None, :, :] / d**0.5
        self.Z = self.c.sum(-1)
        seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        Z = self.Z.masked_fill(~seen, -torch.inf)
        e = (Z - Z.max(-1, keepdim=True).values).exp()
        self.A = e / e.sum(-1, keepdim=True)
        self.AV = self.A[..., None] * self.V[:, None]
        self.O = self.AV.sum(2)
        return self.O.transpose(0, 1).reshape(len(x), -1)


class FeedForward:
    def __init__(self, sd, name):
        self.gate, self.up, self.down = (
            Linear(sd, f'{name}.{n}_proj') for n in ('gate', 'up', 'down')
        )

    def __call__(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))

    def back(self, R, eps, gates):
        # g: the gate's share; silu: one input, all of it
        R = self.down.back(R, eps)
        g = {'half': 0.5, 'constant': 0.0}[gates]
        return self.gate.back(g * R, eps) + self.up.back((1 - g) * R, eps)


class Norm:
    "LlamaRMSNorm rounds to float32 whatever the model's dtype."

    def __init__(self, sd, name, rms_eps, dtype):
        self.weight = sd[f'model.{name}.weight']
        self.rms_eps = rms_eps
        self.dtype = dtype

    def __call__(self, x):
        return rms_norm(x, self.weight, self.rms_eps, self.dtype)


class Layer:
    "RMSNorm before attention and before the feed-forward part."

    def __init__(self, sd, l, heads, kv_heads, M, norm):
        n = f'layers.{l}'
        self.at = CausalAttention(sd, f'model.{n}.self_attn', heads, kv_heads, M)
        self.o = Linear(sd, f'model.{n}.self_attn.o_proj')
        self.ff = FeedForward(sd, f'model.{n}.mlp')
        self.norm1 = norm(f'{n}.input_layernorm')
        self.norm2 = norm(f'{n}.post_attention_layernorm')

    def __call__(self, x):
        self.x = x
        self.a = self.o(self.at(self.norm1(x)))
        self.y = x + self.a
        self.d = self.ff(self.norm2(self.y))
        return self.y + self.d

    def back(self, R, eps, bypass, gates):
        "A norm is the identity: one factor that is a constant."
        Ry, Rd = add_back(self.y, self.d, R, eps)
        Ry = Ry + self.ff.back(Rd, eps, gates)
        Rx, Ra = add_back(self.x, self.a, Ry, eps)
        return Rx + self.at.back(self.o.back(Ra, eps), eps, bypass)


def explain(
    state,
    ids,
    *,
    layers,
    heads,
    kv_heads,
    rms_eps,
    rope_theta=10000.0,
    bypass=(),
    gates='half',
    target=None,
    position=-1,
    head='lm',
    eps=1e-12,
    norm_dtype=torch.float32,
):
    """→ logits at `position`, relevance of the input embeddings (n_tokens,).
    norm_dtype: what a norm rounds to.
    """
    sd = {k: v.double() for k, v in state.items()}
    sd.setdefault('lm_head.weight', sd['model.embed_tokens.weight'])
    width = len(sd['model.layers.0.self_attn.q_proj.weight'])
    M = rotation(len(ids), width // heads, rope_theta)

    def norm(name):
        return Norm(sd, name, rms_eps, norm_dtype)

    stack = [Layer(sd, l, heads, kv_heads, M, norm) for l in range(layers)]
    out = Linear(sd, {'lm': 'lm_head', 'score': 'score'}[head])
    x = forwards(stack, sd['model.embed_tokens.weight'][ids])
    logits = out(norm('norm')(x)[position])
    r = out.back(only_target(logits, target), eps)
    R = only_row(x, position, r)
    return logits, backwards(stack, R, eps, bypass, gates=gates).sum(-1)
