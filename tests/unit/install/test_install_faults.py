from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import EXIT_USAGE, InstallError
from hvdtrain.install.faults import build_faults, environment_faults, no_fitting_wheel, refuse
from hvdtrain.install.target import target_of


def with_python(facts, **changes):
    return replace(facts, python=replace(facts.python, **changes))


def test_a_complete_machine_has_no_faults(machine):
    _, facts = machine
    assert environment_faults(facts) == []
    assert build_faults(facts, gpu="nccl" if facts.cuda else "none") == []


@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        (lambda f: replace(f, torch=None), "no torch in /venv", "pip install torch==2.13.0"),
        (lambda f: with_python(f, kind="", prefix="/usr"), "/usr is not a virtual environment", "-m venv .venv"),
        (
            lambda f: with_python(f, kind="", externally_managed=True),
            "managed by the system (PEP 668)",
            "-m venv .venv",
        ),
    ],
)
def test_an_environment_that_will_not_do(laptop, change, found, remedy):
    [fault] = environment_faults(change(laptop))
    assert found in fault.found
    assert remedy in fault.remedy
    assert fault.exit_status == EXIT_USAGE


@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        (lambda f: replace(f, compiler=None), "no C++ compiler", "apt-get install g++"),
        (lambda f: with_python(f, has_headers=False), "no Python.h in /usr/include/python3.11", "python3.11-dev"),
        (lambda f: replace(f, torch_cuda=None), "for the CPU alone", "pip install torch==2.13.0"),
        (lambda f: replace(f, cuda_home=None, cuda=None), "no nvcc", "module load cuda/13.0"),
        (lambda f: replace(f, cuda="12.8"), "CUDA 12.8 in /usr/local/cuda-13.0", "CUDA_HOME=/path/to/cuda-13.0"),
        (lambda f: replace(f, nccl_home=None), "nvidia-nccl", "pip install nvidia-nccl-cu13"),
    ],
)
def test_a_machine_that_cannot_build(gpu_cluster, change, found, remedy):
    [fault] = build_faults(change(gpu_cluster), gpu="nccl")
    assert found in fault.found
    assert remedy in fault.remedy


def test_conda_is_an_environment(laptop):
    assert environment_faults(with_python(laptop, kind="conda")) == []


def test_several_faults_come_in_one_message(laptop):
    nothing = with_python(replace(laptop, compiler=None), has_headers=False)
    with pytest.raises(InstallError) as caught:
        refuse(build_faults(nothing, gpu="none"))
    text = str(caught.value)
    assert "2 things are missing" in text
    assert "no C++ compiler" in text
    assert "Python.h" in text
    assert text.count("do:") == 2
    refuse([])


def test_the_nearest_wheel_is_named(laptop):
    target = target_of(laptop, gpu="none", env={})
    near = replace(target, torch="2.12.0")
    far = replace(near, python="cp312", machine="linux_aarch64-glibc2.36")
    fault = no_fitting_wheel(Path("/kept"), target, [far, near])
    assert "torch: 2.12.0, not 2.13.0+cpu" in fault.found
    assert "cp312" not in fault.found
    assert "--wheel-dir /kept" in fault.remedy
    assert no_fitting_wheel(Path("/kept"), target, []) is None
