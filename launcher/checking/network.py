"""Names and addresses of this host."""

from __future__ import annotations

import ipaddress
import socket

from ..address import AddressError, address_of_interface
from .finding import Finding


def look_at_the_network(several_hosts: bool) -> list[Finding]:
    """`several_hosts`: the job is to have agents elsewhere, which must reach this host."""
    return [*_interfaces(several_hosts), _loopback(), _name(several_hosts)]


def _interfaces(several_hosts: bool) -> list[Finding]:
    found = {}
    for _, name in socket.if_nameindex():
        try:
            found[name] = address_of_interface(name)
        except AddressError:
            pass  # down, or without an address
    text = ", ".join(f"{name} {address}" for name, address in found.items()) or "none has an address"
    reachable = [address for address in found.values() if not ipaddress.ip_address(address).is_loopback]
    if not reachable and several_hosts:
        return [Finding("interfaces", text, "fails", "no other host can reach this one: bring an interface up")]
    if len(reachable) > 1 and several_hosts:
        advice = "choose with --network-interface if the way to the server is not the one for gradients"
        return [Finding("interfaces", text, "look", advice)]
    return [Finding("interfaces", text)]


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 2):
            return Finding("loopback", "works")
    except OSError as error:
        return Finding("loopback", str(error), "fails", "bring it up: ip link set lo up")


def _name(several_hosts: bool) -> Finding:
    name = socket.gethostname()
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    except OSError as error:
        advice = "elastic-launch does without; a script that looks up its own name will fail: see /etc/hosts"
        return Finding("host name", f"{name} cannot be resolved ({error.strerror or error})", "look", advice)
    text = f"{name} is {', '.join(addresses)}"
    if several_hosts and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        advice = "fine for elastic-launch, which gives addresses; a script that hands out its own name would hand out loopback"
        return Finding("host name", text, "look", advice)
    return Finding("host name", text)
