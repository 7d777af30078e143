"""A training of a second that does one thing wrong, once, on one rank, in one phase, as HVDTRAIN_FAULT says.

    HVDTRAIN_FAULT=segv:backward:1:/tmp/fired mpirun -np 2 hvdtrain run tests/faults/faulty_recipe.py

Just before the fault, the time is written to the file named last, so that a test can tell that the fault happened.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import hvdtrain
from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.sync.allreduce import HorovodExchange
from hvdtrain.sync.asynchronous_server import AsynchronousExchange
from hvdtrain.sync.parameter_server import ParameterServerExchange
from hvdtrain.topology import detect

DEFAULTS = {
    "train.epochs": 2,
    "train.global_batch_size": 12,
    "train.log_every": 1,
    "optimizer.lr": 0.01,
    "checkpoint.every_steps": 4,
    "watchdog.stall_s": 5.0,
    "watchdog.start_s": 60.0,
    "watchdog.usual_steps": 1.0,
}
FAULTY_CALL = 3  # steps before it are right


def own_rank():
    promise = detect(os.environ)
    return promise.rank if promise else 0


KIND, PHASE, RANK, MARK = (os.environ.get("HVDTRAIN_FAULT") or "none:none:-1:/dev/null").split(":")
MINE = int(RANK) == own_rank()


class Planned(Exception):
    pass


def loop():
    while True:
        time.sleep(0)


def keep_interpreter():
    ctypes.PyDLL(None).sleep(1000)  # unlike CDLL, without letting go of the interpreter


def raise_planned():
    raise Planned(f"planned in {PHASE}")


FAULTS = {
    "raise": raise_planned,
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "_exit0": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": loop,
    "hold": keep_interpreter,
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "slow": lambda: time.sleep(0.05),
}
CALLS = {}


def at(phase):
    """Called in each phase; whether the fault is due now, and then it happens, if it is not one of numbers."""
    CALLS[phase] = CALLS.get(phase, 0) + 1
    if not MINE or phase != PHASE:
        return False
    if KIND == "slow":
        if phase != "data" or CALLS[phase] % 6 == 0:  # once for each batch of a rank of two
            mark()
            FAULTS[KIND]()
        return True
    due = FAULTY_CALL if phase in ("forward", "backward", "exchange", "update") else 1
    if phase == "data":
        due = 12  # samples, not steps
    if CALLS[phase] != due:
        return False
    mark()
    if KIND in FAULTS:
        FAULTS[KIND]()
    return True


def mark():
    Path(MARK).write_text(repr(time.time()))


class Samples(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        faulty = at("data")
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=generator)
        return x * float("nan") if faulty and KIND == "nan" else x


def in_backward(gradient):
    at("backward")


def loss(model, x):
    y = model(x)
    if not model.training:
        at("evaluate")
        return hvdtrain.Output(loss=y.pow(2).mean())
    faulty = at("forward")
    y.register_hook(in_backward)
    value = y.pow(2).mean()
    return hvdtrain.Output(loss=value * float("nan") if faulty and KIND == "nan" else value)


def before(owner, name, phase):
    """Call `at(phase)` before a method, inside the phase in which it is called."""
    method = getattr(owner, name)

    def wrapped(self, *arguments, **options):
        at(phase)
        return method(self, *arguments, **options)

    setattr(owner, name, wrapped)


def recipe(config):
    for exchange in (HorovodExchange, ParameterServerExchange, AsynchronousExchange):
        before(exchange, "finish", "exchange")
        before(exchange, "step", "update")
    before(CheckpointManager, "save", "save")
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return hvdtrain.Recipe(model=model, loss=loss, train_data=Samples(), eval_data=Samples())
