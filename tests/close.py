"""Tolerances for comparisons of computed floats, from the dtype and the length of the sums.

A sum of n terms is off by at most (n − 1)·eps times the sum of their absolute values
(Higham 2002, equation 4.4). Two ways to compute one number may both be off by that.
"""

import numpy as np
import torch


def tolerance(
    dtype: torch.dtype = torch.float32,
    n_terms: int = 1024,  # terms of the longest sum; MiniLM's is 1,536
) -> float:
    "Return the largest relative difference of two sums of `n_terms` terms."
    return 2 * n_terms * torch.finfo(dtype).eps


def assert_close(
    actual,  # number, list, array or tensor
    expected,  # the same shape
    n_terms: int = 1024,
    scale: float | None = None,  # size of the terms; None: the largest |expected|
    dtype: torch.dtype | None = None,  # None: the coarser dtype of the two tensors
) -> None:
    "Raise AssertionError if two results differ by more than rounding can explain."
    if dtype is None:
        kinds = [x.dtype for x in (actual, expected) if isinstance(x, torch.Tensor)]
        kinds = [d for d in kinds if d.is_floating_point] or [torch.float32]
        dtype = max(kinds, key=lambda d: torch.finfo(d).eps)
    a, b = (
        torch.from_numpy(np.array(_on_cpu(x), dtype=np.float64))
        for x in (actual, expected)
    )
    assert a.shape == b.shape, f'shapes {tuple(a.shape)} and {tuple(b.shape)}'
    if scale is None:
        scale = float(b.abs().max()) if b.numel() else 0.0
    limit = tolerance(dtype, n_terms) * scale
    difference = float((a - b).abs().max()) if b.numel() else 0.0
    assert difference <= limit, f'differ by {difference:.3g}, allowed {limit:.3g}'


@torch.no_grad()
def masked_one_at_a_time(
    enc: dict,  # one encoded text
    read,  # the model's inputs → a number, or several
) -> tuple:  # f of the whole text; f minus f without each token, (T, …)
    "Compute LOO by the definition: one forward pass for each masked token."
    mask = enc.get('attention_mask', torch.ones_like(enc['input_ids']))
    places = torch.eye(mask.shape[1], dtype=mask.dtype)
    masks = [mask, *(mask * (1 - place) for place in places)]
    whole, *gone = (read(enc | dict(attention_mask=m)) for m in masks)
    return whole, whole - torch.stack(gone)


def _on_cpu(x):
    "Return tensors as float64 on the CPU, anything else unchanged."
    return x.detach().double().cpu().numpy() if isinstance(x, torch.Tensor) else x
