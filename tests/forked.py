"""What must not happen to this process, or need not import everything again,
happens in a forked child.
"""

import json
import os

import torch


def answer_of_a_child(job):
    "What `job()` returns, or the kind and words of what it raises, as JSON."
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)  # the parent's threads are not there
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
