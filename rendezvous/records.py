"""A job's durable record: the last formed generation, its members, and whether the job is done.

A record only moves on, never back, and only from the very record that was last seen: of two servers that both believe
that they decide, one is refused.
"""

from __future__ import annotations

import msgspec

from ..errors import RendezvousError
from .store import Store


class RecordConflict(RendezvousError):
    """Another server has moved the record on; what it holds now is `found`."""

    def __init__(self, message: str, found: JobRecord) -> None:
        super().__init__(message)
        self.found = found


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`formed` is the last formed generation, 0 for none; `members` are its workers' nonces in rank order."""

    formed: int = 0
    members: list[str] = []
    done: bool = False


class JobRecords:
    """One job's record in a store. All methods raise `StoreUnavailable` if the store does not answer."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._key = f"jobs/{job}"
        self._job = job

    async def load(self) -> JobRecord:
        return (await self._read())[0]

    async def move_to_generation(self, generation: int, members: list[str], previous: int) -> None:
        """Makes `generation` durable as formed if `previous` still is the last one. RecordConflict if it is not.

        Asked again after a StoreUnavailable whose change did take effect, it finds its own record and is content.
        """
        await self._move(JobRecord(generation, members), previous)

    async def move_to_done(self) -> None:
        """Makes *done* durable; it is the record's last change."""
        held, _ = await self._read()
        await self._move(JobRecord(held.formed, held.members, done=True), held.formed)

    async def remove(self) -> None:
        """Forgets the job: one of its name begins anew."""
        while True:
            held = await self._store.get(self._key)
            if held is None or await self._store.delete(self._key, held.version):
                return

    async def _move(self, wanted: JobRecord, previous: int) -> None:
        held, version = await self._read()
        if held == wanted:
            return
        if held.formed == previous and not held.done:
            if await self._store.compare_and_set(self._key, msgspec.json.encode(wanted), version) is not None:
                return
            held, _ = await self._read()
            if held == wanted:
                return
        state = "is done" if held.done else f"has formed generation {held.formed}"
        raise RecordConflict(f"job {self._job!r} {state}, according to its record in the store", held)

    async def _read(self) -> tuple[JobRecord, int]:
        held = await self._store.get(self._key)
        if held is None:
            return JobRecord(), 0
        try:
            return msgspec.json.decode(held.value, type=JobRecord), held.version
        except msgspec.MsgspecError as error:
            raise RendezvousError(f"the record of job {self._job!r} in the store is damaged: {error}") from error
