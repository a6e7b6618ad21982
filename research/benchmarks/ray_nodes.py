"""A sweep over two nodes of Ray, one of them killed in the middle: what is
lost, and what is there twice.

Both nodes run on this machine (ray.cluster_utils). The second is killed, with
all that runs there, when it has begun some batches; the last of them, and the first
batch of every other actor, wait for that, so that the speed decides nothing. The
same call then goes on until nothing is missing; every row is held against those of
one process.
Needs Ray (pip install -e '.[ray]'); writes results/ray.json.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

from lrp_loo import load_texts, sweep
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.evaluate.sweep import read_sweep

OUT = Path(__file__).parents[2] / 'results' / 'ray.json'
LEFT = 600  # seconds until the run is given up


def where_it_ran(folder, doomed, n):
    """A method: AttnLRP, which says on which node a batch was begun. It waits for the
    kill on every node but the doomed one, there in the n-th batch.
    """

    def method(model, tokenizer, encs, target=None):
        from lrp_loo.methods.table import METHODS

        node, end = ray.get_runtime_context().get_node_id(), time.monotonic() + LEFT
        (Path(folder) / f'{time.time_ns()}.{node}').touch()
        waits = node != doomed or len(list(Path(folder).glob(f'*.{doomed}'))) >= n
        while waits and not killed(folder).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    return method


def killed(folder):
    "The file that says that the node is gone."
    return Path(folder).with_name('killed')


def begun(folder, node=None):
    "How many batches were begun, of all or of one node."
    names = [f.suffix[1:] for f in folder.iterdir()]
    return len(names) if node is None else names.count(node)


def kill(cluster, node, folder, n, said):
    "The node, once it has begun its n-th batch."
    while begun(folder, node.node_id) < n and time.monotonic() < said['end']:
        time.sleep(0.01)
    said |= dict(begun=begun(folder), begun_there=begun(folder, node.node_id))
    cluster.remove_node(node, allow_graceful=False)
    killed(folder).touch()
    said['killed'] = True


def run(texts, folder, batch_size=2):
    "What came of it, as results/ray.json has it."
    out, marks = folder / 'out', folder / 'marks'
    marks.mkdir()
    os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
    how = dict(device='cpu', batch_size=batch_size, progress=False)
    plain = dict(include_dashboard=False)
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=4, **plain))
    node = cluster.add_node(num_cpus=2, **plain)
    n = max(2, len(texts) // 8)
    methods = {'mine': (where_it_ran(str(marks), node.node_id, n), {})}
    said = dict(end=time.monotonic() + LEFT, killed=False)
    calls = 0
    ray.init(address=cluster.address, log_to_driver=False, logging_level='ERROR')
    try:
        args = (cluster, node, marks, n, said)
        killer = threading.Thread(target=kill, args=args, daemon=True)
        killer.start()
        stopped = []
        while time.monotonic() < said['end']:
            calls += 1
            try:
                sweep('demo', None, texts, out, methods, engine='ray', workers=3, **how)
                break
            except (RuntimeError, ray.exceptions.RayError) as e:
                stopped.append(str(e).splitlines()[0][:200])
        killer.join(1)
    finally:
        ray.shutdown()
        cluster.shutdown()
    read = read_sweep(out)
    sweep('demo', None, texts, folder / 'plain', 'attn_lrp', **how)
    plain = read_sweep(folder / 'plain')
    same = ['index', 'text_sha256', 'target']
    differ = (read[same].values != plain[same].values).any(1)
    differ |= [list(a) != list(b) for a, b in zip(read.tokens, plain.tokens)]
    worst = max(
        abs(np.subtract(a, b)).max()
        for n in ('scores', 'loo')
        for a, b in zip(read[n], plain[n])
    )
    return dict(
        texts=len(texts),
        batches=-(-len(texts) // batch_size),
        killed=said['killed'],
        batches_begun_when_killed=said['begun'],
        of_which_on_the_killed_node=said['begun_there'],
        batches_begun_in_all=begun(marks),
        calls=calls,
        stopped=stopped,
        rows_expected=len(texts),
        rows_read=len(read),
        duplicates_read=int(read.duplicated(['index', 'method']).sum()),
        rows_unlike_one_process=int(differ.sum()),
        largest_difference_of_a_score=float(worst),
    )


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--texts', type=int, default=96)
    p.add_argument('--out', default=str(OUT))
    args = p.parse_args()
    texts = load_texts('sst2', 'embedded', limit=args.texts, seed=0).texts
    with tempfile.TemporaryDirectory() as folder:
        found = run(texts, Path(folder))
    record = dict(versions=versions() | dict(ray=ray.__version__), run=found)
    write_text_atomic(args.out, json.dumps(record, indent=1) + '\n')
    print(json.dumps(found, indent=1))


if __name__ == '__main__':
    main()
