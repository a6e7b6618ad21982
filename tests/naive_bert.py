"""BERT and LRP derived a second time, from the paper's equations: explicit
contributions in float64, layer by layer, no autograd, no module of
transformers and nothing of lrp_loo. Reads nothing but the state dict. The other
naive models are made of the parts here.
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
        centred = x - x.mean(-1, keepdim=True)
        self.std = ((centred**2).mean(-1, keepdim=True) + self.e).sqrt()
        self.z = centred / self.std * self.g + self.b
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
    "Projections under three names, and what is added to the logits."

    def __init__(self, sd, names, heads, bias=0.0):
        self.q, self.k, self.v = (Linear(sd, name) for name in names)
        self.h = heads
        self.bias = bias

    def split(self, x):
        return x.view(x.shape[0], self.h, -1).transpose(0, 1)  # [head, token, d]

    def __call__(self, x):
        self.Q, self.K, self.V = (self.split(f(x)) for f in (self.q, self.k, self.v))
        d = self.Q.shape[-1]
        # c_jir of equation 4
        self.c = self.Q[:, :, None, :] * self.K[:, None, :, :] / d**0.5
        self.Z = self.c.sum(-1)
        Z = self.Z + self.bias
        e = (Z - Z.max(-1, keepdim=True).values).exp()
        self.A = e / e.sum(-1, keepdim=True)
        self.AV = self.A[..., None] * self.V[:, None]  # A_ji V_ip
        self.O = self.AV.sum(2)
        return merge(self.O)

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


class FeedForward:
    "Two linear layers, GELU between them: it has one input, which gets all."

    def __init__(self, sd, up, down):
        self.up, self.down = Linear(sd, up), Linear(sd, down)

    def __call__(self, x):
        u = self.up(x)
        gelu = u * 0.5 * (1 + torch.from_numpy(erf((u / 2**0.5).numpy())))
        return self.down(gelu)

    def back(self, R, eps):
        return self.up.back(self.down.back(R, eps), eps)


class PostNormLayer:
    "A norm behind each residual; the parts are `at`, `o`, `norm1`, `ff`, `norm2`."

    def __init__(self, **parts):
        vars(self).update(parts)

    def __call__(self, x):
        self.x = x
        self.a = self.o(self.at(x))
        self.y = self.norm1(self.a + x)
        self.d = self.ff(self.y)
        return self.norm2(self.d + self.y)

    def back(self, R, eps, bypass):
        Rd, Ry = add_back(self.d, self.y, self.norm2.back(R, eps), eps)
        Ry = Ry + self.ff.back(Rd, eps)
        Ra, Rx = add_back(self.a, self.x, self.norm1.back(Ry, eps), eps)
        return Rx + self.at.back(self.o.back(Ra, eps), eps, bypass)


class PreNormLayer(PostNormLayer):
    "A norm before attention and before the feed-forward part."

    def __call__(self, x):
        self.x = x
        self.a = self.o(self.at(self.norm1(x)))
        self.y = self.a + x
        self.d = self.ff(self.norm2(self.y))
        return self.d + self.y

    def back(self, R, eps, bypass):
        Rd, Ry = add_back(self.d, self.y, R, eps)
        Ry = Ry + self.norm2.back(self.ff.back(Rd, eps), eps)
        Ra, Rx = add_back(self.a, self.x, Ry, eps)
        Ra = self.at.back(self.o.back(Ra, eps), eps, bypass)
        return Rx + self.norm1.back(Ra, eps)


def block(sd, name, attention, output, norm, ln_eps):
    "BERT's and MPNet's layer; `output` and `norm` stand behind the attention."
    return PostNormLayer(
        at=attention,
        o=Linear(sd, output),
        norm1=LayerNorm(sd, norm, ln_eps),
        ff=FeedForward(sd, f'{name}.intermediate.dense', f'{name}.output.dense'),
        norm2=LayerNorm(sd, f'{name}.output.LayerNorm', ln_eps),
    )


def bert_layer(sd, l, heads, ln_eps):
    name = f'bert.encoder.layer.{l}'
    names = [f'{name}.attention.self.{n}' for n in ('query', 'key', 'value')]
    output, norm = (f'{name}.attention.output.{n}' for n in ('dense', 'LayerNorm'))
    return block(sd, name, Attention(sd, names, heads), output, norm, ln_eps)


def forwards(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def backwards(layers, R, eps, bypass):
    for l, layer in reversed(list(enumerate(layers))):
        R = layer.back(R, eps, l in bypass)
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


def explain(state, ids, *, layers, heads, ln_eps, bypass=(), target=None, eps=1e-12):
    """→ logits, relevance of the word embeddings (n_tokens,), relevance of
    words + positions + token types.
    """
    sd = {k: v.double() for k, v in state.items()}
    word, position, kind = (
        sd[f'bert.embeddings.{n}_embeddings.weight']
        for n in ('word', 'position', 'token_type')
    )
    ln = LayerNorm(sd, 'bert.embeddings.LayerNorm', ln_eps)
    stack = [bert_layer(sd, l, heads, ln_eps) for l in range(layers)]
    pool = Linear(sd, 'bert.pooler.dense')
    head = Linear(sd, 'classifier')
    words, added = word[ids], position[: len(ids)] + kind[0]
    x = forwards(stack, ln(words + added))
    logits = head(pool(x[0]).tanh())
    r = head.back(only_target(logits, target), eps)
    r = pool.back(r, eps)  # tanh: one input, all of it
    total = ln.back(backwards(stack, only_row(x, 0, r), eps, bypass), eps)
    return logits, add_back(words, added, total, eps)[0].sum(-1), total.sum(-1)
