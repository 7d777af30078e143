from dataclasses import fields, replace

import pytest

from hvdtrain.install.target import Target, assume, assume_gpu, cxx_standard, target_of
from hvdtrain.versions import release

OTHER = {
    "horovod": "0.29.0",
    "torch": "2.14.1",
    "python": "cp312",
    "machine": "linux_aarch64-glibc2.36",
    "mpi": "Open MPI 4.1.4",
    "mpi_prefix": "/usr",
    "cxx_standard": 20,
    "cuda": "13.0",
    "cuda_architectures": "90",
    "nccl": "2.28.9",
}


@pytest.mark.parametrize(
    ("torch", "standard"), [("2.6.0", 17), ("2.13.0+cpu", 17), ("2.14.0", 20), ("2.14.1+cu130", 20), ("3.0.0a0", 20)]
)
def test_the_standard_follows_from_torch(torch, standard):
    assert cxx_standard(torch) == standard


def test_a_release_is_compared_by_its_numbers():
    assert release("2.9.1") < release("2.13.0+cpu") < release("2.14.0.dev20260101")


def test_every_field_changes_the_key(laptop):
    target = target_of(laptop, gpu="none", env={})
    assert {field.name for field in fields(Target)} == set(OTHER)
    keys = {replace(target, **{name: value}).key for name, value in OTHER.items()}
    assert len(keys | {target.key}) == len(OTHER) + 1
    assert all("/" not in key and " " not in key for key in keys)


def test_a_target_survives_its_record(gpu_cluster):
    target = target_of(gpu_cluster, gpu="nccl", env={"HOROVOD_BUILD_CUDA_CC_LIST": "90"})
    assert Target.from_json(target.to_json()) == target
    assert target.cuda_architectures == "90"


def test_a_build_for_the_cpu_does_not_depend_on_the_toolkit(gpu_cluster):
    without = replace(gpu_cluster, cuda=None, nccl=None)
    assert target_of(gpu_cluster, gpu="none", env={}) == target_of(without, gpu="none", env={})


def test_differences_name_both_sides(laptop):
    target = target_of(laptop, gpu="none", env={})
    other = replace(target, torch="2.14.1", nccl="2.28.9")
    assert target.differences(other) == ["torch: 2.13.0+cpu, not 2.14.1", "nccl: none, not 2.28.9"]
    assert target.differences(target) == []


def test_what_is_assumed_is_said(laptop):
    complete, notes = assume(replace(laptop, torch=None, mpi=None, compiler=None))
    assert (complete.torch, complete.mpi.version, complete.compiler) == ("2.13.0", "5.0.11", "g++")
    assert len(notes) == 3
    assert assume(laptop) == (laptop, [])
    complete, notes = assume_gpu(complete)
    assert complete.cuda_home
    assert complete.nccl_home
    assert len(notes) == 2
