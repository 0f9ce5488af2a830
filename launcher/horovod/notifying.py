"""Telling a process of Horovod's that the hosts have changed: it looks at it at its next commit.

A message is an HMAC (SHA-256), the length of the body in 4 bytes, and the body, in both directions. The answer is a pickle,
which says no more than that it came, and is not looked into.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import struct

from ...errors import RendezvousError
from .pickles import Notified, hosts_updated

_LIMIT = 5.0  # seconds
_DIGEST = 32  # bytes


async def notify(process: Notified, timestamp: float) -> None:
    """Returns when the process has it. `timestamp` must be larger than the last one. RendezvousError if it cannot be told."""
    try:
        await asyncio.wait_for(_tell(process, hosts_updated(timestamp)), _LIMIT)
    except (OSError, EOFError, asyncio.TimeoutError) as error:
        raise RendezvousError(f"the notification service on port {process.port} does not answer: {error!r}") from error


async def _tell(process: Notified, body: bytes) -> None:
    # It listens on all addresses, and is a process of this host.
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    try:
        digest = hmac.new(process.key, body, hashlib.sha256).digest()
        writer.write(digest + struct.pack("=i", len(body)) + body)
        await writer.drain()
        await reader.readexactly(_DIGEST + 4)
    finally:
        writer.close()
