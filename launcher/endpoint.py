"""A meeting place that is the same word on every machine: HOST:PORT, served by the agent that finds itself there.

So one and the same command line, run on every node, brings a job together: the agent on the named host serves it, the
others join. Which one that is, is not asked of anybody: the host has the address, and the first there gets the port.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import socket
import time
from dataclasses import dataclass

from ..errors import RendezvousError, UsageError
from ..rendezvous.host_port import host_port
from ..rendezvous.listening import listen
from ..rendezvous.route import address_on_the_way_to
from .address import is_own_address

DEFAULT_PORT = 29400  # torchrun's
_LOOK_AGAIN = 0.5  # seconds between two attempts to resolve the host's name
_LOOPBACK = "127.0.0.1"
# Addresses for documentation (RFC 5737, RFC 3849): the way to them is the way to anywhere.
_ELSEWHERE = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}
_HOST = re.compile(r"[\w.:%-]+")


@dataclass(frozen=True)
class Endpoint:
    """`serves`: whether this agent serves the job there. None: it does if HOST is this machine and the port is free."""

    host: str
    port: int = DEFAULT_PORT
    serves: bool | None = None

    @classmethod
    def parse(cls, text: str, serves: bool | None = None) -> Endpoint:
        """HOST[:PORT], with brackets around IPv6. UsageError if it is not."""
        match = re.fullmatch(r"\[(?P<v6>[^\]]+)\](:(?P<v6_port>\d+))?|(?P<host>[^:]+)(:(?P<port>\d+))?", text.strip())
        host = match and (match["v6"] or match["host"])
        port = match and (match["v6_port"] or match["port"])
        if not host or not _HOST.fullmatch(host) or int(port or 0) > 65535:
            raise UsageError(f"{text!r} is no HOST:PORT: give one, as in head:29400 (an IPv6 address in brackets)")
        return cls(host, DEFAULT_PORT if port is None else int(port), serves)

    @property
    def url(self) -> str:
        return f"http://{host_port(self.host, self.port)}"


@dataclass(frozen=True)
class Seat:
    """Of the agent that serves. `address` is this host's, for everything else that listens."""

    listener: socket.socket
    address: str


async def take_seat(endpoint: Endpoint, limit: float) -> Seat | None:
    """None where another agent serves the job.

    RendezvousError if the host's name cannot be resolved for `limit` seconds; UsageError if this agent is to serve and
    cannot.
    """
    deadline = time.monotonic() + limit
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, _take, endpoint)
        except socket.gaierror as error:
            if time.monotonic() + _LOOK_AGAIN > deadline:
                raise RendezvousError(
                    f"the endpoint's host {endpoint.host!r} cannot be resolved: {error.strerror}. Looked for {limit:.0f} s"
                    " (--rendezvous-timeout). Check the name"
                ) from None
        await asyncio.sleep(_LOOK_AGAIN)


def _take(endpoint: Endpoint) -> Seat | None:
    address = None if endpoint.serves is False else _where_to_listen(endpoint.host, bool(endpoint.serves))
    if address is None:
        if endpoint.port == 0:
            raise UsageError(
                f"endpoint {endpoint.host}:0: port 0 is any free one, which only the agent that serves can know."
                f" Give a port, such as {endpoint.host}:{DEFAULT_PORT}"
            )
        return None
    try:
        listener = listen(address, endpoint.port)
    except RendezvousError as error:
        taken = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
        if taken and endpoint.serves is None:
            return None
        raise UsageError(f"endpoint {endpoint.host}:{endpoint.port}: {error}") from error
    return Seat(listener, _way_out(address) if address in _ELSEWHERE else address)


def _where_to_listen(host: str, serves: bool) -> str | None:
    """The host's address, if it is this machine's; every address, if the host's is one that others do not know it by."""
    if host == "localhost":
        return _LOOPBACK
    is_mine = serves or _is_own_name(host)
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror:
        if not is_mine:
            raise
        found = []
    here = [str(sockaddr[0]) for family, *_, sockaddr in found if is_own_address(family, sockaddr)]
    for address in here:
        if address.partition("%")[0] == host.partition("%")[0] or not ipaddress.ip_address(address).is_loopback:
            return address
    if here or is_mine:  # as where /etc/hosts gives this machine's name to 127.0.1.1
        return "::" if found and all(family == socket.AF_INET6 for family, *_ in found) else "0.0.0.0"
    return None


def _is_own_name(host: str) -> bool:
    own = socket.gethostname().lower()
    return host.lower() in (own, own.partition(".")[0])


def _way_out(every: str) -> str:
    """This host's address of the family of `every`, on the way to other machines; the loopback's if there is none."""
    try:
        return address_on_the_way_to(_ELSEWHERE[every], 9)
    except OSError:
        return "::1" if every == "::" else _LOOPBACK
