"""The start and the end of a rank: `init()` gives a `Run`, and whatever happens inside it, all ranks end together.

Horovod and MPI are started once per process, after the launch was found right. An exception that only this rank has
aborts the whole job, because the others may be waiting for it in a collective; one that every rank raises together
(`HvdtrainError.agreed`) ends it in order.

    with hvdtrain.init(seed=1) as run:
        run.topology.rank, run.topology.size
        model.to(run.device)
        run.log.info("ranks are on %s", run.collectives.gather_json(run.host))     # printed by root
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from hvdtrain import __version__, census
from hvdtrain.checks import Finding, LaunchFacts, guard
from hvdtrain.checks.ranks import RankFacts, preflight, share_of
from hvdtrain.collectives import Collectives, HorovodTransport
from hvdtrain.errors import EXIT_FAILED, HvdtrainError, InstallError
from hvdtrain.failure import Failures
from hvdtrain.install import linkage, record
from hvdtrain.launch.network import NETWORK_VARIABLE, addresses, socket_variables
from hvdtrain.launch.openmpi_rules import ring_between_hosts
from hvdtrain.phases import Phases
from hvdtrain.topology import Topology, detect

LOGGER = logging.getLogger("hvdtrain")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a rank knows of its job; everything that communicates takes its `collectives` from here.

    Attributes:
        topology: the six position words.
        collectives: the operations by which ranks agree.
        device: the GPU of this rank, or the CPU.
        host: this host's name.
        hosts: the names of all ranks' hosts, in rank order.
        controller: "mpi" or "gloo".
        seed: the seed that all ranks share.
        started: `time.monotonic()` when the rank was started.
        phases: what this rank does now, for its watchdog and for the step signal.
        failures: records the first failure of the job, in its run directory once there is one.
        closing: what is to be closed when the rank ends in order, before Horovod is.
    """

    topology: Topology
    collectives: Collectives
    device: torch.device
    host: str
    hosts: tuple[str, ...] = ()
    controller: str
    seed: int
    log: logging.Logger = field(default=LOGGER, repr=False)
    started: float = 0.0
    phases: Phases = field(default_factory=Phases, repr=False)
    failures: Failures = field(default_factory=lambda: Failures(log=LOGGER), repr=False)
    closing: ExitStack = field(default_factory=ExitStack, repr=False)

    def abort(self, status: int = EXIT_FAILED) -> None:
        """End every process of the job now, without asking them; does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.controller == "mpi" and self.topology.size > 1:
            from mpi4py import MPI

            MPI.COMM_WORLD.Abort(status)
        os._exit(status)

    @contextmanager
    def root_section(self, name: str, *, timeout_s: float) -> Iterator[None]:
        """Long work, of root or any rank, for which the others may wait without an alarm until `timeout_s` is over."""
        with self.phases.section(name, timeout_s):
            yield


def _settle_environment(env: MutableMapping[str, str], *, deterministic: bool) -> None:
    """What Horovod reads once, when it starts; what the user set already stays."""
    if deterministic:
        env.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
    env.setdefault("OMPI_MCA_osc", "^ucx")  # of Open MPI 5.0: cannot do shared windows, and prints an error at each
    if NETWORK_VARIABLE in env:
        env.update(socket_variables(env, addresses()))


def _start_horovod(facts: LaunchFacts) -> tuple[Topology, str]:
    record.check(Path(sys.prefix), torch=torch.__version__)
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise InstallError(
            "train through Horovod", found=f"it cannot be imported: {error}", remedy="hvdtrain install-horovod"
        ) from error
    built = tuple(name for name, there in (("mpi", hvd.mpi_built()), ("gloo", hvd.gloo_built())) if there)
    family, folder = linkage.family(_loaded_mpi()), record.mpi_bin(Path(sys.prefix))
    guard(replace(facts, controllers=built, horovod_mpi=family, mpi_bin=folder))
    with ring_between_hosts(os.environ, detect(os.environ)):
        hvd.init()
    controller = "mpi" if hvd.mpi_built() and hvd.mpi_enabled() else "gloo"
    topology = Topology(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=hvd.local_rank(),
        local_size=hvd.local_size(),
        cross_rank=hvd.cross_rank(),
        cross_size=hvd.cross_size(),
    )
    return topology, controller


def _loaded_mpi() -> tuple[str, ...]:
    return linkage.loaded(Path("/proc/self/maps").read_text())


def _mpi_facts(facts: LaunchFacts, controller: str) -> LaunchFacts:
    """What MPI says; under Gloo mpi4py must not be imported, as it would start an MPI of its own."""
    if controller != "mpi":
        return replace(facts, controller=controller, mpi_library="not used")
    from mpi4py import MPI

    library = MPI.Get_library_version().splitlines()[0].strip("\0 ,")
    size = MPI.COMM_WORLD.Get_size()
    return replace(facts, controller=controller, mpi_size=size, mpi_library=library, mpi_files=_loaded_mpi())


def _libraries(mpi_library: str) -> dict[str, str]:
    """What is loaded here, by name and version; an NCCL that torch does not use is not asked."""
    import horovod
    import numpy as np

    names = {"hvdtrain": __version__, "torch": torch.__version__, "horovod": horovod.__version__, "mpi": mpi_library}
    names |= {"numpy": np.__version__, "cuda": torch.version.cuda or "none"}
    if torch.cuda.is_available():
        names |= {"gpu": torch.cuda.get_device_name(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}  # type: ignore[no-untyped-call]
    return names


def _device_of(topology: Topology) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", topology.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _census(collectives: Collectives, facts: LaunchFacts) -> list[RankFacts]:
    """Collective: what every rank says of itself, in rank order."""
    libraries = _libraries(facts.mpi_library)
    mine = census.observe(facts.env, host=facts.host, libraries=libraries, argv=sys.argv)
    return [RankFacts.from_json(values) for values in collectives.gather_json(mine.to_json(), "hvdtrain.census")]


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        LOGGER.warning("%s%s", finding.found, f"   do: {finding.remedy}" if finding.remedy else "")


def _settle_threads(cores: int, env: MutableMapping[str, str]) -> None:
    if "OMP_NUM_THREADS" not in env:  # torch itself obeys the user's choice
        torch.set_num_threads(cores)


def seed_everything(seed: int, rank: int) -> None:
    """Seed Python, numpy and torch; each rank has streams of its own, those of root are `seed` itself."""
    import numpy as np

    mixed = (seed + rank * 0x9E3779B9) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


class _RankTag(logging.Filter):
    def __init__(self, topology: Topology, host: str) -> None:
        super().__init__()
        self._tag = f"[{topology.rank}/{topology.size} {host}]"

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank_tag = self._tag
        return True


_LOG_FORMAT = "%(asctime)s %(rank_tag)s %(levelname)s %(message)s"


def _start_logging(topology: Topology, host: str) -> list[logging.Handler]:
    """Root says what happens, the others only what is wrong."""
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.INFO if topology.is_root else logging.WARNING)
    console.setFormatter(logging.Formatter("%(rank_tag)s %(levelname)s %(message)s"))
    console.addFilter(_RankTag(topology, host))
    LOGGER.addHandler(console)
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    return [console]


@contextmanager
def logging_to(run: Run, directory: Path) -> Iterator[None]:
    """Append this rank's log to ``directory/rank-0000.log`` as well, until the context ends; the directory exists."""
    path = directory / f"rank-{run.topology.rank:04d}.log"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    handler.addFilter(_RankTag(run.topology, run.host))
    LOGGER.addHandler(handler)
    yield
    LOGGER.removeHandler(handler)  # after an exception it stays until the rank ends: the last words go there, too
    handler.close()


