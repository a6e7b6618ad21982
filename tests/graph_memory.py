"The memory that autograd's graphs hold."

import threading
from collections import Counter

import torch


class _Saved:
    "A saved tensor, counted for as long as a graph keeps it."

    def __init__(self, holders, tensor):
        storage = tensor.untyped_storage()
        self.tensor = tensor.detach()  # no node holds what holds the node
        self.holders, self.key = holders, (storage.data_ptr(), storage.nbytes())
        holders[self.key] += 1

    def __del__(self):
        self.holders[self.key] -= 1


def graph_bytes(f):
    "Return the largest number of bytes that saved tensors held while f() ran."
    holders, peak, lock = Counter(), [0], threading.Lock()

    def pack(tensor):
        saved = _Saved(holders, tensor)
        with lock:
            held = [size for (_, size), n in list(holders.items()) if n > 0]
            peak[0] = max(peak[0], sum(held))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        f()
    return peak[0]
