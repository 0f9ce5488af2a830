"""The workers of this agent: a fixed number of slots, each with one live worker at most."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import signal
import uuid
from collections.abc import Callable, Iterator

from ..rendezvous.messages import WorkerClaim
from ..rendezvous.progress import Progress
from .worker import Hooks, Worker
from .worker_record import WorkerRecord

_KILL_LIMIT = 10.0  # seconds for the kernel to end a killed process


class Slots:
    """Starts workers in slots and ends them. The callbacks are told which worker a message, or an end with which code, is of."""

    def __init__(
        self,
        count: int,
        make: Callable[[WorkerRecord, Hooks], Worker],
        hooks: Hooks,
    ) -> None:
        """`make` starts a worker; OSError if it cannot."""
        self._count = count
        self._make = make
        self._hooks = hooks
        self._live: dict[int, Worker] = {}
        self._dead: list[Worker] = []  # whose last output is still on its way
        self._changed = asyncio.Event()
        self._lease_until = 0.0

    def __iter__(self) -> Iterator[Worker]:
        """The live workers. They may end while they are gone through."""
        return iter([*self._live.values()])

    def __len__(self) -> int:
        return len(self._live)

    def start(self, local_rank: int) -> Worker:
        """A fresh worker with a nonce of its own. OSError if it cannot be started; the slot must be empty."""
        assert local_rank not in self._live
        self._dead = [worker for worker in self._dead if not worker.is_drained]
        hooks = dataclasses.replace(self._hooks, ended=self._ended)
        worker = self._make(WorkerRecord(uuid.uuid4().hex, local_rank), hooks)
        self._live[local_rank] = worker
        worker.extend_lease(self._lease_until)
        return worker

    def resize(self, count: int) -> None:
        """Live workers of slots that are no longer there stay until they end."""
        self._count = count

    def extend_lease(self, until: float) -> None:
        """Workers that are alone in their ring may step until then (`time.monotonic()`)."""
        self._lease_until = until
        for worker in self:
            worker.extend_lease(until)

    def is_free(self, local_rank: int) -> bool:
        return 0 <= local_rank < self._count and local_rank not in self._live

    def find(self, nonce: str) -> Worker | None:
        return next((worker for worker in self if worker.record.worker == nonce), None)

    def claims(self) -> list[WorkerClaim]:
        return [worker.record.claim() for worker in self]

    def progress(self) -> list[tuple[str, int, float]]:
        """Of each worker that has taken up a step: its nonce, the step's number, and the samples that the job has applied."""
        pages = [(worker.record.worker, worker.progress()) for worker in self]
        return [(nonce, page.step, page.samples) for nonce, page in pages if _is_sound(page)]

    async def wait_until_empty(self, limit: float) -> bool:
        """False if there still are live workers after `limit` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wait_until_empty(), limit)
        return not self._live

    async def kill_all(self) -> None:
        """Returns when they are gone."""
        for worker in self:
            worker.stop(signal.SIGKILL)
        await self.wait_until_empty(_KILL_LIMIT)

    async def drained(self) -> None:
        """Returns when the output of the dead has been passed on."""
        await asyncio.gather(*(worker.drained() for worker in self._dead))

    async def _wait_until_empty(self) -> None:
        while self._live:
            self._changed.clear()
            await self._changed.wait()

    def _ended(self, worker: Worker, code: int) -> None:
        del self._live[worker.record.local_rank]
        self._dead.append(worker)
        self._changed.set()
        self._hooks.ended(worker, code)


def _is_sound(page: Progress) -> bool:
    """A page is memory of the worker's, whose script may write anywhere."""
    return 0 < page.step < 1 << 53 and 0 <= page.samples < math.inf
