"""Runs the steps of a plan, in order; the first that fails ends it, with the command that failed.

execute(steps, env=os.environ)          # what the programs print goes to standard error
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.errors import EXIT_FAILED, InstallError
from hvdtrain.install.plan import Command, Link, Script, Step

LOG = logging.getLogger("hvdtrain.install")
AGAIN = "hvdtrain install-horovod --dry-run     (prints each command, to try them one at a time)"
GRACE_S = 10.0  # between asking a command that took too long to end, and ending it


class StepFailed(InstallError):
    """A command of the installation failed, or took longer than it may."""

    exit_status = EXIT_FAILED


def child_environment(env: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """`env` with the variables of a step, whose PATH goes in front, and without other settings of Horovod's build."""
    ours = {name: value for name, value in env.items() if not is_ignored(name, extra)}
    path = ":".join(part for part in (extra.get("PATH"), env.get("PATH")) if part)
    return ours | dict(extra) | {"PATH": path}


def is_ignored(name: str, extra: Mapping[str, str]) -> bool:
    """Whether a variable of the user would change the build behind the back of the cache."""
    return name.startswith("HOROVOD_") and name not in extra


def execute(steps: Sequence[Step], env: Mapping[str, str]) -> None:
    """Run all steps.

    Raises:
        StepFailed: a command failed or took too long.
        OSError: a file could not be written.
    """
    for step in steps:
        LOG.info("%s", step.why)
        if isinstance(step, Command):
            _run(step, env)
        elif isinstance(step, Script):
            step.path.parent.mkdir(parents=True, exist_ok=True)
            step.path.write_text(step.text)
            step.path.chmod(0o755)
        elif isinstance(step, Link):
            if not (step.path.exists() or step.path.is_symlink()):
                step.path.symlink_to(step.to)
        else:
            raise TypeError("cache.publish keeps the wheels; that step exists to be printed")


def _run(command: Command, env: Mapping[str, str]) -> None:
    merged = child_environment(env, command.env)
    with subprocess.Popen(command.argv, env=merged, stdout=sys.stderr, start_new_session=True) as process:
        try:
            status = process.wait(command.limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise StepFailed(command.why, found=f"it took longer than {command.limit_s} s", remedy=AGAIN) from None
        except BaseException:  # Ctrl-C: the command is in a session of its own and has not heard of it
            _end(process)
            raise
    if status != 0:
        raise StepFailed(command.why, found=f"exit status {status}; its own words are above", remedy=AGAIN)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the command to end (mpirun then ends its ranks), then end its whole group."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        LOG.warning("process %d did not end in %.0f s and is killed", process.pid, GRACE_S)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        LOG.debug("all of group %d had gone", process.pid)
    process.wait()
