"""Whether a host has what ranks need: cores, shared memory, rights, limits, disk, a clock.

Thresholds stand here, with why; the facts are gathered elsewhere, on this host or another.

    facts = MachineFacts(host_cores=8, cores=8, threads=64)
    threads(facts).status                          # "fail"
    [check(facts).status for check in MACHINE_CHECKS]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hvdtrain.checks.finding import Finding, failed, passed, warned

MIB = 2**20
SHM_PER_RANK = 16 * MIB  # what Open MPI's shared memory takes for a rank and its peers
SHM_FOR_WORKERS = 256 * MIB  # data workers hand batches over through it; containers start with 64 MiB
FEWEST_FILES, USUAL_FILES = 256, 1024  # a rank holds sockets, logs, and some descriptors for each data worker
PROCESSES_PER_RANK = 64  # threads count, too
LEAST_DISK, USUAL_DISK = 100 * MIB, 1024 * MIB
WRONG_CLOCK_S = 60.0
SKEW_S = 2.0
BOUND = ("core", "hwthread", "map_cpu", "mask_cpu")  # what binds a rank so tightly that two threads share a core


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What a host has; None where it is not known, or for a limit that is not there.

    Attributes:
        host_cores: cores of the host.
        cores: those that this process may use, by affinity and by the quota of its container.
        ranks: how many are to run on it: as asked, or as the batch system has it.
        hosts: over how many hosts the job runs.
        threads: OMP_NUM_THREADS.
        binding: variables that tell a launcher how to bind ranks, name -> value.
        shm_bytes: the size of /dev/shm.
        shm_free_bytes: what is free of it.
        cma: "" where a process may read another's memory, or the name of the error.
        ptrace_scope: Yama's rule for who may look at whom; 0 is anybody of the same user.
        in_container: whether this is a container.
        open_files: the soft limit.
        locked_bytes: the soft limit of memory that can be locked.
        processes: the soft limit.
        fast_network: whether there is an InfiniBand or RoCE device, which needs locked memory.
        free_bytes: what is free where files are written, path -> bytes; None where nothing can be written.
        clock_behind_s: by how much the clock is before the newest of our own files.
        skew_s: the clock of the file system less that of this host.
        synchronised: whether the kernel says that the clock is kept by NTP.
    """

    host_cores: int
    cores: int
    ranks: int | None = None
    hosts: int = 1
    threads: int | None = None
    binding: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    cma: str | None = None
    ptrace_scope: int | None = None
    in_container: bool = False
    open_files: int | None = None
    locked_bytes: int | None = None
    processes: int | None = None
    fast_network: bool = False
    free_bytes: Mapping[str, int | None] = field(default_factory=dict)
    clock_behind_s: float = 0.0
    skew_s: float | None = None
    synchronised: bool | None = None


def size_text(size: int) -> str:
    """Bytes for a person.

    >>> size_text(65536)
    '64 KiB'
    """
    number, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.3g} {units[0]}" if number < 1000 else f"{number:.0f} {units[0]}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cores(facts: MachineFacts) -> Finding:
    """Ranks have a core each."""
    here = _plural(facts.cores, "core")
    of = f"{here} of {facts.host_cores}" if facts.cores < facts.host_cores else here
    if facts.ranks is None:
        return passed("cores", of)
    if facts.ranks > facts.cores:
        found = f"{_plural(facts.ranks, 'rank')} on {of}: they take turns"
        return warned(
            "cores", found=found, remedy=f"at most {_plural(facts.cores, 'rank')} here: -np, slots=, --ntasks"
        )
    return passed("cores", f"{of} for {_plural(facts.ranks, 'rank')}")


