"""Ranks that are killed, or end in order, while their worker processes wait, sleep or hold the interpreter."""

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

RANK = """
import sys, time
from types import SimpleNamespace

from hvdtrain.data.loader import loader
from hvdtrain.topology import SOLO

class Slow:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 8:
            time.sleep(0.5)  # let the thread that sends the batches before this one finish
            {then}
        return index

def main():
    train = loader(SimpleNamespace(topology=SOLO, seed=0), Slow(), global_batch_size=4, shuffle=False, num_workers=2)
    batches = iter(train)
    next(batches), next(batches)
    print("ready", flush=True)
    {end}

if __name__ == "__main__":
    main()
"""
BUSY = {
    "waiting for requests": "pass",
    "sleeping": "time.sleep(600)",
    "holding the interpreter": "sum(range(10**13))",
}


@pytest.fixture
def start_rank(tmp_path):
    started = []

    def start(then, end):
        rank, children = _start(tmp_path, then, end)
        started.extend([psutil.Process(rank.pid), *children])
        return rank, children

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _start(tmp_path, then, end):
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(then=then, end=end))
    rank = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert rank.stdout.readline() == "ready\n", rank.communicate()[1]
    time.sleep(1)  # let the workers reach what they are to be killed in
    return rank, psutil.Process(rank.pid).children(recursive=True)


@pytest.mark.parametrize("busy", BUSY)
def test_workers_and_their_server_die_with_a_killed_rank(start_rank, busy):
    rank, children = start_rank(BUSY[busy], "time.sleep(600)")
    assert len(children) >= 3  # two workers and the fork server; the resource tracker of multiprocessing as well
    rank.kill()
    rank.communicate(timeout=30)  # returns when nobody holds its pipes any more
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


@pytest.mark.parametrize(
    ("busy", "end"),
    [
        ("waiting for requests", "return"),
        ("sleeping", "raise SystemExit(3)"),
        ("sleeping", "raise ValueError('the model broke')"),
    ],
)
def test_a_rank_that_ends_in_order_is_not_held_up_by_its_workers(start_rank, busy, end):
    rank, children = start_rank(BUSY[busy], end)
    _, complaints = rank.communicate(timeout=60)
    assert rank.returncode == {"return": 0, "raise SystemExit(3)": 3}.get(end, 1)
    assert "killed by signal" not in complaints
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
