"""The commands of all launchers but Open MPI's are held whole by golden files; laws hold over all of them."""

from dataclasses import replace

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch import horovodrun, hydra, mpirun, srun
from hvdtrain.launch.spec import Host, LaunchSpec
from hvdtrain.launch.tool import Tool
from hvdtrain.launch.transcript import transcript

OPENMPI = Tool(flavour="openmpi", version=(5, 0, 11), path="mpirun")
MPICH = Tool(flavour="hydra", version=(4, 2, 3), path="mpiexec")
INTEL = Tool(flavour="intel", version=(2021, 9), path="mpiexec")
SLURM = Tool(flavour="slurm", version=(22, 5, 8), path="srun")
HOROVOD = Tool(flavour="horovod", version=(0, 28, 1), path="horovodrun")

BUILDERS = {
    "openmpi": lambda spec, env: mpirun.build(spec, OPENMPI, env),
    "mpich": lambda spec, env: hydra.build(spec, MPICH, env),
    "intel": lambda spec, env: hydra.build(spec, INTEL, env),
    "srun-pmix": lambda spec, env: srun.build(spec, SLURM, env, pmi="pmix"),
    "srun-pmi2": lambda spec, env: srun.build(spec, SLURM, env, pmi="pmi2"),
    "horovodrun": lambda spec, env: horovodrun.build(spec, HOROVOD, env, OPENMPI),
}
ENV = {
    "PATH": "/opt/bin:/bin",
    "HOME": "/home/alice",
    "HOROVOD_CYCLE_TIME": "1",
    "MINE": "a b",
    "WANDB_API_KEY": "hush",
    "DISPLAY": ":0",
}
ONE = LaunchSpec(command=("hvdtrain", "run", "digits"), size=2, cores_per_host=8)
TWO = replace(
    ONE,
    size=4,
    cores_per_host=4,
    hosts=(Host(name="gpu01", slots=2), Host(name="gpu02", slots=2)),
    network="10.1.0.0/16",
    interface="ib0",
    env_patterns=("MINE",),
    as_root=True,
)
UNEVEN = replace(ONE, size=3, hosts=(Host(name="gpu01", slots=2), Host(name="gpu02", slots=2)))
SPECS = {"one-host": ONE, "two-hosts": TWO, "uneven": UNEVEN}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("launcher", sorted(set(BUILDERS) - {"openmpi"}))
def test_whole_command(golden, launcher, spec):
    golden(f"launch/{launcher}-{spec}.sh", transcript(BUILDERS[launcher](SPECS[spec], ENV)))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("launcher", BUILDERS)
def test_laws_of_every_builder(launcher, spec):
    invocation = BUILDERS[launcher](SPECS[spec], ENV)
    text = transcript(invocation)
    assert invocation.argv[-3:] == ("hvdtrain", "run", "digits")
    assert "hush" not in text, "a secret"
    assert "/opt/bin" not in " ".join(invocation.argv), "a value of the environment on a command line"
    assert "WANDB_API_KEY" not in text
    assert "DISPLAY" not in invocation.passed
    assert all(option.why for option in invocation.options)
    forced = {"btl", "pml", "tcp,self", "UCX_NET_DEVICES"}
    assert not forced & {word for option in invocation.options for word in option.words}


@pytest.mark.parametrize("launcher", BUILDERS)
def test_what_the_user_asks_for_is_passed_to_other_hosts(launcher):
    passed = BUILDERS[launcher](TWO, ENV).passed
    assert {"PATH", "MINE", "HOROVOD_CYCLE_TIME", "HVDTRAIN_NETWORK"} <= set(passed)


def test_horovodrun_which_passes_on_everything_is_given_only_what_may_be_passed():
    environment = BUILDERS["horovodrun"](TWO, ENV).environment(ENV)
    assert environment["MINE"] == "a b"
    assert not {"WANDB_API_KEY", "DISPLAY"} & set(environment)


def test_horovodrun_without_an_interface_in_the_network_is_refused():
    with pytest.raises(LaunchError, match="with horovodrun"):
        BUILDERS["horovodrun"](replace(TWO, interface=None), ENV)


@pytest.mark.parametrize("launcher", BUILDERS)
def test_the_users_own_choice_of_psec_is_kept(launcher):
    names = [variable.name for variable in BUILDERS[launcher](TWO, {**ENV, "PMIX_MCA_psec": "munge"}).variables]
    assert "PMIX_MCA_psec" not in names


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "intel"])
def test_an_ipv6_address_is_refused_rather_than_misread(launcher):
    with pytest.raises(LaunchError, match="fe80::1"):
        BUILDERS[launcher](replace(ONE, size=1, hosts=(Host(name="fe80::1"),)), {})


@pytest.mark.parametrize("launcher", ["mpich", "intel"])
def test_hydra_loses_the_last_variable_of_its_environment_so_that_is_one_that_ranks_do_not_need(launcher):
    env = {"HYDRA_LAUNCHER_EXTRA_ARGS": "-v", **ENV}
    assert list(BUILDERS[launcher](TWO, env).environment(env))[-1] == "HYDRA_LAUNCHER_EXTRA_ARGS"
