"""The way to the server, which may not be there yet where it and this agent start at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import RendezvousError
from .address import address_towards_any

_LOOK_AGAIN = 0.5  # seconds between two attempts


async def find_way(urls: Sequence[str], limit: float) -> str:
    """The address that this host uses on it. RendezvousError if there is none within `limit` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while True:
        try:
            return await loop.run_in_executor(None, address_towards_any, urls)
        except OSError as error:
            if loop.time() + _LOOK_AGAIN > deadline:
                raise RendezvousError(
                    f"there is no way to {', '.join(urls)}: {error}. Looked for {limit:.0f} s (--rendezvous-timeout)."
                    " Check the name and the network"
                ) from None
        await asyncio.sleep(_LOOK_AGAIN)
