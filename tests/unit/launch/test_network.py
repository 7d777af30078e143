"""Each host finds its own interface in the job's network."""

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch.network import addresses, check_network, interface_in, socket_variables

HOST = {"lo": ["127.0.0.1", "::1"], "eth0": ["192.168.1.7", "52:54:00:12:34:56"], "ib0": ["10.1.4.7", "fd00::7"]}


@pytest.mark.parametrize(("network", "name"), [("10.1.0.0/16", "ib0"), ("fd00::/8", "ib0"), ("172.16.0.0/12", None)])
def test_the_interface_is_the_one_with_an_address_in_it(network, name):
    assert interface_in(network, HOST) == name


def test_gloo_and_nccl_are_kept_on_it_and_the_users_own_choice_is_kept():
    env = {"HVDTRAIN_NETWORK": "10.1.0.0/16", "GLOO_SOCKET_IFNAME": "mine"}
    assert socket_variables(env, HOST) == {"NCCL_SOCKET_IFNAME": "=ib0", "HOROVOD_GLOO_IFACE": "ib0"}


def test_without_a_network_nothing_is_set():
    assert socket_variables({}, HOST) == {}


def test_a_host_outside_the_network_says_what_it_has():
    with pytest.raises(LaunchError) as caught:
        socket_variables({"HVDTRAIN_NETWORK": "172.16.0.0/12"}, HOST)
    assert "eth0 192.168.1.7" in caught.value.found


def test_a_network_is_checked_and_written_canonically():
    assert check_network("10.1.4.7/16") == "10.1.0.0/16"
    with pytest.raises(LaunchError):
        check_network("eth0")


def test_this_host_has_a_loopback():
    assert interface_in("127.0.0.0/8", addresses()) == "lo"
