"""Other hosts get what the allow-list names, and never a secret."""

import pytest

from hvdtrain.launch.environment import looks_secret, passed_names, withheld_names


def test_the_allow_list_decides():
    env = dict.fromkeys(["PATH", "HOSTNAME", "DISPLAY", "HOROVOD_CYCLE_TIME", "OMP_NUM_THREADS", "MINE"], "1")
    assert passed_names(env) == ("HOROVOD_CYCLE_TIME", "OMP_NUM_THREADS", "PATH")
    assert passed_names(env, ["MI*"]) == ("HOROVOD_CYCLE_TIME", "MINE", "OMP_NUM_THREADS", "PATH")


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DB_PASSWORD", "MYSQL_PWD", "API_AUTH"],
)
def test_a_secret_is_never_passed_even_when_asked_for(name):
    assert looks_secret(name)
    assert passed_names({name: "x"}, ["*"]) == ()
    assert withheld_names({name: "x"}, ["*"]) == (name,)


@pytest.mark.parametrize("name", ["MONKEY", "KEYBOARD_LAYOUT", "PATH", "PYTHONHASHSEED", "AUTHOR"])
def test_harmless_names_are_no_secrets(name):
    assert not looks_secret(name)


def test_positions_and_what_cannot_be_carried_stay_behind():
    env = {"HOROVOD_RANK": "0", "HOROVOD_GLOO_IFACE": "eth0", "BASH_FUNC_module%%": "() {", "HVDTRAIN_NOTE": "a\nb"}
    assert passed_names(env, ["*"]) == ()
