"""What a rank says of itself: what matters, and nothing that is a secret."""

import json
import os
import socket

import pytest

from hvdtrain import census
from hvdtrain.checks.ranks import compare

ENV = {
    "NCCL_DEBUG": "WARN",
    "OMP_NUM_THREADS": "2",
    "HOROVOD_SECRET_KEY": "hush",
    "TORCH_TOKEN": "hush",
    "AWS_SECRET_ACCESS_KEY": "hush",
    "TORCH_HOME": "https://me:hush@mirror/torch",
    "HOROVOD_RANK": "1",
    "PATH": "/bin",
    "HVDTRAIN_JOB": "5",
}


def observe(env=ENV, argv=(), **others):
    return census.observe(env, host="gpu01", libraries={"torch": "2.13.0"}, argv=argv, **others)


def test_no_secret_leaves_the_rank():
    assert "hush" not in json.dumps(observe().to_json())


def test_names_and_values_that_matter_are_there():
    facts = observe()
    assert facts.values["torch"] == "2.13.0"
    assert facts.values["$NCCL_DEBUG"] == "WARN"
    assert facts.threads == 2
    assert facts.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert {"python", "limit open files", "limit locked memory", "cores"} <= facts.values.keys()


def test_positions_and_the_hosts_own_places_are_not_compared():
    assert not {"$HOROVOD_RANK", "$PATH", "$HVDTRAIN_JOB"} & observe().values.keys()


def test_long_values_differ_where_their_ends_do():
    ends = [observe({"NCCL_TOPO_FILE": "x" * 5000 + end}) for end in "ab"]
    assert len(compare(ends)) == 1
    assert all(len(facts.values["$NCCL_TOPO_FILE"]) < 600 for facts in ends)


def test_the_beginning_of_cpuinfo_names_the_cpu(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n" * 100)
    assert observe(cpuinfo=tmp_path / "cpuinfo").values["cpu"] == "A CPU @ 2 GHz"
    assert "cpu" not in observe(cpuinfo=tmp_path / "none").values


def test_the_script_is_known_by_what_it_holds(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    before = observe(argv=[str(script), "--lr", "1"]).values["script"]
    assert observe(argv=["/venv/bin/hvdtrain", "run", str(script)]).values["script"] == before
    script.write_text("print(2)")
    assert observe(argv=[str(script)]).values["script"] != before
    assert "script" not in observe(argv=["/venv/bin/hvdtrain", "run", "digits"]).values
    assert "script" not in observe(argv=["-c"]).values


def test_a_rendezvous_answers_or_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        assert census.rendezvous_answers(env) is True
    assert census.rendezvous_answers(env) is False


@pytest.mark.parametrize("env", [{}, {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}])
def test_without_a_rendezvous_nobody_is_asked(env):
    assert census.rendezvous_answers(env) is None
