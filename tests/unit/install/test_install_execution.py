import os
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import EXIT_FAILED
from hvdtrain.install.execution import StepFailed, child_environment, execute
from hvdtrain.install.plan import Command, Link, Script


def python(code, **options):
    return Command(why="a step", argv=(sys.executable, "-c", code), **options)


def test_steps_run_in_order_with_their_variables(tmp_path):
    script = Script(why="s", path=tmp_path / "bin" / "tool", text=f"#!/bin/sh\necho $NAME >{tmp_path}/said\n")
    link = Link(why="l", path=tmp_path / "link", to="said")
    use = Command(why="u", argv=("/bin/sh", "-c", "tool"), env={"NAME": "x y", "PATH": str(tmp_path / "bin")})
    execute([script, link, link, use], {"PATH": "/usr/bin:/bin"})
    assert Path(tmp_path, "link").read_text() == "x y\n"


def test_a_failing_command_ends_the_plan_and_is_named(tmp_path):
    later = Script(why="s", path=tmp_path / "later", text="")
    with pytest.raises(StepFailed, match="exit status 3") as caught:
        execute([python("raise SystemExit(3)"), later], {})
    assert caught.value.asked == "a step"
    assert caught.value.exit_status == EXIT_FAILED
    assert not later.path.exists()


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path):
    pipe = tmp_path / "held open by the grandchild"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    grandchild = f"import time; held = open({str(pipe)!r}, 'w'); held.write('x'); held.flush(); time.sleep(100)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with pytest.raises(StepFailed, match="longer than 1"):
        execute([python(code, limit_s=1.5)], {})
    os.set_blocking(reader, True)
    assert os.read(reader, 10) == b"x"
    assert os.read(reader, 10) == b""  # nobody holds it any more; it would wait otherwise
    os.close(reader)


def test_settings_that_the_cache_does_not_know_of_do_not_reach_the_build():
    env = {"PATH": "/bin", "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITH_MPI": "0", "HOME": "/home/me"}
    merged = child_environment(env, {"PATH": "/first", "HOROVOD_WITH_MPI": "1"})
    assert merged == {"PATH": "/first:/bin", "HOROVOD_WITH_MPI": "1", "HOME": "/home/me"}
