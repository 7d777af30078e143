"""The first that failed is read from what the launchers really print."""

import pytest

from hvdtrain.launch.culprit import Culprits

SAID = {
    "prterun noticed that process rank 1 with PID 4711 on node gpu02 exited on signal 9 (Killed).": (
        "rank 1 on gpu02 exited on signal 9 (Killed)"
    ),
    "mpirun noticed that process rank 0 with PID 0 on node gpu01 exited on signal 11 (Segmentation fault).": (
        "rank 0 on gpu01 exited on signal 11 (Segmentation fault)"
    ),
    "prterun noticed that process rank 1 with PID 461 on node node2 exited on": "rank 1 on node2 failed",
    "   Process name: [prterun-head-6929@1,3]": "rank 3 failed",
    "  Process name: [[51234,1],2]": "rank 2 failed",
    "srun: error: node2: task 1: Killed": "rank 1 on node2 Killed",
    "srun: error: node1: tasks 0-1: Exited with exit code 3": "rank 0 on node1 Exited with exit code 3",
    "=   PID 4711 RUNNING AT gpu03": "a process on gpu03 failed",
    "  Peer host:  gpu05": "a process on gpu05 failed",
    "  Remote host:   gpu04": "a process on gpu04 failed",
}


@pytest.mark.parametrize("line", SAID)
def test_each_launcher(line):
    culprits = Culprits()
    culprits.hear("something else")
    culprits.hear(line)
    culprits.hear("srun: error: node9: task 9: Killed")
    assert str(culprits.first) == SAID[line]


def test_nobody():
    culprits = Culprits()
    culprits.hear("[1/4 gpu01] WARNING a node is slow")
    culprits.hear("srun: error: node1: tasks 0-1: Exited with exit code 75")  # stopped, with a checkpoint
    assert culprits.first is None
