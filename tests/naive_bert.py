"""BERT and LRP derived a second time, from the paper's equations: explicit
contributions in float64, layer by layer, no autograd, no module of
transformers and nothing of lrp_loo. Reads nothing but the state dict.
"""

import torch
from scipy.special import erf


def stab(z, eps):
    return z + eps * torch.where(z < 0, -1.0, 1.0).to(z.dtype)


class Linear:
    def __init__(self, sd, name):
        self.W = sd[f'{name}.weight'].T
        self.b = sd.get(f'{name}.bias')

    def __call__(self, x):
        self.x = x
        self.z = x @ self.W + (0 if self.b is None else self.b)
        return self.z

    def back(self, R, eps):
        "Equation 1, every z_ij."
        z = self.x[..., :, None] * self.W  # [..., in, out]
        return (z / stab(self.z, eps)[..., None, :] * R[..., None, :]).sum(-1)


class LayerNorm:
    def __init__(self, sd, name, ln_eps):
        self.g = sd[f'{name}.weight']
        self.b = sd[f'{name}.bias']
        self.e = ln_eps

    def __call__(self, x):
        self.x = x
        n = x.shape[-1]
        self.std = (
            ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
            + self.e
        ).sqrt()
        self.z = (x - x.mean(-1, keepdim=True)) / self.std * self.g + self.b
        self.M = torch.eye(n, dtype=x.dtype) - 1 / n
        return self.z

    def back(self, R, eps):
        "Linear once the standard deviation is a constant."
        z = self.x[..., :, None] * (self.M * self.g) / self.std[..., None]
        return (z / stab(self.z, eps)[..., None, :] * R[..., None, :]).sum(-1)


def add_back(a, b, R, eps):
    s = stab(a + b, eps)
    return a / s * R, b / s * R


class Attention:
    def __init__(self, sd, name, heads):
        self.q, self.k, self.v = (
            Linear(sd, f'{name}.self.{n}') for n in ('query', 'key', 'value')
        )
        self.h = heads

    def split(self, x):
        return x.view(x.shape[0], self.h, -1).transpose(
            0, 1
        )  # [head, token, d]

    def __call__(self, x):
        self.Q, self.K, self.V = (
            self.split(f(x)) for f in (self.q, self.k, self.v)
        )
        d = self.Q.shape[-1]
        self.c = (
            self.Q[:, :, None, :] * self.K[:, None, :, :] / d**0.5
        )  # c_jir of equation 4
        self.Z = self.c.sum(-1)
        e = (self.Z - self.Z.max(-1, keepdim=True).values).exp()
        self.A = e / e.sum(-1, keepdim=True)
        self.AV = self.A[..., None] * self.V[:, None]  # A_ji V_ip
        self.O = self.AV.sum(2)
        return self.O.transpose(0, 1).reshape(x.shape)

    def back(self, R, eps, bypass):
        R = self.split(R)
        if bypass:
            RV = (self.AV / stab(self.O, eps)[:, :, None] * R[:, :, None]).sum(
                1
            )
            RQ = RK = torch.zeros_like(RV)
        else:
            share = (
                self.AV
                / (2 * self.O + eps * torch.where(self.O < 0, -1.0, 1.0))[
                    :, :, None
                ]
                * R[:, :, None]
            )
            # 3a, 3b
            RA = share.sum(-1)
            RV = share.sum(1)
            RZ = self.Z * (RA - self.A * RA.sum(-1, keepdim=True))  # 5
            share = (
                self.c
                / (2 * self.Z + eps * torch.where(self.Z < 0, -1.0, 1.0))[
                    ..., None
                ]
                * RZ[..., None]
            )
            # 4a, 4b
            RQ = share.sum(2)
            RK = share.sum(1)

        def merge(r):
            return r.transpose(0, 1).reshape(r.shape[1], -1)

        return sum(
            f.back(merge(r), eps)
            for f, r in ((self.q, RQ), (self.k, RK), (self.v, RV))
        )


def explain(
    state, ids, *, layers, heads, ln_eps, bypass=(), target=None, eps=1e-12
):
    """→ logits, relevance of the word embeddings (n_tokens,), relevance of
    words + positions + token types.
    """
    sd = {k: v.double() for k, v in state.items()}
    word, pos, typ = (
        sd[f'bert.embeddings.{n}_embeddings.weight']
        for n in ('word', 'position', 'token_type')
    )
    w = word[ids]
    p = pos[: len(ids)] + typ[0]
    ln0 = LayerNorm(sd, 'bert.embeddings.LayerNorm', ln_eps)
    x = ln0(w + p)
    tape = []
    for l in range(layers):
        n = f'bert.encoder.layer.{l}'
        at = Attention(sd, f'{n}.attention', heads)
        o = Linear(sd, f'{n}.attention.output.dense')
        ln1 = LayerNorm(sd, f'{n}.attention.output.LayerNorm', ln_eps)
        up = Linear(sd, f'{n}.intermediate.dense')
        down = Linear(sd, f'{n}.output.dense')
        ln2 = LayerNorm(sd, f'{n}.output.LayerNorm', ln_eps)
        a = o(at(x))
        y = ln1(a + x)
        u = up(y)
        act = u * 0.5 * (1 + torch.from_numpy(erf((u / 2**0.5).numpy())))
        d = down(act)
        tape.append((at, o, ln1, up, down, ln2, a, x, y, d))
        x = ln2(d + y)
    pool = Linear(sd, 'bert.pooler.dense')
    head = Linear(sd, 'classifier')
    logits = head(pool(x[0]).tanh())
    t = int(logits.argmax()) if target is None else target
    R = torch.zeros_like(logits)
    R[t] = logits[t]
    r0 = pool.back(head.back(R, eps), eps)  # tanh: one input, all of it
    R = torch.zeros_like(x)
    R[0] = r0
    for l, (at, o, ln1, up, down, ln2, a, x_in, y, d) in reversed(
        list(enumerate(tape))
    ):
        Rd, Ry = add_back(d, y, ln2.back(R, eps), eps)
        Ry = Ry + up.back(down.back(Rd, eps), eps)  # GELU: one input, all of it
        Ra, Rx = add_back(a, x_in, ln1.back(Ry, eps), eps)
        R = Rx + at.back(o.back(Ra, eps), eps, l in bypass)
    total = ln0.back(R, eps)
    Rw, _ = add_back(w, p, total, eps)
    return logits, Rw.sum(-1), total.sum(-1)
