"""This host's address: the one that everything of this agent and its workers binds and advertises, on all planes.

It is always a number. A name would be looked up again by others, and reverse look-ups invent names that nobody can reach.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ElasticError
from ..rendezvous.route import address_on_the_way_to

_SIOCGIFADDR = 0x8915
_INTERFACES_IPV6 = Path("/proc/net/if_inet6")


class AddressError(ElasticError):
    """No usable address; the message says what to give."""


def checked_address(text: str) -> str:
    """`text`, an address or a name, as an address that this host can bind."""
    try:
        found = socket.getaddrinfo(text.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressError(
            f"--advertise-address {text!r} is no address, and no name that can be resolved: {error}."
            " Give one that `ip address` lists"
        ) from None
    for family, kind, protocol, _, sockaddr in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(sockaddr)
            except OSError:
                continue
        if ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]).is_unspecified:
            raise AddressError(f"--advertise-address {text!r} stands for every address: give one that others can reach")
        return str(sockaddr[0])
    raise AddressError(f"--advertise-address {text!r} is not an address of this host: give one that `ip address` lists")


def address_of_interface(name: str) -> str:
    """The interface's IPv4 address, or else its global IPv6 address; of several (`eth0,eth1`) the first that is here."""
    names = [known for _, known in socket.if_nameindex()]
    here = [wanted for wanted in (part.strip() for part in name.split(",")) if wanted in names]
    if not here:
        raise AddressError(
            f"--network-interface {name!r} does not exist: this host has {', '.join(names)}. Give one of them"
        )
    name = here[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            pass
    ipv6 = _ipv6_of_interface(name)
    if ipv6 is None:
        raise AddressError(f"--network-interface {name!r} has no address: is it up? (`ip address show {name}`)")
    return ipv6


def interface_with(address: str) -> str:
    """The name of the interface that has it; empty if none is known to (as for an IPv4 address that is not its first)."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(AddressError):
            if address_of_interface(name) == address:
                return name
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for found, name in _ipv6_addresses() if found == wanted), "")


def _ipv6_of_interface(name: str) -> str | None:
    for address, interface in _ipv6_addresses():
        if interface == name and not address.is_link_local:
            return str(address)
    return None


def _ipv6_addresses() -> list[tuple[ipaddress.IPv6Address, str]]:
    """Each with the name of its interface."""
    try:
        lines = [line.split() for line in _INTERFACES_IPV6.read_text().splitlines()]
    except OSError:
        return []
    return [(ipaddress.IPv6Address(bytes.fromhex(digits)), name) for digits, _, _, _, _, name in lines]


def address_towards(url: str) -> str:
    """The address from which this host reaches the server at `url`: nothing is sent.

    Raises OSError while the server's name cannot be resolved or there is no route to it.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return address_on_the_way_to(parts.hostname or "", port)


def address_towards_any(urls: Sequence[str]) -> str:
    """As `address_towards` the first of the server's replicas whose name and way are known. OSError if none is."""
    for url in urls[:-1]:
        with contextlib.suppress(OSError):
            return address_towards(url)
    return address_towards(urls[-1])


def is_own_address(family: int, sockaddr: Any) -> bool:
    """Whether it is this host's; all loopback addresses are."""
    address = str(sockaddr[0])
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    if _may_bind_any_address(family):
        try:
            return address_on_the_way_to(address, 9) == address.partition("%")[0]
        except OSError:
            return False
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(sockaddr)
        except OSError:
            return False
    return True


def _may_bind_any_address(family: int) -> bool:
    """Hosts with floating addresses are often set up so: a successful bind says nothing there."""
    version = "ipv6" if family == socket.AF_INET6 else "ipv4"
    try:
        return Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").read_text().strip() != "0"
    except OSError:
        return False
