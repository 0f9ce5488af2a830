"""Which of its own addresses this host uses on the way to another."""

from __future__ import annotations

import socket


def address_on_the_way_to(host: str, port: int) -> str:
    """Nothing is sent. OSError while the name cannot be resolved, or there is no route to any of its addresses."""
    failure = OSError(f"{host!r} has no address")
    for family, _, protocol, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM, protocol) as probe:
            try:
                probe.connect(sockaddr)
            except OSError as error:
                failure = error
                continue
            return str(probe.getsockname()[0]).partition("%")[0]
    raise failure
