"""What must not happen to this process, or need not import everything again,
happens in a forked child.
"""

import json
import os
import threading

import torch
import tqdm.auto
import tqdm.std


def fork():
    """As `os.fork`; what a child can't use, or must not take along where it is
    killed, is made anew in it.
    """
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)  # the parent's threads are not there
        # tqdm's lock is a semaphore that all forks share: killed with it in
        # hand, a child would leave everybody else waiting for ever
        lock = threading.RLock()
        for bar in (tqdm.std.tqdm, tqdm.auto.tqdm):
            bar.set_lock(lock)
    return pid


def answer_of_a_child(job):
    "What `job()` returns, or the kind and words of what it raises, as JSON."
    read, write = os.pipe()
    pid = fork()
    if not pid:
        try:
            answer = dict(returned=job())
        except BaseException as e:
            answer = dict(raised=[type(e).__name__, str(e)])
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        answer = json.loads(f.read())
    os.waitpid(pid, 0)
    return answer
