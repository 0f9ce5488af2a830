"""Addresses of a cluster's nodes, from their names, or from Slurm where a name means nothing to the system."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
from collections.abc import Sequence

from ...rendezvous.route import address_on_the_way_to
from ..address import AddressError

_LIMIT = 10.0  # seconds for Slurm's controller to answer
_ANY_PORT = 9


def place_of(node: str) -> str:
    """What to put into a URL for that node: its name if it can be resolved, else the address that Slurm uses itself."""
    return node if _resolved(node) else _known_to_slurm(node) or node


def own_address(node: str, nodes: Sequence[str]) -> str:
    """The address of this node, `node` of all `nodes`, at which the others look for it; loopback if there are no others.

    AddressError if there is none. A name that means loopback on its own host, as Debian sets it up, means something else
    to the others.
    """
    others = [name for name in nodes if name != node]
    if not others:
        return "127.0.0.1"
    for address in (*_resolved(node), *_resolved(_known_to_slurm(node))):
        if _is_ours(address) and not _is_loopback(address):
            return address
    try:
        return address_on_the_way_to(place_of(others[0]), _ANY_PORT)
    except OSError as error:
        raise AddressError(
            f"this node's address is not to be found by its name, {node!r}, nor by the way to {others[0]!r}: {error}."
            " Give --network-interface, or --rendezvous with the URL of a server of its own"
        ) from None


def _resolved(name: str) -> list[str]:
    if not name:
        return []
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]


def _known_to_slurm(node: str) -> str:
    """Empty if Slurm cannot be asked, or knows no other name."""
    try:
        answer = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
    return found.group(1) if found else ""


def _is_loopback(address: str) -> bool:
    return bool(ipaddress.ip_address(address).is_loopback)


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
