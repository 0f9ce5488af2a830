"""Sees all messages between an agent and its server, and tells the summary what they mean for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ..rendezvous.messages import (
    Announce,
    Broken,
    Crashed,
    Done,
    Exited,
    Failed,
    Formed,
    Release,
    ToAgent,
    ToServer,
)
from .summary import Summary

_Progress = Iterable[tuple[str, int, float]]  # worker, step, samples


class Witness:
    """`progress` says where this agent's workers are."""

    def __init__(self, job: str, progress: Callable[[], _Progress], now: Callable[[], float] = time.monotonic) -> None:
        self._summary = Summary(job, now())
        self._progress = progress
        self._now = now
        self._announced = 0

    def heard(self, message: ToAgent) -> None:
        """From the server."""
        if isinstance(message, Announce):
            self._announced = max(self._announced, message.generation)
            self._summary.announced(
                message.generation, message.world_size, message.cause, message.reason, message.abort, self._now()
            )
        elif isinstance(message, Release) and message.generation == self._announced:
            self._summary.released(message.parked, self._now())
        elif isinstance(message, (Done, Failed)):
            self.look()
            self._summary.interrupted(self._now())

    def said(self, message: ToServer) -> None:
        """To the server."""
        if isinstance(message, (Broken, Formed)):
            # Who has formed the newest ring has left the last one.
            if message.generation == self._announced or isinstance(message, Broken):
                self._summary.interrupted(self._now())
        elif isinstance(message, Exited):
            self._summary.progressed(message.step, 0.0)
            if message.kind == "crash":
                self._summary.crashed(message.code, message.step, message.reason)
        elif isinstance(message, Crashed):
            self._summary.crashed(message.code, 0, message.reason)
        self.look()

    def look(self) -> None:
        """To be called now and then."""
        for _, step, samples in self._progress():
            self._summary.progressed(step, samples)

    def summary(self) -> str:
        return "\n".join(self._summary.lines(self._now()))
