"""A product with weights by oneDNN against torch's default kernel, as
`lrp_loo.models.products` times them to choose.

python benchmarks/products.py
"""

import torch
from common import arguments, pairs, record
from torch.nn import functional as F

from lrp_loo.models.products import TIMED_ROWS, TIMED_WIDTH, product_of

TIMES = 200  # a product is some milliseconds

if __name__ == '__main__':
    args = arguments(__doc__)
    x = torch.randn(TIMED_ROWS, TIMED_WIDTH)
    weight = torch.randn(TIMED_WIDTH, TIMED_WIDTH)

    def ours():
        for _ in range(TIMES):
            product_of(F.linear, (x, weight), {})

    def default():
        for _ in range(TIMES):
            F.linear(x, weight)

    with torch.no_grad():
        measured = pairs(ours, default, args.rounds)
    operations = 2 * TIMES * TIMED_ROWS * TIMED_WIDTH**2
    record(
        args,
        'a product with weights',
        "torch's default kernel",
        None,
        dict(
            rows=TIMED_ROWS,
            width=TIMED_WIDTH,
            rate=operations / measured['ours'],
            default_rate=operations / measured['other'],
        ),
        **measured,
    )
