"""Ranks on real hosts compare what they are: alike hosts say nothing; doctor starts ranks where the allocation is."""

import json

import pytest

PROGRAM = """
import hvdtrain
with hvdtrain.init() as run:
    run.log.info("hosts %s", run.collectives.gather_json(run.host))
"""
TWO_HOSTS = ["-np", "4", "-H", "node1:2,node2:2"]


@pytest.mark.parametrize("launcher", ["mpirun", "srun", "horovodrun"])
def test_alike_hosts_are_no_news(cluster, environment, tmp_path, launcher):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    words = ["hvdtrain", "launch", "--no-preflight", *TWO_HOSTS, "--launcher", launcher, "--", "python", str(script)]
    done = cluster.run("head", words, env=environment, limit_s=90)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "hosts ['node1', 'node1', 'node2', 'node2']" in said
    assert " WARNING " not in said


def test_doctor_starts_its_ranks_where_the_allocation_has_them(cluster, environment):
    words = ["salloc", "-Q", "-N", "2", "-n", "2", "hvdtrain", "doctor", "--ranks", "2", "--json"]
    done = cluster.run("head", words, env=environment, limit_s=120)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["all-reduce"]["status"] == "pass", findings["all-reduce"]
    assert findings["all-reduce"]["found"].startswith("2 ranks of SLURM")
