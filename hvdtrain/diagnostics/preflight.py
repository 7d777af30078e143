"""Are the hosts of a job alike and ready? Each is asked in parallel, through the launcher that will start the ranks.

Only what differs or is missing is shown. Where the launcher uses ssh, all hosts are called over it first, at once, so
that unreachable ones are named with ssh's own reason in less than fifteen seconds.

    answers, silent = ask(spec, choice.build, os.environ, over_ssh=True)   # facts by host; reasons by silent host
    findings = compare(answers, silent, training=True)
    print(table(findings))
    # gpu03  torch    2.12.0       the other 3 have 2.13.0
    # gpu04  horovod  is missing   the other 3 have 0.28.1
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hvdtrain.launch import probe, ssh
from hvdtrain.launch.process import kill_group
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec

Facts = Mapping[str, Any]
Build = Callable[[LaunchSpec, Mapping[str, str]], Invocation]

CONNECT_S = 6  # for one ssh connection
ANSWER_S = 30.0  # for the launcher to start a process on every host, once ssh reaches them all
SLURM_S = 12.0  # the same where there is no ssh: srun waits for hosts that are down
ALIKE = ("python", "torch", "horovod", "mpi", "hvdtrain", "mpi4py", "numpy", "safetensors")
NEEDED = ("torch", "horovod", "hvdtrain", "numpy", "safetensors")
CLOCK_S = 5.0
SHM_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is wrong with one host: the fact, what it is there, what it should be; a warning does not stop the job."""

    host: str
    fact: str
    found: str
    expected: str
    status: Literal["warn", "fail"] = "fail"


def ask(
    spec: LaunchSpec, build: Build, env: Mapping[str, str], *, over_ssh: bool
) -> tuple[dict[str, Facts], dict[str, str]]:
    """What each host answers, by its name in the specification, and why the silent ones are silent.

    Args:
        spec: the job; a process of Python is started on each of its hosts, the spare ones too.
        build: the builder of the job's own launcher.
        env: the environment that the launcher inherits.
        over_ssh: whether that launcher reaches hosts by ssh.
    """
    hosts = spec.hosts
    if over_ssh and (unreachable := _unreachable(hosts)):
        return {}, unreachable
    source = Path(probe.__file__).read_text()
    one_each = replace(
        spec,
        command=(sys.executable, "-c", source, *spec.command),
        size=len(hosts),
        hosts=tuple(replace(host, slots=1, max_slots=None) for host in hosts),
    )
    invocation = build(one_each, env)
    began, limit_s = time.time(), ANSWER_S if over_ssh else SLURM_S
    output = _output(invocation.argv, invocation.environment(env), limit_s)
    answers = _matched(hosts, _answers(output), began)
    why = f"{Path(invocation.program).name} could not start {sys.executable} there within {limit_s:.0f} s"
    return answers, {host.name: why for host in hosts if host.name not in answers}


