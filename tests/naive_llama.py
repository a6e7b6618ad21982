"""Llama and LRP derived a second time, from the equations (AttnLRP, Achtibat et
al. 2024), of the parts in naive_bert.py: explicit contributions, no autograd, no
module of transformers and nothing of lrp_loo. Reads nothing but the state dict.
"""

import naive_bert as nb
import torch


def rotation(n, d, theta):
    "→ (n, d, d): position p's rotary map as a matrix, q_rot = q @ M[p]."
    # float32, as the model's own table is at any dtype
    inv = 1 / theta ** (torch.arange(0, d, 2).float() / d)
    angle = torch.arange(n).float()[:, None] * inv
    angle = torch.cat((angle, angle), -1)
    i = torch.arange(d // 2)
    H = torch.zeros(d, d, dtype=torch.double)
    H[i + d // 2, i] = -1
    H[i, i + d // 2] = 1  # rotate_half(q) = q @ H
    return torch.diag_embed(angle.cos().double()) + H * angle.sin().double()[:, None]


def rms_norm(x, w, rms_eps, dtype):
    h = x.to(dtype)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + rms_eps)).to(x.dtype)


class Norm:
    """LlamaRMSNorm rounds to float32 whatever the model's dtype. It is diagonal once
    the root mean square is a constant, so R_x = R_y.
    """

    def __init__(self, sd, name, rms_eps, dtype):
        self.options = sd[f'model.{name}.weight'], rms_eps, dtype

    def __call__(self, x):
        return rms_norm(x, *self.options)

    def back(self, R, eps):
        return R


class Rotary(nb.Linear):
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
        self.f = nb.Linear(sd, name)
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


class CausalAttention(nb.Attention):
    """Attention.back serves as it is: a masked entry has A = 0, so 3a and 5
    give it nothing.
    """

    def __init__(self, sd, name, heads, kv_heads, M):
        self.q = Heads(sd, f'{name}.q_proj', heads, 1, M)
        self.k = Heads(sd, f'{name}.k_proj', kv_heads, heads // kv_heads, M)
        self.v = Heads(sd, f'{name}.v_proj', kv_heads, heads // kv_heads)
        self.h = heads
        self.bias = torch.full((len(M), len(M)), -torch.inf).triu(1)


class FeedForward:
    def __init__(self, sd, name, gates='half'):
        self.gate, self.up, self.down = (
            nb.Linear(sd, f'{name}.{n}_proj') for n in ('gate', 'up', 'down')
        )
        self.share = {'half': 0.5, 'constant': 0.0}[gates]  # the gate's

    def __call__(self, x):
        gate = self.gate(x)
        silu = gate / (1 + (-gate).exp())
        return self.down(silu * self.up(x))

    def back(self, R, eps):
        "silu: one input, all of it."
        R = self.down.back(R, eps)
        of_gate = self.gate.back(self.share * R, eps)
        return of_gate + self.up.back((1 - self.share) * R, eps)


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
):
    "→ logits at `position`, relevance of the input embeddings (n_tokens,)."
    sd = {k: v.double() for k, v in state.items()}
    sd.setdefault('lm_head.weight', sd['model.embed_tokens.weight'])
    width = len(sd['model.layers.0.self_attn.q_proj.weight'])
    M = rotation(len(ids), width // heads, rope_theta)

    def norm(name):
        return Norm(sd, name, rms_eps, torch.float32)

    def layer(name):
        attention = f'model.{name}.self_attn'
        return nb.PreNormLayer(
            norm1=norm(f'{name}.input_layernorm'),
            at=CausalAttention(sd, attention, heads, kv_heads, M),
            o=nb.Linear(sd, f'{attention}.o_proj'),
            norm2=norm(f'{name}.post_attention_layernorm'),
            ff=FeedForward(sd, f'model.{name}.mlp', gates),
        )

    stack = [layer(f'layers.{l}') for l in range(layers)]
    out = nb.Linear(sd, {'lm': 'lm_head', 'score': 'score'}[head])
    x = nb.forwards(stack, sd['model.embed_tokens.weight'][ids])
    logits = out(norm('norm')(x)[position])
    R = nb.only_row(x, position, out.back(nb.only_target(logits, target), eps))
    return logits, nb.backwards(stack, R, eps, bypass).sum(-1)