def threads(facts: MachineFacts) -> Finding:
    """The threads of the ranks have a core each."""
    ranks, wanted = facts.ranks or 1, facts.threads
    if wanted is None:
        share = max(1, facts.cores // ranks)
        return passed("threads", f"each rank takes its share, {_plural(share, 'thread')} (OMP_NUM_THREADS is not set)")
    remedy = f"export OMP_NUM_THREADS={max(1, facts.cores // ranks)}, or unset it: a rank takes its share"
    if wanted > facts.cores:
        found = f"OMP_NUM_THREADS={wanted} for each rank, and {_plural(facts.cores, 'core')} to run them"
        return failed("threads", found=found, remedy=remedy)
    if wanted * ranks > facts.cores:
        found = f"{ranks} ranks with OMP_NUM_THREADS={wanted} each on {_plural(facts.cores, 'core')}"
        return warned("threads", found=found, remedy=remedy)
    return passed("threads", f"OMP_NUM_THREADS={wanted}")


def binding(facts: MachineFacts) -> Finding:
    """A rank is not bound to one core, which Horovod's background thread would have to share."""
    if facts.cores == 1 < facts.host_cores:
        found = f"this process may use 1 of {facts.host_cores} cores, which Horovod's background thread has to share"
        return warned(
            "binding", found=found, remedy="look at `taskset -p $$`, --cpus-per-task and --cpus of the container"
        )
    tight = {name: value for name, value in facts.binding.items() if any(word in value.lower() for word in BOUND)}
    if tight:
        found = f"{', '.join(f'{name}={value}' for name, value in tight.items())}: a rank would get one core"
        return warned("binding", found=found, remedy=f"unset {' '.join(tight)}")
    return passed("binding", "none; hvdtrain launch keeps it so (--bind-to none)")


def shared_memory(facts: MachineFacts) -> Finding:
    """Ranks and data workers can hand data over in /dev/shm."""
    size, free = facts.shm_bytes, facts.shm_free_bytes
    if size is None or free is None:
        remedy = "mount -t tmpfs -o size=8g tmpfs /dev/shm"
        return failed("/dev/shm", found="it is not there, or nothing can be written to it", remedy=remedy)
    found = f"{size_text(size)}, {size_text(free)} free"
    remedy = "docker run --shm-size=8g ...   (or: mount -o remount,size=8g /dev/shm)"
    least = SHM_PER_RANK * (facts.ranks or 1)
    if free < least:
        found += f": {_plural(facts.ranks or 1, 'rank')} and their data workers need {size_text(least)} at least"
        return failed("/dev/shm", found=found, remedy=remedy)
    if free < SHM_FOR_WORKERS:
        return warned("/dev/shm", found=f"{found}: little for batches of data workers", remedy=remedy)
    return passed("/dev/shm", found)


def memory_access(facts: MachineFacts) -> Finding:
    """Ranks of a host may copy from each other's memory (CMA), which halves the copies of a message."""
    if facts.cma is None:
        return passed("CMA", "not known on this system")
    if facts.cma == "":
        return passed("CMA", "a rank may read another's memory (process_vm_readv)")
    scope = f" (ptrace_scope {facts.ptrace_scope})" if facts.ptrace_scope else ""
    found = f"process_vm_readv says {facts.cma}{scope}: Open MPI complains, and copies each message twice"
    quiet = "export OMPI_MCA_smsc=^cma OMPI_MCA_btl_vader_single_copy_mechanism=none"
    where = "docker run --cap-add=SYS_PTRACE ..." if facts.in_container else "sysctl kernel.yama.ptrace_scope=0"
    return warned("CMA", found=found, remedy=f"{where}   (or, to hear no more of it: {quiet})")


def limits(facts: MachineFacts) -> Finding:
    """Files, processes and locked memory are not limited too tightly."""
    ranks = facts.ranks or 1
    files, processes, locked = facts.open_files, facts.processes, facts.locked_bytes
    severe: list[tuple[str, str]] = []
    slight: list[tuple[str, str]] = []
    if files is not None and files < USUAL_FILES:
        (severe if files < FEWEST_FILES else slight).append((f"open files {files}", f"ulimit -n {USUAL_FILES}"))
    if processes is not None and processes < PROCESSES_PER_RANK * ranks:
        severe.append((f"processes {processes}", f"ulimit -u {4 * PROCESSES_PER_RANK * ranks}"))
    if facts.fast_network and locked is not None:
        slight.append((f"locked memory {size_text(locked)}, with InfiniBand here", "ulimit -l unlimited"))
    if not severe + slight:
        memory = "unlimited" if locked is None else size_text(locked)
        shown = ["unlimited" if n is None else str(n) for n in (files, processes)]
        return passed("limits", f"open files {shown[0]}, processes {shown[1]}, locked memory {memory}")
    make = failed if severe else warned
    found = ", ".join(text for text, _ in severe + slight)
    remedy = "; ".join(command for _, command in severe + slight)
    return make("limits", found=found, remedy=f"{remedy}   (for good: /etc/security/limits.conf)")


def disk(facts: MachineFacts) -> Finding:
    """There is room for checkpoints, logs, and what MPI puts into its temporary folder."""
    listed = ", ".join(
        f"{path}: {'cannot be written' if free is None else f'{size_text(free)} free'}"
        for path, free in facts.free_bytes.items()
    )
    room = [-1 if free is None else free for free in facts.free_bytes.values()]
    remedy = "make room, or go elsewhere: --run-dir DIR, export TMPDIR=DIR"
    if room and min(room) < LEAST_DISK:
        return failed("disk", found=listed, remedy=remedy)
    if room and min(room) < USUAL_DISK:
        return warned("disk", found=listed, remedy=remedy)
    return passed("disk", listed or "not known")


def clock(facts: MachineFacts) -> Finding:
    """The time is right enough to order files and logs of several hosts."""
    remedy = "timedatectl set-ntp true   (or tell the administrator of this host)"
    if facts.clock_behind_s > WRONG_CLOCK_S:
        found = f"it is at least {facts.clock_behind_s:.0f} s behind: our own files are from the future"
        return failed("clock", found=found, remedy=remedy)
    if facts.skew_s is not None and abs(facts.skew_s) > SKEW_S:
        order = "ahead of" if facts.skew_s > 0 else "behind"
        found = f"the file system's clock is {abs(facts.skew_s):.1f} s {order} that of this host"
        return warned("clock", found=found, remedy=remedy)
    kept = {
        True: "kept by NTP",
        False: "not kept by NTP, as far as the kernel knows",
        None: "as the file system has it",
    }
    if facts.synchronised is False and facts.hosts > 1:
        return warned("clock", found=f"{kept[False]}, in a job of {facts.hosts} hosts", remedy=remedy)
    return passed("clock", kept[facts.synchronised])


MACHINE_CHECKS: tuple[Callable[[MachineFacts], Finding], ...] = (
    cores,
    threads,
    binding,
    shared_memory,
    memory_access,
    limits,
    disk,
    clock,
)