def _unreachable(hosts: Sequence[Host]) -> dict[str, str]:
    """The hosts that ssh does not reach, and its reasons."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        reasons = zip(hosts, pool.map(_ssh_fault, hosts), strict=True)
        return {host.name: reason for host, reason in reasons if reason}


def _ssh_fault(host: Host) -> str:
    if ssh.is_here(host):
        return ""
    argv = ssh.argv(host.login, ["true"], connect_timeout_s=CONNECT_S)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * CONNECT_S)
    except subprocess.TimeoutExpired:
        return f"ssh does not answer within {2 * CONNECT_S} s"
    lines = [line for line in done.stderr.strip().splitlines() if line]
    return "" if done.returncode == 0 else (lines or [f"ssh ends with status {done.returncode}"])[-1]


def _output(argv: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    """What the launcher prints within the time; what it started is then killed here, and ends there with it."""
    with subprocess.Popen(
        argv,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired as late:
            return late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        finally:  # an interrupt, too, leaves nothing behind
            kill_group(process.pid)


def _answers(output: str) -> Iterator[Facts]:
    for line in output.splitlines():
        _, prefix, text = line.partition(probe.PREFIX)
        if prefix:
            yield json.loads(text)


def _matched(hosts: Sequence[Host], answers: Iterator[Facts], began: float) -> dict[str, Facts]:
    """Answers by the name that the user gave; a host that calls itself otherwise is the one that is left over."""
    by_own_name = {str(facts["host"]): {**facts, "offset_s": float(facts["clock_s"]) - began} for facts in answers}
    short = {name.partition(".")[0]: name for name in by_own_name}
    matched: dict[str, Facts] = {}
    for host in hosts:
        own = host.name if host.name in by_own_name else short.get(host.name.partition(".")[0], "")
        if own in by_own_name:
            matched[host.name] = by_own_name.pop(own)
    left = [host for host in hosts if host.name not in matched]
    if len(left) == len(by_own_name):  # names of the network on one side, names of the hosts on the other
        matched.update(zip([host.name for host in left], by_own_name.values(), strict=True))
    return matched


def compare(
    answers: Mapping[str, Facts], silent: Mapping[str, str], *, training: bool, over_ssh: bool = True
) -> list[Difference]:
    """What is missing or differs, host by host.

    Args:
        answers: facts by host.
        silent: reasons by host that did not answer.
        training: whether the command is a training of ours, which needs all its packages.
        over_ssh: whether silence is a fault; a host that SLURM gave is SLURM's to judge, and may answer the next time.
    """
    status: Literal["warn", "fail"] = "fail" if over_ssh else "warn"
    found = [
        Difference(host=host, fact="reachable", found="no", expected=why, status=status) for host, why in silent.items()
    ]
    for fact in ALIKE:
        found += _unlike(fact, answers, training and fact in NEEDED)
    for host, facts in answers.items():
        found += _by_itself(host, facts)
    found += _clocks(answers)
    return sorted(found, key=lambda difference: (difference.status, difference.host))


def _unlike(fact: str, answers: Mapping[str, Facts], needed: bool) -> Iterator[Difference]:
    values = Counter(facts[fact] for facts in answers.values())
    usual = max(values, key=lambda value: (value is not None, values[value]), default=None)
    for host, facts in answers.items():
        value = facts[fact]
        if value == usual and not (needed and value is None):
            continue
        others = f"the other {values[usual]} have {usual}" if values[usual] > 1 else f"another has {usual}"
        yield Difference(
            host=host,
            fact=fact,
            found="is missing" if value is None else str(value),
            expected="a training needs it" if usual is None else others,
            status="warn" if fact == "python" and _minor(value) == _minor(usual) else "fail",
        )


def _minor(version: str | None) -> list[str]:
    return (version or "").split(".")[:2]


def _by_itself(host: str, facts: Facts) -> Iterator[Difference]:
    if facts["program"] is None:
        yield Difference(
            host=host, fact="program", found="is missing", expected="the command of the ranks, at its path"
        )
    for path in facts["files_missing"]:
        yield Difference(host=host, fact="file", found=f"no {path}", expected="the same files on every host")
    free = facts["shm_bytes"]
    if free is None or free < SHM_BYTES:
        found = "none" if free is None else f"{free // 2**20} MiB free"
        expected = f"at least {SHM_BYTES // 2**20} MiB for ranks and data workers"
        yield Difference(host=host, fact="/dev/shm", found=found, expected=expected, status="warn")


def _clocks(answers: Mapping[str, Facts]) -> Iterator[Difference]:
    """A clock is off by what is above the smallest offset: starting takes some seconds everywhere."""
    offsets = {host: float(facts["offset_s"]) for host, facts in answers.items()}
    usual = sorted(offsets.values())[len(offsets) // 2] if offsets else 0.0
    for host, offset in offsets.items():
        if abs(offset - usual) > CLOCK_S:
            found = f"{offset - usual:+.0f} s"
            yield Difference(host=host, fact="clock", found=found, expected="as on the other hosts", status="warn")


def table(differences: Sequence[Difference]) -> str:
    """The differences in columns; empty when there are none."""
    rows = [(one.host, one.fact, one.found, one.expected) for one in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]) for row in rows
    )
