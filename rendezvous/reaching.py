"""Opening a TCP connection within a short limit for each address.

An address behind which nobody is any more swallows what is sent there; TCP would try it for minutes, and whoever lives at
the next one waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

REACH = 2.0  # seconds for one address


async def reach(url: str, options: Mapping[str, Any]) -> socket.socket:
    """A connected socket. `options` may hold a `host` and `port` that take the place of the URL's. OSError, TimeoutError."""
    parts = urlsplit(url)
    host = options.get("host", parts.hostname)
    port = options.get("port", parts.port or (443 if parts.scheme == "wss" else 80))
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host!r} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(sock, address), REACH)
        except asyncio.TimeoutError:
            sock.close()
            failure = OSError(f"no answer at all from {address[0]} port {port} within {REACH:g} s")
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
