"""`import lrp_loo` is quick because it imports next to nothing, and nothing
that the demo models need comes over a network.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

# Any socket that is asked for is noted and refused. `Closed` is a class,
# because others inherit from it.
CLOSED = '''
import socket, sys

asked = []


def refused(*args, **kwargs):
    asked.append(repr(args[:2]))
    raise OSError('there is no network')


class Closed(socket.socket):
    def __init__(self, *args, **kwargs):
        refused(*args)


plain, socket.socket = socket.socket, Closed
for name in ('connect', 'connect_ex', 'sendto'):
    setattr(Closed, name, refused)
names = ('getaddrinfo', 'gethostbyname', 'create_connection', 'socketpair')
for name in names:
    setattr(socket, name, refused)
'''
USE = '''
import json, lrp_loo

encoder = lrp_loo.load_demo('sst2')
decoder = lrp_loo.load_demo('reviews')
texts = lrp_loo.load_texts('sst2', 'embedded', limit=2).texts
a, = lrp_loo.explain(*encoder, 'a fine film', method='cp_lrp')
b, = lrp_loo.explain(*decoder, 'The acting is', method='loo')
methods = ['attn_lrp', 'removal']
table = lrp_loo.audit(*encoder, texts, methods, progress=False)
found = dict(
    tokens=a.tokens,
    next=b.label,
    rows=list(table.index),
    loo_r=table.loo_r.between(-1, 1).all().item(),
    asked=globals().get('asked'),
)
print(json.dumps(found))
'''
ASK = '''
import json, urllib.request

try:
    urllib.request.urlopen('http://127.0.0.1:9')
except OSError as e:
    print(json.dumps([str(e), len(asked)]))
'''
INTERFACES = '''
import json, socket

print(json.dumps([name for _, name in socket.if_nameindex()]))
'''
IMPORT = '''
import json, sys, time

start = time.perf_counter()
before = set(sys.modules)
import lrp_loo
seconds = time.perf_counter() - start
packages = {m.split('.')[0] for m in set(sys.modules) - before}
print(json.dumps([seconds, sorted(packages)]))
'''
OFFLINE = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE')
HEAVY = {
    'torch',
    'transformers',
    'numpy',
    'pandas',
    'matplotlib',
    'datasets',
    'peft',
    'fastcore',
}


def run(code, *before):
    "In a process of its own, with nothing said about being offline."
    env = {k: v for k, v in os.environ.items() if k not in OFFLINE}
    done = subprocess.run(
        [*before, sys.executable, '-c', code], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def imports():
    "Seconds and packages of five imports."
    return [run(IMPORT) for _ in range(5)]


def test_importing_imports_nothing_heavy(imports):
    _, packages = imports[0]
    assert not HEAVY & set(packages), packages


def test_importing_is_quick(imports):
    "The best of five, since a machine may be busy."
    assert min(seconds for seconds, _ in imports) < 2


def a_network_of_its_own():
    "A command that runs another in an empty network, or None."
    if shutil.which('unshare') is None:
        return None
    for words in (['unshare', '-n'], ['unshare', '-rn']):
        done = subprocess.run([*words, 'true'], capture_output=True)
        if done.returncode == 0:
            return words
    return None


@pytest.fixture(scope='module')
def network():
    "Words before a command that give it a network that holds nothing."
    return a_network_of_its_own()


@pytest.fixture(scope='module')
def without_sockets(network):
    """Sockets are refused to Python, and where this may be done what another
    language asks for meets an empty network.
    """
    return run(CLOSED + USE, *(network or ()))


def test_no_socket_is_asked_for(without_sockets):
    "Even where the answer no is accepted it would be seen."
    assert without_sockets['asked'] == []


def test_texts_are_explained_without_sockets(without_sockets):
    tokens = ['[CLS]', 'a', 'fine', 'film', '[SEP]']
    assert without_sockets['tokens'] == tokens
    assert without_sockets['next']


def test_a_model_is_audited_without_sockets(without_sockets):
    assert without_sockets['rows'] == ['attn_lrp', 'removal']
    assert without_sockets['loo_r']


def test_closed_sockets_are_closed():
    said, asked = run(CLOSED + ASK)
    assert 'there is no network' in said
    assert asked == 1


def test_without_a_network(network, without_sockets):
    "The whole process in a network of its own that holds nothing."
    if network is None:
        pytest.skip('no network of its own may be made here (unshare -n)')
    assert without_sockets['rows'] == ['attn_lrp', 'removal']


def test_a_network_of_its_own_is_empty(network):
    if network is None:
        pytest.skip('no network of its own may be made here (unshare -n)')
    assert run(INTERFACES, *network) == ['lo']
