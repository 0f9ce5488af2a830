"""A listening socket for a rendezvous server, apart from what serves on it: whoever looks for a free port imports no server."""

from __future__ import annotations

import socket

from ..errors import RendezvousError

_DEAD_PEER = 30  # seconds until an agent's host that acknowledges nothing costs no buffer any more


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; "::" takes IPv4 as well. RendezvousError, from an OSError, says what is in the way."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        raise RendezvousError(
            f"cannot serve the rendezvous on {host} port {port}: {error.strerror or error}. "
            "Choose another port (0 for any free one), or stop what listens there"
        ) from error
    # Inherited by every accepted connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER * 1000)
    return listener
