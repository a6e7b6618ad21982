"`import lrp_loo` is quick because it imports next to nothing, and nothing that the demo models need comes over a network."

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

CLOSED = '''
import socket, sys
asked = []
def refused(*args, **kwargs): asked.append(repr(args[:2])); raise OSError('there is no network')
class Closed(socket.socket):                     # a class, because others inherit from it
    def __init__(self, *args, **kwargs): refused(*args)
plain, socket.socket = socket.socket, Closed
for name in ('connect', 'connect_ex', 'sendto'): setattr(Closed, name, refused)
for name in ('getaddrinfo', 'gethostbyname', 'create_connection', 'socketpair'): setattr(socket, name, refused)
'''
USE = '''
import json, lrp_loo
m, tok = lrp_loo.load_demo('sst2'); lm, lm_tok = lrp_loo.load_demo('reviews'); texts = lrp_loo.load_texts('sst2', 'embedded', limit=2).texts
a, = lrp_loo.explain(m, tok, 'a fine film', method='cp_lrp'); b, = lrp_loo.explain(lm, lm_tok, 'The acting is', method='loo')
table = lrp_loo.audit(m, tok, texts, ['attn_lrp', 'removal'], progress=False)
print(json.dumps(dict(tokens=a.tokens, next=b.label, rows=list(table.index), loo_r=table.loo_r.between(-1, 1).all().item(), asked=globals().get('asked'))))
'''


def run(code, *before, **env):
    "In a process of its own, with nothing said about being offline."
    settings = {
        k: v
        for k, v in os.environ.items()
        if k
        not in (
            'HF_HUB_OFFLINE',
            'TRANSFORMERS_OFFLINE',
            'HF_DATASETS_OFFLINE',
        )
    } | env
    done = subprocess.run(
        [*before, sys.executable, '-c', textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=settings,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_is_light_and_quick():
    """What counts is what is imported; the time is the best of five, since a
    machine may be busy.
    """
    code = (
        "import json, sys, time; start = time.perf_counter(); before ="
        " set(sys.modules); import lrp_loo; t = time.perf_counter() - start;"
        " print(json.dumps([t, sorted({m.split('.')[0] for m in"
        " set(sys.modules) - before})]))"
    )
    found = [run(code) for _ in range(5)]
    assert not {
        'torch',
        'transformers',
        'numpy',
        'pandas',
        'matplotlib',
        'datasets',
        'peft',
        'fastcore',
    } & set(found[0][1]), found[0][1]
    assert min(t for t, _ in found) < 2


def test_without_sockets():
    """A socket that is asked for, even where the answer no is accepted, would
    be seen.
    """
    d = run(CLOSED + USE)
    assert (
        d['asked'] == []
        and d['tokens'] == ['[CLS]', 'a', 'fine', 'film', '[SEP]']
        and d['rows'] == ['attn_lrp', 'removal']
        and d['loo_r']
        and d['next']
    )


def test_closed_sockets_are_closed():
    d = run(
        CLOSED + "import json, urllib.request\ntry:"
        " urllib.request.urlopen('http://127.0.0.1:9')\nexcept OSError as e:"
        " print(json.dumps([str(e), len(asked)]))"
    )
    assert 'there is no network' in d[0] and d[1] == 1


def test_without_a_network():
    "The whole process in a network of its own that holds nothing."
    alone = next(
        (
            a
            for a in (['unshare', '-n'], ['unshare', '-rn'])
            if shutil.which('unshare')
            and subprocess.run([*a, 'true'], capture_output=True).returncode
            == 0
        ),
        None,
    )
    if alone is None:
        pytest.skip('no network of its own may be made here')
    assert run(USE, *alone)['rows'] == ['attn_lrp', 'removal']
