"""`hvdtrain hosts`: read a host file in any dialect and write it in another.

hvdtrain hosts hosts.txt --to openmpi
hvdtrain hosts hosts.txt --to horovodrun          # for horovodrun -H
hvdtrain hosts hosts.txt --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hvdtrain.launch import hostfile
from hvdtrain.launch.spec import Host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hvdtrain hosts`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a host file in any dialect; /dev/stdin works too")
    parser.add_argument("--to", choices=sorted(hostfile.DIALECTS), default="list", help="the dialect to write")
    parser.add_argument("--json", action="store_true", help="one JSON list of hosts instead")


def run(arguments: argparse.Namespace) -> int:
    """Print the hosts of the file in the dialect that was asked for; what it cannot say is a warning."""
    hosts = hostfile.read(arguments.file)
    if arguments.json:
        print(json.dumps([asdict(host) for host in hosts]))
        return 0
    for name in unspeakable(hosts, arguments.to):
        print(f"hvdtrain: warning: max_slots of {name} is left out: {arguments.to} cannot say it", file=sys.stderr)
    print(hostfile.write(hosts, arguments.to), end="")
    return 0


def unspeakable(hosts: Sequence[Host], dialect: str) -> list[str]:
    """The hosts whose `max_slots` gets lost in `dialect`."""
    return [] if dialect == "openmpi" else [host.name for host in hosts if host.max_slots]
