"""A host, as facts: which check is red, and what it says to type."""

from dataclasses import replace

import pytest

from hvdtrain.checks.machine import MACHINE_CHECKS, MIB, MachineFacts, size_text

GOOD = MachineFacts(
    host_cores=8,
    cores=8,
    ranks=2,
    shm_bytes=1024 * MIB,
    shm_free_bytes=1024 * MIB,
    cma="",
    open_files=20000,
    locked_bytes=8 * MIB,
    processes=90000,
    free_bytes={"runs": 10000 * MIB, "/tmp": 10000 * MIB},
    skew_s=0.01,
    synchronised=True,
)


def red(facts):
    """The checks that do not pass: name -> finding."""
    findings = [check(facts) for check in MACHINE_CHECKS]
    assert all(finding.remedy for finding in findings if finding.status != "pass")
    return {finding.check: finding for finding in findings if finding.status != "pass"}


@pytest.mark.parametrize(
    "facts",
    [
        GOOD,
        replace(GOOD, threads=4),
        replace(GOOD, open_files=None, processes=None, locked_bytes=None, fast_network=True),
        replace(GOOD, synchronised=False),
        replace(GOOD, cma=None, ranks=None),
        replace(GOOD, host_cores=1, cores=1, ranks=1),
        replace(GOOD, binding={"PRTE_MCA_hwloc_default_binding_policy": "none"}),
    ],
)
def test_a_good_host_passes(facts):
    assert red(facts) == {}


@pytest.mark.parametrize(
    ("changes", "check", "status", "found", "remedy"),
    [
        ({"ranks": 9}, "cores", "warn", "9 ranks on 8 cores", "at most 8 ranks"),
        ({"threads": 64}, "threads", "fail", "OMP_NUM_THREADS=64", "export OMP_NUM_THREADS=4"),
        ({"threads": 5}, "threads", "warn", "2 ranks with OMP_NUM_THREADS=5", "export OMP_NUM_THREADS=4"),
        ({"cores": 1}, "binding", "warn", "1 of 8 cores", "taskset"),
        ({"binding": {"SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}}, "binding", "warn", "mask_cpu", "unset SLURM_CPU_BIND"),
        ({"shm_bytes": None}, "/dev/shm", "fail", "not there", "mount"),
        ({"shm_bytes": 65536, "shm_free_bytes": 65536}, "/dev/shm", "fail", "64 KiB, 64 KiB free", "--shm-size"),
        ({"shm_free_bytes": 64 * MIB}, "/dev/shm", "warn", "64 MiB free", "--shm-size"),
        ({"cma": "EPERM", "in_container": True}, "CMA", "warn", "EPERM", "--cap-add=SYS_PTRACE"),
        ({"cma": "EPERM", "ptrace_scope": 2}, "CMA", "warn", "EPERM (ptrace_scope 2)", "ptrace_scope=0"),
        ({"open_files": 100}, "limits", "fail", "open files 100", "ulimit -n"),
        ({"open_files": 512}, "limits", "warn", "open files 512", "ulimit -n"),
        ({"processes": 20}, "limits", "fail", "processes 20", "ulimit -u"),
        ({"fast_network": True}, "limits", "warn", "InfiniBand", "ulimit -l unlimited"),
        ({"free_bytes": {"/tmp": MIB}}, "disk", "fail", "/tmp: 1 MiB free", "TMPDIR"),
        ({"free_bytes": {"/tmp": 500 * MIB}}, "disk", "warn", "/tmp: 500 MiB free", "TMPDIR"),
        ({"free_bytes": {"runs": None}}, "disk", "fail", "cannot be written", "--run-dir"),
        ({"clock_behind_s": 90000.0}, "clock", "fail", "90000 s behind", "timedatectl"),
        ({"skew_s": -7.0}, "clock", "warn", "7.0 s behind", "timedatectl"),
        ({"synchronised": False, "hosts": 2}, "clock", "warn", "2 hosts", "timedatectl"),
    ],
)
def test_what_is_wrong_is_red_with_its_remedy(changes, check, status, found, remedy):
    there = red(replace(GOOD, **changes))
    assert there[check].status == status
    assert found in there[check].found
    assert remedy in there[check].remedy
    assert set(there) <= {check, "cores"}  # checks are independent; one core for two ranks is another fault


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (65536, "64 KiB"), (25 * 2**30, "25 GiB"), (1000 * MIB, "1000 MiB")]
)
def test_sizes_are_readable(size, text):
    assert size_text(size) == text
