"""Scripts that train with the real Horovod, but not in its elastic mode: they start again at each change, with a new place."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import RingError
from ...rendezvous.meeting.client import MeetingClient
from ..reporter import Reporter
from ..restarting.world import Seat
from .endpoint import Endpoint
from .environment import script_environment
from .places import Place
from .ring_keys import RingKeys

_TAKEN_FOR_STATIC = (
    "the script uses Horovod's elastic mode, though nothing in it says so, and is started again at each change:"
    " give --on-change in-process"
)


class Leading:
    """Of one agent's scripts."""

    def __init__(self, hostname: str, address: str, reporter: Reporter) -> None:
        self._endpoint = Endpoint()
        self._reporter = reporter
        self._hostname = hostname
        self._address = address

    def begin(self, environ: Mapping[str, str], seat: Seat, client: MeetingClient) -> Led:
        """Of one script's life. `client` is of its generation's meeting point."""
        token = self._endpoint.admit(_Script(RingKeys(client), self._reporter))
        place = Place(
            rank=seat.rank,
            size=seat.world_size,
            local_rank=seat.local_rank,
            local_size=seat.local_world_size,
            cross_rank=seat.cross_rank,
            cross_size=seat.cross_world_size,
        )
        where = self._endpoint.variables(token)
        return Led(self._endpoint, token, script_environment(environ, self._address, self._hostname, place, where))

    async def close(self) -> None:
        await self._endpoint.close()


class Led:
    """`environ` is the script's."""

    def __init__(self, endpoint: Endpoint, token: str, environ: dict[str, str]) -> None:
        self.environ = environ
        self._endpoint = endpoint
        self._token = token

    def end(self) -> None:
        self._endpoint.forget(self._token)


class _Script:
    def __init__(self, keys: RingKeys, reporter: Reporter) -> None:
        self._keys = keys
        self._reporter = reporter

    async def get(self, scope: str, key: str) -> bytes | None:
        return await self._keys.get(scope, key)

    async def put(self, scope: str, key: str, value: bytes) -> None:
        if scope == "worker_addresses":
            self._reporter.say_once(_TAKEN_FOR_STATIC)
            raise RingError(_TAKEN_FOR_STATIC)
        await self._keys.put(scope, key, value)

    async def delete(self, scope: str, key: str) -> None:
        await self._keys.delete(scope, key)
