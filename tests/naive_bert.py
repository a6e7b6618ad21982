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
        return (z * (R / stab(self.z, eps))[..., None, :]).sum(-1)


class LayerNorm:
    def __init__(self, sd, name, ln_eps):
        self.g = sd[f'{name}.weight']
        self.b = sd[f'{name}.bias']
        self.e = ln_eps

    def __call__(self, x):
        self.x = x
        n = x.shape[-1]
        self.std = (
            ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + self.e
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
    bias = 0.0  # added to the logits

    def __init__(self, sd, name, heads):
        self.q, self.k, self.v = (
            Linear(sd, f'{name}.self.{n}') for n in ('query', 'key', 'value')
        )
        self.h = heads

    def split(self, x):
        return x.view(x.shape[0], self.h, -1).transpose(0, 1)  # [head, token, d]

    def __call__(self, x):
        self.Q, self.K, self.V = (self.split(f(x)) for f in (self.q, self.k, self.v))
        d = self.Q.shape[-1]
        self.c = (
            self.Q[:, :, None, :] * self.K[:, None, :, :] / d**0.5
        )  # c_jir of equation 4
        self.Z = self.c.sum(-1)
        Z = self.Z + self.bias
        e = (Z - Z.max(-1, keepdim=True).values).exp()
        self.A = e / e.sum(-1, keepdim=True)
        self.AV = self.A[..., None] * self.V[:, None]  # A_ji V_ip
        self.O = self.AV.sum(2)
        return self.O.transpose(0, 1).reshape(x.shape)

    def back(self, R, eps, bypass):
        R = self.split(R)
        if bypass:
            RV = self.constant_weights_back(R, eps)
            RQ = RK = torch.zeros_like(RV)
        else:
            RA, RV = self.product_back(R, eps)
            RQ, RK = self.logits_back(self.softmax_back(RA), eps)
        return sum(
            f.back(merge(r), eps) for f, r in ((self.q, RQ), (self.k, RK), (self.v, RV))
        )

    def constant_weights_back(self, R, eps):
        "Equation 1 for the values."
        shares = self.AV / stab(self.O, eps)[:, :, None]
        return (shares * R[:, :, None]).sum(1)

    def product_back(self, R, eps):
        "Equations 3a, 3b."
        shares = self.AV / doubled(self.O, eps)[:, :, None] * R[:, :, None]
        return shares.sum(-1), shares.sum(1)

    def softmax_back(self, RA):
        "Equation 5."
        return self.Z * (RA - self.A * RA.sum(-1, keepdim=True))

    def logits_back(self, RZ, eps):
        "Equations 4a, 4b."
        shares = self.c / doubled(self.Z, eps)[..., None] * RZ[..., None]
        return shares.sum(2), shares.sum(1)


def doubled(z, eps):
    "The denominator of a product of two."
    return 2 * z + eps * torch.where(z < 0, -1.0, 1.0)


def merge(r):
    "The heads of a token side by side."
    return r.transpose(0, 1).reshape(r.shape[1], -1)


def gelu(u):
    return u * 0.5 * (1 + torch.from_numpy(erf((u / 2**0.5).numpy())))


class Layer:
    "LayerNorm behind each residual."

    def __init__(self, sd, name, heads, ln_eps):
        self.at = Attention(sd, f'{name}.attention', heads)
        self.o = Linear(sd, f'{name}.attention.output.dense')
        self.ln1 = LayerNorm(sd, f'{name}.attention.output.LayerNorm', ln_eps)
        self.up = Linear(sd, f'{name}.intermediate.dense')
        self.down = Linear(sd, f'{name}.output.dense')
        self.ln2 = LayerNorm(sd, f'{name}.output.LayerNorm', ln_eps)

    def __call__(self, x):
        self.x = x
        self.a = self.o(self.at(x))
        self.y = self.ln1(self.a + x)
        self.d = self.down(gelu(self.up(self.y)))
        return self.ln2(self.d + self.y)

    def back(self, R, eps, bypass):
        Rd, Ry = add_back(self.d, self.y, self.ln2.back(R, eps), eps)
        # GELU: one input, all of it
        Ry = Ry + self.up.back(self.down.back(Rd, eps), eps)
        Ra, Rx = add_back(self.a, self.x, self.ln1.back(Ry, eps), eps)
        return Rx + self.at.back(self.o.back(Ra, eps), eps, bypass)


def forwards(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def backwards(layers, R, eps, bypass, **how):
    for l, layer in reversed(list(enumerate(layers))):
        R = layer.back(R, eps, l in bypass, **how)
    return R


def only_target(logits, target):
    "What is explained: one logit, the largest by default."
    t = int(logits.argmax()) if target is None else target
    R = torch.zeros_like(logits)
    R[t] = logits[t]
    return R


def only_row(x, row, r):
    "The relevance of one token, the others have none."
    R = torch.zeros_like(x)
    R[row] = r
    return R


class Embeddings:
    "Words, and what is added to them."

    def __init__(self, sd, ln_eps):
        self.word, self.position, self.type = (
            sd[f'bert.embeddings.{n}_embeddings.weight']
            for n in ('word', 'position', 'token_type')
        )
        self.ln = LayerNorm(sd, 'bert.embeddings.LayerNorm', ln_eps)

    def __call__(self, ids):
        self.w = self.word[ids]
        self.p = self.position[: len(ids)] + self.type[0]
        return self.ln(self.w + self.p)

    def back(self, R, eps):
        "Of the words alone, and of the sum."
        total = self.ln.back(R, eps)
        return add_back(self.w, self.p, total, eps)[0], total


def explain(state, ids, *, layers, heads, ln_eps, bypass=(), target=None, eps=1e-12):
    """→ logits, relevance of the word embeddings (n_tokens,), relevance of
    words + positions + token types.
    """
    sd = {k: v.double() for k, v in state.items()}
    embeddings = Embeddings(sd, ln_eps)
    stack = [Layer(sd, f'bert.encoder.layer.{l}', heads, ln_eps) for l in range(layers)]
    pool = Linear(sd, 'bert.pooler.dense')
    head = Linear(sd, 'classifier')
    x = forwards(stack, embeddings(ids))
    logits = head(pool(x[0]).tanh())
    r = head.back(only_target(logits, target), eps)
    r = pool.back(r, eps)  # tanh: one input, all of it
    R = backwards(stack, only_row(x, 0, r), eps, bypass)
    words, total = embeddings.back(R, eps)
    return logits, words.sum(-1), total.sum(-1)
