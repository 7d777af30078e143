"""The command for Open MPI is held whole by golden files, for both versions that are told things differently."""

from dataclasses import replace

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch import mpirun
from hvdtrain.launch.spec import Host, LaunchSpec
from hvdtrain.launch.tool import Tool
from hvdtrain.launch.transcript import transcript

VERSIONS = {4: (4, 1, 4), 5: (5, 0, 11)}
ENV = {"PATH": "/opt/bin:/bin", "HOROVOD_CYCLE_TIME": "1", "WANDB_API_KEY": "hush", "DISPLAY": ":0"}
HOSTS = (Host(name="gpu01", slots=2), Host(name="gpu02", slots=2))

SPECS = {
    "one-host": LaunchSpec(command=("hvdtrain", "run", "digits"), size=2, cores_per_host=8),
    "crowded": LaunchSpec(command=("hvdtrain", "run", "a file.py"), size=4, cores_per_host=2, as_root=True),
    "two-hosts": LaunchSpec(
        command=("hvdtrain", "run", "digits"), size=4, cores_per_host=8, hosts=HOSTS, network="10.1.0.0/16"
    ),
}


def tool(major):
    return Tool(flavour="openmpi", version=VERSIONS[major], path="mpirun")


@pytest.mark.parametrize("major", VERSIONS)
@pytest.mark.parametrize("name", SPECS)
def test_whole_command(golden, name, major):
    golden(f"launch/openmpi{major}-{name}.sh", transcript(mpirun.build(SPECS[name], tool(major), ENV)))


@pytest.mark.parametrize("major", VERSIONS)
@pytest.mark.parametrize("name", SPECS)
def test_no_value_of_the_environment_and_no_forced_transport(name, major):
    argv = mpirun.build(SPECS[name], tool(major), ENV).argv
    assert not [word for word in argv if "hush" in word or "/opt/bin" in word or "WANDB" in word]
    assert not {"btl", "pml", "tcp,self"} & set(argv)


def test_a_user_name_is_given_to_open_mpi_5_and_refused_for_4_which_would_crash():
    spec = replace(SPECS["two-hosts"], hosts=(HOSTS[0], replace(HOSTS[1], user="alice")))
    assert "gpu01:2,alice@gpu02:2" in mpirun.build(spec, tool(5), ENV).argv
    with pytest.raises(LaunchError, match="alice@gpu02") as caught:
        mpirun.build(spec, tool(4), ENV)
    assert "User alice" in caught.value.remedy
