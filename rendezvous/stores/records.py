"""A job's durable record: the last formed generation, how the job stands, and what was asked of it.

A record is written by the server that leads only, and only from the very version that it has read or written last: of
two servers that both believe that they decide, one is refused.
"""

from __future__ import annotations

import asyncio

import msgspec

from ...errors import RendezvousError
from ..membership.facts import Facts
from .store import Fence, Store, StoreUnavailable

PREFIX = "jobs/"


class RecordConflict(RendezvousError):
    """Somebody else has moved the record on; what it holds now is `found`."""

    def __init__(self, message: str, found: JobRecord) -> None:
        super().__init__(message)
        self.found = found


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`formed` is the last formed generation, 0 for none; `members` are its workers' nonces in rank order.

    `facts` is None in a job that nobody has described yet. `ended_at` is when it was over (seconds since the epoch).
    """

    formed: int = 0
    members: list[str] = []
    done: bool = False
    facts: Facts | None = None
    ended_at: float = 0.0


def decode(job: str, value: bytes) -> JobRecord:
    """RendezvousError if it is not a record."""
    try:
        return msgspec.json.decode(value, type=JobRecord)
    except msgspec.MsgspecError as error:
        raise RendezvousError(f"the record of job {job!r} in the store is damaged: {error}") from error


class JobRecords:
    """One job's record in a store. All methods raise `StoreUnavailable` if the store does not answer, and `FenceLost`.

    After a `StoreUnavailable` any of them may be asked again: it finds out what has become of its first attempt.
    """

    def __init__(self, store: Store, job: str, fence: Fence | None = None) -> None:
        self._store = store
        self._key = PREFIX + job
        self._job = job
        self._fence = fence
        self._in_turn = asyncio.Lock()
        self._record = JobRecord()
        self._version = 0
        self._is_known = False

    async def load(self) -> JobRecord:
        async with self._in_turn:
            await self._read()
            return self._record

    async def move_to_generation(self, generation: int, members: list[str], previous: int) -> None:
        """Makes `generation` durable as formed if `previous` still is the last one. RecordConflict if it is not."""
        async with self._in_turn:
            await self._move(previous, formed=generation, members=members)

    async def move_to_done(self, ended_at: float = 0.0) -> None:
        """Makes *done* durable. RecordConflict if the job has gone on elsewhere meanwhile."""
        async with self._in_turn:
            if not self._is_known:
                await self._read()
            await self._move(self._record.formed, done=True, ended_at=ended_at)

    async def keep(self, facts: Facts, ended_at: float = 0.0) -> None:
        """Makes `facts` durable, beside whatever generation the record holds."""
        async with self._in_turn:
            if not self._is_known:
                await self._read()
            await self._move(self._record.formed, facts=facts, ended_at=ended_at or self._record.ended_at)

    async def remove(self) -> None:
        """The job is forgotten."""
        async with self._in_turn:
            await self._read()
            while self._version and not await self._store.delete(self._key, self._version, fence=self._fence):
                await self._read()
            self._record, self._version, self._is_known = JobRecord(), 0, True

    async def _move(self, previous: int, **changes: object) -> None:
        """Changes the record if `previous` still is its generation and it is not done."""
        for _ in range(2):
            if not self._is_known:
                await self._read()
            wanted = msgspec.structs.replace(self._record, **changes)
            if self._record == wanted:
                return
            if self._record.formed != previous or (self._record.done and "facts" not in changes):
                break
            try:
                version = await self._store.compare_and_set(
                    self._key, msgspec.json.encode(wanted), self._version, fence=self._fence
                )
            except StoreUnavailable:
                self._is_known = False
                raise
            self._is_known = version is not None
            if version is not None:
                self._record, self._version = wanted, version
                return
        held = self._record
        state = "is done" if held.done else f"has formed generation {held.formed}"
        raise RecordConflict(f"job {self._job!r} {state}, according to its record in the store", held)

    async def _read(self) -> None:
        held = await self._store.get(self._key)
        self._record = decode(self._job, held.value) if held else JobRecord()
        self._version = held.version if held else 0
        self._is_known = True
