"""A complete, commented batch script for SLURM: pure, from a specification to text.

The script starts the job with `hvdtrain launch`, which takes the hosts of the allocation. Before the time limit SLURM
signals the script, which passes the signal on; the ranks write a checkpoint and end with 75, and the script puts the
job back into the queue, up to a cap. When SLURM itself ends the job (preemption, `scontrol requeue`) it signals the
ranks directly, so the script only waits for them.

    batch = BatchSpec(command=("hvdtrain", "run", "digits"), nodes=2, ntasks_per_node=4, time="1:00:00", requeue=True)
    print(script(batch), end="")              # `hvdtrain sbatch ... | sbatch`
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from hvdtrain.errors import EXIT_STOPPED, EXIT_USAGE, UsageError
from hvdtrain.launch.spec import resuming, told_to_resume

# what sbatch(1) takes: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")
NAME = re.compile(r"[A-Za-z0-9_.+-]+")
SHORTEST_LEAD_S = 10


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """What a batch job is to be; None leaves a setting to the site.

    Attributes:
        command: program and arguments of each rank.
        nodes: how many hosts.
        ntasks_per_node: ranks on each.
        time: the limit, as sbatch(1) writes it.
        cpus_per_task: cores for each rank, its background thread and its data workers.
        gpus_per_node: GPUs on each host.
        mem: memory of each host, as sbatch(1) writes it.
        job_name: what squeue shows, and what the log is called by.
        output: the log, with sbatch's patterns.
        lead_s: seconds before the limit at which the ranks are told to stop; enough for a step and a checkpoint.
        requeue: whether the job goes back into the queue when it was stopped or failed.
        max_requeues: how often that may happen in all.
        partition, account, qos, constraint: as for sbatch(1).
        directives: further lines for sbatch, such as ``--exclusive``.
        prologue: the site's own lines (`module load`, conda), run before the job.
        path: folders that are put in front of PATH: where this hvdtrain is.
        launch_options: further options of `hvdtrain launch`.
    """

    command: tuple[str, ...]
    nodes: int = 1
    ntasks_per_node: int = 1
    time: str | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    mem: str | None = None
    job_name: str = "hvdtrain"
    output: str = "%x-%j.log"
    lead_s: int = 120
    requeue: bool = False
    max_requeues: int = 5
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    directives: tuple[str, ...] = ()
    prologue: str = ""
    path: str = ""
    launch_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if faults := list(_faults(self)):
            raise UsageError("write a batch script", found="\n         ".join(faults), remedy="hvdtrain sbatch --help")


def _faults(batch: BatchSpec) -> Iterator[str]:
    if not batch.command:
        yield "no command, expected one after `--`: hvdtrain sbatch -N 2 -- hvdtrain run digits"
    for name in ("nodes", "ntasks_per_node", "cpus_per_task", "gpus_per_node", "max_requeues"):
        value = getattr(batch, name)
        if value is not None and value < 1:
            yield f"--{name.replace('_', '-')} {value}, expected at least 1"
    if batch.time is not None and not TIME.fullmatch(batch.time):
        yield f"--time {batch.time}, expected minutes, hours:minutes:seconds or days-hours: 90, 1:30:00, 2-12"
    if batch.lead_s < SHORTEST_LEAD_S:
        yield f"--lead {batch.lead_s}, expected at least {SHORTEST_LEAD_S} seconds for a checkpoint"
    if not NAME.fullmatch(batch.job_name):
        yield f"--job-name {batch.job_name!r}, expected letters, digits and any of _ . + -"
    for directive in batch.directives:
        if not directive.startswith("--") or "\n" in directive:
            yield f"--directive {directive!r}, expected one option of sbatch: --directive=--exclusive"


def script(batch: BatchSpec) -> str:
    """The whole text of the batch script."""
    parts = [_head(batch), _directives(batch), _prologue(batch), _start(batch), _end(batch)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(batch: BatchSpec) -> Iterator[str]:
    size = batch.nodes * batch.ntasks_per_node
    yield "#!/bin/bash"
    yield f"# {size} ranks: {batch.ntasks_per_node} on each of {batch.nodes} hosts. Written by `hvdtrain sbatch`;"
    yield "# submit it with `sbatch FILE`."


def _directives(batch: BatchSpec) -> Iterator[str]:
    given = {
        "--job-name": batch.job_name,
        "--nodes": batch.nodes,
        "--ntasks-per-node": batch.ntasks_per_node,
        "--cpus-per-task": batch.cpus_per_task,
        "--gpus-per-node": batch.gpus_per_node,
        "--mem": batch.mem,
        "--time": batch.time,
        "--partition": batch.partition,
        "--account": batch.account,
        "--qos": batch.qos,
        "--constraint": batch.constraint,
    }
    yield from (f"#SBATCH {name}={value}" for name, value in given.items() if value is not None)
    yield from (f"#SBATCH {directive}" for directive in batch.directives)
    yield "# One log for all attempts of the job:"
    yield f"#SBATCH --output={batch.output}"
    yield "#SBATCH --open-mode=append"
    yield f"# {batch.lead_s} seconds before the limit this script (B:) gets SIGUSR1, for the ranks to save and stop:"
    yield f"#SBATCH --signal=B:USR1@{batch.lead_s}"
    if batch.requeue:
        yield "# SLURM puts the job back into the queue when it is preempted or a host fails, and so does this script:"
        yield "#SBATCH --requeue"
    else:
        yield "#SBATCH --no-requeue"


def _prologue(batch: BatchSpec) -> Iterator[str]:
    yield 'echo "$(date -Is) attempt ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"'
    if batch.prologue:
        yield "# The site's own lines (--prologue):"
        yield batch.prologue.rstrip("\n")
    if batch.path:
        yield f"export PATH={shlex.quote(batch.path)}:$PATH"


def _start(batch: BatchSpec) -> Iterator[str]:
    words = shlex.join(
        [
            "hvdtrain",
            "launch",
            *batch.launch_options,
            "--",
            *(batch.command if told_to_resume(batch.command) else resuming(batch.command)),
        ]
    )
    yield "# The launch takes the hosts and ranks of this allocation; `hvdtrain launch --dry-run ...` shows how."
    yield "signalled=no launch="
    yield "# The time is nearly up, and the ranks are to save and stop:"
    yield 'trap \'signalled=yes; [ -z "$launch" ] || kill -USR1 "$launch"\' USR1'
    yield "# SLURM ends the job, and tells the ranks itself:"
    yield "trap 'signalled=yes' TERM"
    yield f"{words} &"
    yield "launch=$!"
    yield "status=interrupted"
    yield 'while [ "$signalled" = yes ] || [ "$status" = interrupted ]; do   # a signal interrupts `wait`'
    yield "    signalled=no"
    yield '    wait "$launch"'
    yield "    status=$?"
    yield "done"


def _end(batch: BatchSpec) -> Iterator[str]:
    yield f"# 0: done; {EXIT_USAGE}: nothing that can be done; {EXIT_STOPPED}: stopped with a checkpoint; else: failed."
    yield 'echo "$(date -Is) attempt ${SLURM_RESTART_COUNT:-0} ended with status $status"'
    if batch.requeue:
        yield "# The state is RUNNING unless SLURM itself is ending the job, which is then its own affair."
        yield 'state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)'
        yield f'if [ "$status" -ne 0 ] && [ "$status" -ne {EXIT_USAGE} ] && [ "$state" = RUNNING ]; then'
        yield f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {batch.max_requeues} ]; then'
        yield '        scontrol requeue "$SLURM_JOB_ID" && sleep 60   # SLURM ends this script meanwhile'
        yield "    else"
        yield f'        echo "requeued {batch.max_requeues} times already (--max-requeues): giving up"'
        yield "    fi"
        yield "fi"
    yield 'exit "$status"'
