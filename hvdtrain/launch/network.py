"""Which of a host's interfaces lies in the network that the user named with ``--network``.

Names of interfaces differ between the hosts of one job, so the job carries the network, and each rank looks up its own.

    interface_in("10.1.0.0/16", {"lo": ["127.0.0.1"], "ib0": ["10.1.4.7"]})          # "ib0"
    socket_variables({"HVDTRAIN_NETWORK": "10.1.0.0/16"}, addresses())
    # {"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0", "HOROVOD_GLOO_IFACE": "ib0"}
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from hvdtrain.errors import LaunchError

NETWORK_VARIABLE = "HVDTRAIN_NETWORK"


def check_network(text: str) -> str:
    """The network in its canonical form.

    Raises:
        LaunchError: `text` is no network in CIDR notation.
    """
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError as error:
        raise LaunchError(
            f"use the network {text!r} (--network)", found=str(error), remedy="--network 10.1.0.0/16"
        ) from None


def addresses() -> dict[str, list[str]]:
    """The addresses of this host's interfaces that are up, by interface."""
    import psutil

    up = psutil.net_if_stats()
    return {
        name: [entry.address.partition("%")[0] for entry in entries if ":" in entry.address or "." in entry.address]
        for name, entries in psutil.net_if_addrs().items()
        if name in up and up[name].isup
    }


def interface_in(network: str, by_interface: Mapping[str, Sequence[str]]) -> str | None:
    """The interface that has an address in `network`; None when there is none."""
    wanted = ipaddress.ip_network(network)
    for name, listed in by_interface.items():
        for text in listed:
            try:
                if ipaddress.ip_address(text) in wanted:
                    return name
            except ValueError:  # a hardware address
                continue
    return None


def socket_variables(env: Mapping[str, str], by_interface: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The variables that keep Gloo and NCCL on the job's network; what the user set is left alone.

    Raises:
        LaunchError: this host has no interface in that network.
    """
    network = env.get(NETWORK_VARIABLE)
    if not network:
        return {}
    name = interface_in(network, by_interface)
    if name is None:
        found = "; ".join(f"{key} {' '.join(value)}" for key, value in by_interface.items())
        raise LaunchError(
            f"use the network {network} (--network)",
            found=f"no interface of this host has an address in it: {found}",
            remedy="name a network that every host is on",
        )
    chosen = {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name, "HOROVOD_GLOO_IFACE": name}
    return {key: value for key, value in chosen.items() if key not in env}
