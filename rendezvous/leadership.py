"""Which of several servers decides: the one whose name is in the store, for as long as it renews its lease there.

Two things keep a leader of yesterday from deciding today. Its own clock: it steps down when its lease may be over,
whether or not it can reach the store. And the fence: every change that it makes in the store goes through only while
the leader's key is the very version that it wrote; so one that was stopped between its look at the clock and its change
is refused. That version is its *term*: it grows from leader to leader, and agents do not follow an older one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import ElasticError
from .stores.store import Fence, FenceLost, Held, Store, StoreUnavailable
from .waiting import is_set_within, within

logger = logging.getLogger(__name__)

KEY = "leader"
_PAUSE = 0.2  # seconds between two attempts at a store that does not answer
_LONG_PAUSE = 2.0  # seconds after an error that will hardly be gone at once
_AWAKE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps, as leases do


@dataclass(frozen=True)
class Mandate:
    """What a server decides by: the store, the fence of its term (None for a server that is alone), and their end.

    `holds` says whether the term still lasts; `lose` is to be called when the fence has refused a change.
    """

    store: Store
    fence: Fence | None = None
    holds: Callable[[], bool] = lambda: True
    lose: Callable[[], None] = lambda: None

    @property
    def term(self) -> int:
        return self.fence.version if self.fence else 0


class Leader(msgspec.Struct, frozen=True):
    """What the leader's key holds: where the server that leads is reached."""

    url: str


class Leadership:
    """One server's part in the election. `run` is its task, and ends only when it is cancelled.

    `take_over` is called with the fence of a new term, and may fail with `StoreUnavailable` or `FenceLost`; `step_down`
    is called at the end of each term, at once and without waiting for anything.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        lease: float,
        take_over: Callable[[Fence], Awaitable[None]],
        step_down: Callable[[str], None],
    ) -> None:
        self.leader_url = ""
        """Where the server that leads is reached, as the store has told last; empty if nobody leads."""
        self.store_answers = False
        self._store = store
        self._url = url
        self._lease = lease
        self._take_over = take_over
        self._step_down = step_down
        self._until = 0.0
        self._lost: asyncio.Event = asyncio.Event()
        self._serving = False

    @property
    def leads(self) -> bool:
        """Whether this server may decide: it has taken over, and its lease is not over by its own clock."""
        return self._serving and not self._lost.is_set() and _now() < self._until

    @property
    def state(self) -> str:
        """One of "leading", "following" (another server leads), "electing" (nobody does), "frozen" (no store)."""
        if self.leads:
            return "leading"
        if not self.store_answers:
            return "frozen"
        return "following" if self.leader_url and self.leader_url != self._url else "electing"

    def lose(self) -> None:
        """A change was refused by the fence: another server leads."""
        self._lost.set()

    async def run(self) -> None:
        while True:
            try:
                await self._follow_or_lead()
            except (StoreUnavailable, FenceLost) as error:
                self.store_answers = isinstance(error, FenceLost)
                self.leader_url = ""
                logger.warning("election: %s", error)
            except Exception as error:  # such as a password that holds no more: it may be put right
                self.store_answers, self.leader_url = False, ""
                logger.error("election: %s", error, exc_info=None if isinstance(error, ElasticError) else error)
                await asyncio.sleep(_LONG_PAUSE)
            await asyncio.sleep(_PAUSE)

    async def _follow_or_lead(self) -> None:
        """Until this server's own term is over, or the store does not answer."""
        async with contextlib.aclosing(self._store.watch(KEY)) as changes:
            async for content in changes:
                self.store_answers = True
                held = content.get(KEY)
                if held is not None:
                    self._note_leader(held)
                elif await self._campaign():
                    return

    def _note_leader(self, held: Held) -> None:
        try:
            url = msgspec.json.decode(held.value, type=Leader).url
        except msgspec.MsgspecError:
            url = ""
        if url != self.leader_url:
            logger.info("election: the server at %s leads", url or "an unknown address")
        self.leader_url = url

    async def _campaign(self) -> bool:
        """Whether this server has led; its term is over then."""
        self.leader_url = ""
        asked = _now()
        lease = await self._store.grant(self._lease)
        try:
            value = msgspec.json.encode(Leader(self._url))
            version = await self._store.compare_and_set(KEY, value, 0, lease=lease)
            if version is None:
                return False
            await self._lead(Fence(KEY, version), lease, asked + self._lease)
            return True
        finally:
            # Whoever waits need not wait for the lease's end. Without an answer it ends by itself.
            with contextlib.suppress(StoreUnavailable):
                await asyncio.shield(self._store.revoke(lease))

    async def _lead(self, fence: Fence, lease: int, until: float) -> None:
        self._until = until
        self._lost.clear()
        self.leader_url = self._url
        renewing = asyncio.ensure_future(self._renew(lease))
        reason = "it was stopped"
        try:
            await _first_of(self._take_over(fence), renewing)
            if not renewing.done():
                self._serving = True
                logger.info("election: this server leads, term %d", fence.version)
            reason = await renewing
        finally:
            renewing.cancel()
            was_serving, self._serving, self._until = self._serving, False, 0.0
            self.leader_url = ""
            if was_serving:
                logger.warning("election: this server leads no more: %s", reason)
            self._step_down(reason)

    async def _renew(self, lease: int) -> str:
        """Keeps the lease; returns why the term is over."""
        pause = self._lease / 3
        while True:
            if await is_set_within(self._lost, pause):
                return "another server is in its place"
            if _now() >= self._until:
                return "it could not renew its lease in time"
            asked = _now()
            try:
                kept = await within(self._store.renew(lease), max(0.01, self._until - asked))
            except (StoreUnavailable, asyncio.TimeoutError) as error:
                logger.warning("election: the lease could not be renewed: %s", error or "no answer in time")
                self.store_answers, pause = False, min(_PAUSE, self._lease / 10)
                continue
            if not kept:
                return "its lease is over"
            self.store_answers, pause = True, self._lease / 3
            self._until = asked + self._lease


async def _first_of(work: Awaitable[None], limit: asyncio.Future[str]) -> None:
    """Until `work` is done, at most until `limit` is; then `work` is cancelled. Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    either: list[asyncio.Future[Any]] = [task, limit]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _now() -> float:
    return time.clock_gettime(_AWAKE)
