"""Kills, two processes on one file, full disks, lost machines: what becomes of the rows.

    python research/benchmarks faults rows [--kills 10] [--pairs 20]
    python research/benchmarks faults ray [--texts 96] [--write]

rows: every case runs in child processes beside files of somebody else. After each one the
finished rows are compared with those of a run that nothing disturbed. Needs os.fork; as
root also a small disk is mounted and a child becomes `nobody`. Prints JSON.
ray: sweeps over workers of Ray (pip install -e '.[ray]'): a worker killed; one of two
nodes on this machine gone; the driver killed, and the call made again. Every row is held
against those of one process. Seconds are of 1 and 2 workers. `--write`: results/ray.json.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification
from common import PRODUCT

from lrp_loo import audit, calibrate, load, load_demo, load_texts, sweep
from lrp_loo.core.files import versions, write_text_atomic
from lrp_loo.evaluate.sweep import read_sweep
from lrp_loo.paper.common import RunOptions
from lrp_loo.paper.reproduce import reproduce
from lrp_loo.records.results import Results, read_results

NOBODY = 65534
FOREIGN = ('reviews.parquet', '.notes.tmp', '.r.json.backup.tmp', '.r.json.1.tmp')
QUIET = dict(progress=False)


def small_model():
    "Return a BERT with random weights and the demo's tokenizer."
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    config = BertConfig(intermediate_size=64, **sizes)
    return BertForSequenceClassification(config).eval(), load_demo('sst2')[1]


class LoggedResults(Results):
    "Results of a process that logs each row once the row is in the file."

    def add(self, row):
        super().add(row)
        with open(self.path.with_name(f'log-{os.getpid()}'), 'a') as f:
            f.write(f'{row["i"]}\n')


class Jobs:
    "The runs, each with a folder to write into, and how its finished rows are read."

    def __init__(self, texts):
        self.demo, self.texts = small_model(), texts
        self.names = ('sweep', 'audit', 'reproduce', 'calibrate')

    def run(self, name, out, pause=0, limit=None):
        """Run a job into a folder. `pause`: seconds between opening and computing;
        `limit`: largest size of a file.
        """
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if name == 'sweep':
            sweep(*self.demo, self.texts, out, 'attn_lrp', batch_size=2, **QUIET)
        if name == 'audit':
            results = LoggedResults(out / 'r.json', dict(experiment='audit'))
            time.sleep(pause)
            audit(*self.demo, self.texts, ['attn_lrp'], results=results, **QUIET)
            results.summary = dict(n=len(results.rows))
            results.save()
        if name == 'reproduce':
            with contextlib.redirect_stdout(io.StringIO()):
                reproduce(RunOptions('embedded', limit=16, longest=24), 'sst2', out)
        if name == 'calibrate':
            texts = self.texts[:8]
            calibrate(*self.demo, texts, 'removal', **QUIET).save(out / 'r.json')

    def rows(self, name, out):
        "Return the finished rows of a job as texts of JSON."
        if name == 'sweep':
            if not (out / 'sweep.json').exists():
                return []
            table = read_sweep(out).drop(columns='worker')
            return table.to_json(orient='records', lines=True).splitlines()
        paths = [f for f in out.rglob('*.json') if f.name != 'against_paper.json']
        if name == 'calibrate':
            return [json.dumps(load(f).to_dict()) for f in paths]
        stored = map(read_results, paths)  # others: not yet of a call that goes on
        return [timeless(row) for d in stored for row in d['rows'] + d['others']]


def timeless(row):
    "Return a row as a text of JSON, without the seconds that it took."
    for entry in row.get('methods', {}).values():
        entry.pop('seconds', None)
    return json.dumps({k: v for k, v in row.items() if k != 'checksum'})


def foreign(folder):
    return [folder / name for name in FOREIGN]


def add_foreign(folder):
    "Write files of somebody else into a folder; return their state."
    folder.mkdir(exist_ok=True)
    for f in foreign(folder):
        f.write_bytes(b'PAR1 of somebody else')
    return state_of(foreign(folder))


def state_of(files):
    return [(f.read_bytes(), f.stat().st_mode, f.stat().st_uid) for f in files]


def start(job, *arguments, user=None, kill_after=None):
    "Run a job in a child; return its id, or if it is killed whether it was alive."
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        try:
            if user:
                os.setgid(user)
                os.setuid(user)
            job(*arguments)
        except BaseException as e:
            print(f'{type(e).__name__}: {e}', file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after is None:
        return pid
    time.sleep(kill_after)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def ends_well(pid):
    return os.waitpid(pid, 0)[1] == 0


def undisturbed(jobs, name, folder):
    "Return the rows of a run that nothing disturbs, and the seconds that it took."
    folder.mkdir()
    begin = time.monotonic()
    assert ends_well(start(jobs.run, name, folder))
    return jobs.rows(name, folder), time.monotonic() - begin


class Count(dict):
    "What the cases did to rows and files."

    def __init__(self, **others):
        fields = ('lost', 'doubled', 'unlike', 'foreign_touched', 'left_behind')
        super().__init__(others | dict.fromkeys(fields, 0))

    def compare(self, before, now, whole):
        "Count rows that were there and are not, that are twice, and that differ."
        self['lost'] += len(set(before) - set(now))
        self['doubled'] += len(now) - len(set(now))
        self['unlike'] += len(set(now) - set(whole))

    def look_at(self, folder, theirs):
        "Count foreign files that changed, and hidden files that were left behind."
        if theirs:
            self['foreign_touched'] += state_of(foreign(folder)) != theirs
        self['left_behind'] += len(set(folder.rglob('.*')) - set(foreign(folder)))


def kills(jobs, folder, n, rng):
    "SIGKILL at random times; each job goes on until it has been killed n times."
    report = {}
    for name in jobs.names:
        out, before = folder / name, []
        whole, took = undisturbed(jobs, name, folder / f'{name}-whole')
        count = Count(rows=len(whole), killed=0)
        count['killed'] += start(jobs.run, name, out, kill_after=took / 3)
        theirs = add_foreign(out)
        while count['killed'] < n:
            # as long as a run has rows to compute, later ones end sooner
            delay = rng.uniform(0, took * (1 - len(before) / (len(whole) + 1)))
            count['killed'] += start(jobs.run, name, out, kill_after=delay)
            now = jobs.rows(name, out)
            count.compare(before, now, whole)
            before = now
        count['rows_at_the_last_kill'] = len(before)
        assert ends_well(start(jobs.run, name, out))
        count.compare(whole, jobs.rows(name, out), whole)
        count.look_at(out, theirs)
        report[name] = count
    return report


def interleavings(jobs, folder, n, rng):
    "Two processes on one results file, watched; and two sweeps at once."
    whole, took = undisturbed(jobs, 'audit', folder / 'two-whole')
    count = Count(pairs=n, rows=len(whole), looks=0, logged=0, both_wrote=0)
    for k in range(n):
        out = folder / f'two-{k}'
        theirs, pids = add_foreign(out), []
        for pause in rng.uniform(0, took, 2):
            pids.append(start(jobs.run, 'audit', out, pause))
            time.sleep(rng.uniform(0, took / 4))
        seen, logs = [], [out / f'log-{pid}' for pid in pids]
        while pids:  # no row that was seen, or that a process finished, may be missing
            logged = [log.read_text().split() if log.exists() else [] for log in logs]
            now = jobs.rows('audit', out)
            count.compare(seen, now, whole)
            indices = {str(json.loads(row)['i']) for row in now}
            count['lost'] += len(set(sum(logged, [])) - indices)
            count['looks'] += now != seen
            seen = now
            ended = [os.waitpid(pid, os.WNOHANG) for pid in pids]
            assert not any(status for _, status in ended)
            pids = [pid for pid, (is_ended, _) in zip(pids, ended) if not is_ended]
        count.compare(whole, jobs.rows('audit', out), whole)
        count['logged'] += len(sum(logged, []))
        count['both_wrote'] += all(logged)
        count['lost'] += read_results(out / 'r.json').get('summary') is None
        count.look_at(out, theirs)
    whole, took = undisturbed(jobs, 'sweep', folder / 'sweeps-whole')
    out = folder / 'sweeps'
    first = start(jobs.run, 'sweep', out)
    assert ends_well(start(jobs.run, 'sweep', out)) and ends_well(first)
    count.compare(whole, jobs.rows('sweep', out), whole)
    return count


def full_disk(jobs, folder):
    "A small disk, or where nothing may be mounted a limit of a file's size."
    report = {}
    for name in ('audit', 'sweep'):
        out = folder / f'full-{name}'
        whole, _ = undisturbed(jobs, name, folder / f'full-{name}-whole')
        files = (folder / f'full-{name}-whole').iterdir()
        # an audit writes its file beside the old one
        room = max(sum(f.stat().st_size for f in files), 2**13)
        out.mkdir()
        words = ['mount', '-t', 'tmpfs', '-o', f'size={room}', 'tmpfs', str(out)]
        mounted = not subprocess.run(words, capture_output=True).returncode
        count = Count(mounted=mounted)
        try:
            limit = None if mounted else room // 2
            count['failed'] = not ends_well(start(jobs.run, name, out, 0, limit))
            before = jobs.rows(name, out)
            count['rows_kept'] = len(before)
            if mounted:
                words = ['mount', '-o', 'remount,size=64m', str(out)]
                subprocess.run(words, check=True)
            assert ends_well(start(jobs.run, name, out))
            now = jobs.rows(name, out)
            count.compare(before, now, whole)
            count.compare(whole, now, whole)
            count.look_at(out, None)
        finally:
            if mounted:
                subprocess.run(['umount', str(out)], check=True)
        report[name] = count
    return report


# job, mode of the folder, of its record (sweep.json or r.json), of other files
OF_ROOT = (
    ('sweep', 0o777, 0o644, 0o600),
    ('sweep', 0o777, 0o600, 0o600),
    ('sweep', 0o755, 0o644, 0o644),
    ('sweep', 0o733, 0o644, 0o644),
    ('audit', 0o777, 0o644, 0o644),
    ('audit', 0o777, 0o600, 0o600),
    ('audit', 0o755, 0o644, 0o644),
)


def other_user(jobs, folder):
    "Files of root, and a child that is nobody: it is refused and changes nothing."
    if os.getuid():
        return 'not tried: it takes root'
    count = Count(cases=len(OF_ROOT), refused=0)
    folder.chmod(0o755)
    for k, (name, folder_mode, record_mode, file_mode) in enumerate(OF_ROOT):
        out = folder / f'root-{k}'
        # one row less than nobody asks for
        short = Jobs(jobs.texts[:-2])
        assert ends_well(start(short.run, name, out))
        files = list(out.iterdir())
        for f in files:
            f.chmod(record_mode if f.suffix == '.json' else file_mode)
        out.chmod(folder_mode)
        before = state_of(files)
        count['refused'] += not ends_well(start(jobs.run, name, out, user=NOBODY))
        count['foreign_touched'] += before != state_of(files)
        count['left_behind'] += len(list(out.iterdir())) - len(files)
    return count


def rows(args):
    "Print what becomes of rows and files in every case."
    rng = np.random.default_rng(0)
    jobs = Jobs(load_texts('sst2', 'embedded', limit=args.texts or 32).texts)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        report = dict(other_user=other_user(jobs, folder))
        report['full_disk'] = full_disk(jobs, folder)
        report['two_processes'] = interleavings(jobs, folder, args.pairs, rng)
        report['kills'] = kills(jobs, folder, args.kills, rng)
    print(json.dumps(report, indent=1))


# ------------------------------------------------------------------ Ray

LEFT = 600  # seconds until a run is given up
N_BEGUN = 2  # batches that a victim has begun when it is killed
VICTIMS = ('worker', 'node', 'driver')


def killed(marks):
    "Return the file that says that the victim is gone."
    return Path(marks).with_name('killed')


def begun_by(marks, victim):
    """Return an entry 'process.node' for each batch that a victim has begun: 'worker' is
    the first process, 'driver' all of them, anything else the id of a node.
    """
    begun = sorted(f.name for f in Path(marks).iterdir())
    owners = [name.partition('.')[2] for name in begun]
    end = dict(worker=owners[0] if owners else '', driver='').get(victim, victim)
    return [owner for owner in owners if owner.endswith(end)]


def marking(marks, victim):
    """Return AttnLRP as a method that marks each batch that is begun and then waits for
    the kill, but for the victim's first batches: speed decides nothing.
    """

    def method(model, tokenizer, encs, target=None):
        import ray

        from lrp_loo.methods.table import METHODS

        own = f'{os.getpid()}.{ray.get_runtime_context().get_node_id()}'
        (Path(marks) / f'{time.time_ns()}.{own}').touch()
        begun, end = begun_by(marks, victim), time.monotonic() + LEFT
        waits = own not in begun or len(begun) >= N_BEGUN
        while waits and not killed(marks).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return METHODS['attn_lrp'](model, tokenizer, encs, target)

    return method


HOW = dict(device='cpu', batch_size=2, progress=False)


def drive(args):
    "Run one sweep over Ray's workers; print its seconds."
    import ray

    job = json.loads(args.job)
    methods = 'attn_lrp'
    if job['victim']:
        methods = {'attn_lrp': (marking(job['marks'], job['victim']), {})}
    ray.init(address=job['address'], log_to_driver=False, logging_level='ERROR')
    texts = load_texts('sst2', 'embedded', limit=args.texts, seed=0).texts
    start, workers = time.perf_counter(), dict(engine='ray', workers=job['workers'])
    sweep('demo', None, texts, job['out'], methods, **workers, **HOW)
    print(round(time.perf_counter() - start, 2))


def driver(n_texts, **job):
    "Start a process that drives a sweep."
    call = [sys.executable, __file__, 'drive', '--texts', str(n_texts)]
    call += ['--job', json.dumps(job)]
    return subprocess.Popen(call, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def two_nodes():
    "Give a cluster of two nodes on this machine, and the second of them."
    from ray.cluster_utils import Cluster

    os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
    plain = dict(include_dashboard=False)
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=4, **plain))
    try:
        yield cluster, cluster.add_node(num_cpus=2, **plain)
    finally:
        cluster.shutdown()


def kill(victim, cluster, node, process, marks):
    "Wait until the victim has begun its batches, and kill it; return what was begun."
    name = node.node_id if victim == 'node' else victim
    end = time.monotonic() + LEFT
    while len(begun_by(marks, name)) < N_BEGUN and time.monotonic() < end:
        time.sleep(0.01)
    begun = begun_by(marks, name)
    if victim == 'worker':
        os.kill(int(begun[0].partition('.')[0]), signal.SIGKILL)
    if victim == 'node':
        cluster.remove_node(node, allow_graceful=False)
    if victim == 'driver':
        process.kill()
    killed(marks).touch()
    return dict(begun=len(begun_by(marks, 'driver')), begun_by_victim=len(begun))


def run_with_a_kill(victim, folder, n_texts):
    "Return what came of a sweep whose victim is killed, and of its repetition."
    folder.mkdir()
    marks = folder / 'marks'
    marks.mkdir()
    with two_nodes() as (cluster, node):
        name = node.node_id if victim == 'node' else victim
        job = dict(out=str(folder / 'out'), marks=str(marks), victim=name, workers=3)
        job['address'] = cluster.address
        process = driver(n_texts, **job)
        found = kill(victim, cluster, node, process, marks)
        calls = 1
        while process.wait(LEFT) and calls < 5:
            process, calls = driver(n_texts, **job), calls + 1
    found |= dict(victim=victim, calls=calls)
    return found | dict(begun_in_all=len(begun_by(marks, 'driver')))


def unlike(found, wanted):
    "Count the rows that are not the same to the bit."
    columns = ['index', 'text_sha256', 'target', 'tokens', 'scores', 'loo']
    found, wanted = (
        [json.dumps(row) for row in t[columns].to_dict('records')]
        for t in (found, wanted)
    )
    return len(set(found) ^ set(wanted))


def ray(args):
    "Print what becomes of a sweep's rows when a part of Ray is killed."
    import ray as package

    n = args.texts or 96
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        texts = load_texts('sst2', 'embedded', limit=n, seed=0).texts
        sweep('demo', None, texts, folder / 'plain', 'attn_lrp', **HOW)
        wanted, cases = read_sweep(folder / 'plain'), []
        for victim in args.victims.split(','):
            case = run_with_a_kill(victim, folder / victim, n)
            found = read_sweep(folder / victim / 'out')
            case |= dict(rows_expected=n, rows_read=len(found))
            case['duplicates'] = int(found.duplicated(['index', 'method']).sum())
            case['unlike_one_process'] = unlike(found, wanted)
            print(case, flush=True)
            cases.append(case)
        seconds = {}
        for workers in map(int, filter(None, args.workers.split(','))):
            with two_nodes() as (cluster, _):
                job = dict(out=str(folder / f'{workers}'), victim=None)
                job |= dict(workers=workers, address=cluster.address)
                seconds[workers] = float(driver(n, **job).communicate()[0])
            # the last digits depend on the threads of a process
            torch.set_num_threads(max(1, os.cpu_count() // workers))
            sweep('demo', None, texts, folder / 'plain', 'attn_lrp', fresh=True, **HOW)
            rows_of_one = read_sweep(folder / 'plain')
            assert not unlike(read_sweep(folder / f'{workers}'), rows_of_one)
    record = dict(versions=versions() | dict(ray=package.__version__))
    record |= dict(cases=cases, seconds=seconds)
    print(json.dumps(record['seconds']))
    if args.write:
        write_text_atomic(Path(args.out), json.dumps(record, indent=1) + '\n')


COMMANDS = dict(rows=rows, ray=ray, drive=drive)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    p.add_argument('command', choices=COMMANDS)
    p.add_argument('--kills', type=int, default=10, help='of each of the four jobs')
    p.add_argument('--pairs', type=int, default=20, help='of processes on one file')
    p.add_argument('--texts', type=int)
    p.add_argument('--victims', default=','.join(VICTIMS), help='of Ray')
    p.add_argument('--workers', default='1,2', help='of Ray, timed')
    p.add_argument('--write', action='store_true', help='write --out, of Ray')
    p.add_argument('--out', default=str(PRODUCT / 'ray.json'))
    p.add_argument('--job', help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    torch.set_num_threads(1)
    COMMANDS[args.command](args)


if __name__ == '__main__':
    main()
