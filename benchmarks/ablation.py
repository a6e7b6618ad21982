"""The layer-wise ablation, 3L configurations, against as many separate LRP
runs.

python benchmarks/ablation.py [--data FOLDER] [--sentences 16] [--reviews 2]
"""

from common import arguments, bypass_sets, pairs, record, texts

from lrp_loo.methods import explain_batch, explain_methods
from lrp_loo.models.layers import n_layers


def measure(args, name, n, longest):
    "One data set."
    model, tokenizer, _, encs, setting = texts(name, args, n, longest)
    sets = bypass_sets(n_layers(model))
    methods = {i: ('attn_lrp', dict(bypass_softmax=s)) for i, s in enumerate(sets)}

    def ours():
        return [explain_methods(model, tokenizer, [e], methods) for e in encs]

    def separate():
        return [
            explain_batch(model, tokenizer, [e], method, **options)
            for e in encs
            for method, options in methods.values()
        ]

    record(
        args,
        f'layer-wise ablation, {len(sets)} configurations, {name}',
        'separate LRP runs',
        5.0,
        setting,
        **pairs(ours, separate, args.rounds),
    )


if __name__ == '__main__':
    args = arguments(__doc__, sentences=16, reviews=2)
    measure(args, 'sst2', args.sentences, 128)
    measure(args, 'imdb', args.reviews, 256)