def _stop_logging() -> None:
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()


@contextmanager
def init(*, seed: int = 0, deterministic: bool = True) -> Iterator[Run]:
    """Collective: start Horovod in this process and give its `Run`; leaving the context ends the rank in order.

    Args:
        seed: shared by all ranks; generators are seeded by (seed, rank).
        deterministic: let Horovod keep groups of gradients apart, so that sums do not depend on timing.

    Raises:
        LaunchError: the launcher's variables promise another job than Horovod or MPI reports.
        InstallError: Horovod is not there, or was built for another torch.
    """
    started, host = time.monotonic(), socket.gethostname()
    facts = LaunchFacts(env=dict(os.environ), host=host, rendezvous_answers=census.rendezvous_answers(os.environ))
    suspicious = guard(facts)
    _settle_environment(os.environ, deterministic=deterministic)
    topology, controller = _start_horovod(facts)
    facts = replace(_mpi_facts(facts, controller), size=topology.size)
    guard(facts)
    phases = Phases(rank=topology.rank, host=host)
    collectives = Collectives(HorovodTransport(topology, phases))
    _start_logging(topology, host)
    everyone = _census(collectives, facts)
    findings = preflight(everyone)
    _warn((*suspicious, *(findings if topology.is_root else ())))
    _settle_threads(share_of(topology.rank, everyone), os.environ)
    seed_everything(seed, topology.rank)
    run = Run(
        topology=topology,
        collectives=collectives,
        device=_device_of(topology),
        host=host,
        hosts=tuple(collectives.gather_json(host)),
        controller=controller,
        seed=seed,
        started=started,
        phases=phases,
        failures=Failures(rank=topology.rank, host=host, phases=phases, log=LOGGER),
    )
    run.failures.hook_threads(run.abort)
    try:
        yield run
    except BaseException as error:
        _end_with(error, run)
        raise
    else:
        collectives.barrier()  # a rank that finishes early must not take Horovod away from the others
    finally:
        run.closing.close()
        run.failures.unhook_threads()
        _stop_logging()
    _stop_horovod()


def _end_with(error: BaseException, run: Run) -> None:
    """Abort the job for a fault that only this rank has; let one that all ranks raised together pass.

    Raises:
        SystemExit: a job of one rank was left by `sys.exit` before its end; never with status 0.
    """
    if isinstance(error, HvdtrainError) and error.agreed:
        run.failures.agreed(error)
        run.closing.close()
        _stop_horovod()
        return
    run.failures.caught(error, aloud=run.topology.size > 1)  # alone, Python or the command line says it
    if run.topology.size > 1:
        run.abort()
    if isinstance(error, SystemExit) and not error.code:
        raise SystemExit(EXIT_FAILED) from error


def _stop_horovod() -> None:
    import horovod.torch as hvd

    hvd.shutdown()
