"""Which hosts are this one, and under which address of this host the others reach the server in it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from ...rendezvous.route import address_on_the_way_to
from ..address import is_own_address


@dataclass(frozen=True)
class Place:
    """`is_here`: the host is this one. `addresses` are those of this host at which an agent there finds the server."""

    is_here: bool
    addresses: tuple[str, ...]


LOOPBACK = "127.0.0.1"
_ANY_PORT = 22  # nothing is sent
_FAR_AWAY = ("192.0.2.1", "2001:db8::1")  # for documentation; the way to them is the default route's


def find_place(host: str, others: Iterable[str]) -> Place:
    """Looks names up, which may take its time. `others` are all hosts of the job."""
    here = is_this_host(host)
    return Place(here, tuple(_addresses_for(host, here, others)))


def is_this_host(name: str) -> bool:
    """Whether no remote shell is needed. Other loopback addresses than 127.0.0.1 count as other hosts, as for Horovod."""
    if "@" in name:
        return False  # as another user
    own = socket.gethostname()
    if name in ("localhost", LOOPBACK, "::1", own):
        return True
    with contextlib.suppress(OSError):
        for family, *_, sockaddr in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            if ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]).is_loopback:
                return sockaddr[0] in (LOOPBACK, "::1")
            if is_own_address(family, sockaddr):
                return True
    return False


def _addresses_for(host: str, is_here: bool, others: Iterable[str]) -> list[str]:
    """Several are to be tried in turn.

    An agent on this host takes the address that leads to the first of the `others`, so that their workers can meet its own.
    """
    towards = [other for other in others if not is_this_host(other)] if is_here else [host]
    for name in towards:
        with contextlib.suppress(OSError):
            return [address_on_the_way_to(name.rpartition("@")[2], _ANY_PORT)]
    found = []
    for far in _FAR_AWAY:  # a name that only the remote shell knows
        with contextlib.suppress(OSError):
            found.append(address_on_the_way_to(far, _ANY_PORT))
    return found or [LOOPBACK]
