"Demo models and embedded texts need no network."

import json
import os
import subprocess
import sys

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
table = lrp_loo.audit(*encoder, texts, ['attn_lrp'], progress=False)
found = dict(
    tokens=a.tokens,
    next=b.label,
    rows=list(table.index),
    loo_r=table.loo_r.between(-1, 1).all().item(),
    asked=globals().get('asked'),
)
print(json.dumps(found))
'''
OFFLINE = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE')


def run(code):
    "In a process of its own, with nothing said about being offline."
    env = {k: v for k, v in os.environ.items() if k not in OFFLINE}
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_texts_are_explained_and_a_model_audited_without_sockets():
    found = run(CLOSED + USE)
    assert found['asked'] == []  # where the answer no is accepted it would be seen
    assert found['tokens'] == ['[CLS]', 'a', 'fine', 'film', '[SEP]']
    assert found['next'] and found['loo_r']
    assert found['rows'] == ['attn_lrp']
