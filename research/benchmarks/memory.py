"""Peak memory of AttnLRP with and without checkpointing, by number of
layers, each in a process of its own.

python research/benchmarks/memory.py [--out results/memory.json]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

LAYERS = (4, 9, 16, 36, 64)
TOKENS = 512
WIDTH = 256


def measure(layers, checkpoint):
    "MiB above what the loaded model takes, and seconds of the second pass."
    import resource
    import time

    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from lrp_loo.methods.baselines import lrp_scores

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = (
        BertForSequenceClassification(
            BertConfig(
                vocab_size=100,
                hidden_size=WIDTH,
                num_hidden_layers=layers,
                num_attention_heads=4,
                intermediate_size=4 * WIDTH,
            )
        )
        .eval()
        .requires_grad_(False)
    )
    batch = dict(
        input_ids=torch.randint(0, 100, (1, TOKENS)),
        attention_mask=torch.ones(1, TOKENS, dtype=torch.long),
    )

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    short = {k: v[:, :8] for k, v in batch.items()}
    lrp_scores(model, None, [short], checkpoint=checkpoint)
    before = peak()  # everything is imported and allocated once
    lrp_scores(model, None, [batch], checkpoint=checkpoint)
    start = time.perf_counter()
    lrp_scores(model, None, [batch], checkpoint=checkpoint)
    return dict(mib=peak() - before, seconds=time.perf_counter() - start)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument(
        '--out', default=str(Path(__file__).parent.parent / 'results' / 'memory.json')
    )
    ap.add_argument('--one', nargs=2)
    a = ap.parse_args()
    if a.one:
        return print(json.dumps(measure(int(a.one[0]), a.one[1] == 'checkpoint')))
    from lrp_loo.evaluate.results import Results

    r = Results(
        a.out,
        dict(
            experiment='memory',
            model='BertForSequenceClassification, random',
            width=WIDTH,
            tokens=TOKENS,
            batch=1,
            dtype='float32',
            threads=1,
            data=dict(name='none'),
        ),
        fresh=True,
    )
    print(
        f'{"layers":>6} {"plain MiB":>10} {"checkpointed MiB":>17} {"time ratio":>11}'
    )
    for i, layers in enumerate(LAYERS):
        plain, check = (
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, '--one', str(layers), how],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for how in ('plain', 'checkpoint')
        )
        r.add(
            dict(
                i=i,
                layers=layers,
                plain=plain,
                checkpoint=check,
                time_ratio=check['seconds'] / plain['seconds'],
            )
        )
        print(
            f"{layers:6d} {plain['mib']:10.0f} {check['mib']:17.0f}"
            f" {check['seconds'] / plain['seconds']:11.2f}"
        )


if __name__ == '__main__':
    main()
