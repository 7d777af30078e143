"""A process that saves checkpoints in children of its own, one for each line that it reads, and says how they ended.

It imports torch once and forks, so that a child is there in milliseconds. A child stops, so that a tracer can attach
between two system calls, then saves through the real manager, and leaves.

    DIRECTORY STEP VALUE thread|main     starts a child; the answer is its process id
    go                                   lets it save; the answer is its exit status, negative for a signal
"""

import os
import signal
import sys
from pathlib import Path

import torch

from hvdtrain.checkpoint.manager import CheckpointManager, PerRank
from hvdtrain.collectives import Collectives, SoloTransport


def state_of(value):
    """Tensors in two entries, one entry per rank, and one without tensors; `value` tells one state from another."""
    return {
        "model": {"weight": torch.full((300,), value), "bias": torch.full((3,), value, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((300,), value)}}},
        "rng": PerRank(torch.full((5,), int(value), dtype=torch.uint8)),
        "sampler": {"epoch": int(value)},
    }


def save(directory, step, value, where):
    alone = Collectives(SoloTransport())
    fields = {"keep": 1, "asynchronous": where == "thread", "on_error": "fail"}
    with CheckpointManager(Path(directory), collectives=alone, run_id="killed", **fields) as manager:
        manager.save(int(step), state_of(float(value)))


def child(words):
    """Stop until told to go on, save, and leave without the endings of the parent."""
    status = 1
    try:
        os.kill(os.getpid(), signal.SIGSTOP)
        save(*words)
        status = 0
    finally:
        os._exit(status)


def main():
    torch.set_num_threads(1)
    save(sys.argv[1], 1, 1.0, "thread")  # imports and caches what only a first save needs
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(line.split())
        os.waitpid(pid, os.WUNTRACED)
        print(pid, flush=True)
        sys.stdin.readline()
        os.kill(pid, signal.SIGCONT)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
