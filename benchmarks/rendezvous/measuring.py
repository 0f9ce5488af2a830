"""One server and one number of agents: they arrive, idle, and die one by one and are replaced."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.jobs import BenchmarkError
from elastic_launch.rendezvous.client import agent_url
from elastic_launch.rendezvous.messages import JobSpec

from .limits import SPARE
from .processes import CrowdProcess, ServerProcess
from .settings import Settings

KINDS = ("crash", "vanish")
"""A worker's exit, reported by its agent; an agent's closed connection. Peers report the broken ring in both."""
_CALM = 0.3  # seconds before and after each change
_BEATS = 3  # in a lease


def measure(settings: Settings, agents: int, store: Sequence[str], folder: Path) -> dict[str, Any]:
    """All that is known of `agents` agents of a server with these flags for its store."""
    profile = settings.profile / f"server-{agents}.prof" if settings.profile else None
    server = ServerProcess(folder, settings.lease, store, profile)
    try:
        empty = server.memory
        with _crowds(settings, server, agents) as crowds:
            job = _Job(settings, server, crowds, agents)
            arrival = job.arrive()
            full = server.memory
            idle = job.idle(settings.idle)
            trials = [job.lose_and_replace(kind, idle["cpu"]) for _ in range(settings.trials) for kind in KINDS]
            memory = {"empty": empty, "full": full, "after": server.memory}
    finally:
        server.program.end()
    load = list(os.getloadavg())
    return {"agents": agents, "load": load, "arrival": arrival, "idle": idle, "memory": memory, "trials": trials}


@contextmanager
def _crowds(settings: Settings, server: ServerProcess, agents: int) -> Iterator[list[CrowdProcess]]:
    # One fewer than all is enough: whoever is left goes on while one is replaced.
    spec = JobSpec(min=max(1, agents - 1), max=agents, max_restarts=1_000_000)
    options = {
        "url": agent_url(server.url, "scale"),
        "spec": msgspec.to_builtins(spec),
        "period": settings.lease / _BEATS,
        "descriptors": agents + SPARE,
    }
    count = min(settings.processes, max(1, agents // 5))
    shares = [range(at * agents // count, (at + 1) * agents // count) for at in range(count)]
    crowds = [CrowdProcess(options, share) for share in shares]
    try:
        yield crowds
    finally:
        for crowd in crowds:
            crowd.end()


class _Job:
    def __init__(self, settings: Settings, server: ServerProcess, crowds: list[CrowdProcess], agents: int) -> None:
        self._settings = settings
        self._server = server
        self._crowds = crowds
        self._agents = agents
        self._generation = 0
        self._random = random.Random(settings.seed)

    def arrive(self) -> dict[str, Any]:
        """All at once; the last arrival is that of one that connected first and is ready last."""
        cpu = self._server.cpu
        first = self._crowds[0]
        first.do("arrive", numbers=[0], ready=False)
        for crowd in self._crowds:
            crowd.ask("arrive", numbers=[number for number in crowd.numbers if number], ready=True)
        answers = [crowd.answer() for crowd in self._crowds]
        last = first.do("ready", number=0)["at"]
        change = self._follow(last, self._agents)
        began = min(answer["began"] for answer in answers)
        change["bytes"] = change.pop("bytes_at_end")
        return {**change, "arriving_ms": 1e3 * (last - began), "cpu": self._server.cpu - cpu}

    def idle(self, seconds: float) -> dict[str, Any]:
        """Heartbeats alone: CPU seconds and bytes a second."""
        time.sleep(_CALM)
        before, began = self._counts(), time.monotonic()
        time.sleep(seconds)
        after, elapsed = self._counts(), time.monotonic() - began
        return {name: (after[name] - before[name]) / elapsed for name in before}

    def lose_and_replace(self, kind: str, idle_cpu: float) -> dict[str, Any]:
        """One dies, and is replaced when the others run again."""
        crowd = self._random.choice(self._crowds)
        number = self._random.choice(crowd.numbers)
        others = [other for other in crowd.numbers if other != number]
        reporters = self._random.sample(others, min(self._settings.reporters, len(others)))
        lost = self._change(crowd, idle_cpu, number, "die", number=number, kind=kind, reporters=reporters)
        joined = self._change(crowd, idle_cpu, None, "replace", number=number, kind=kind)
        return {"kind": kind, "lost": lost, "joined": joined}

    def _change(
        self, crowd: CrowdProcess, idle_cpu: float, gone: int | None, do: str, **arguments: Any
    ) -> dict[str, Any]:
        time.sleep(self._random.uniform(_CALM, 2 * _CALM))
        before, began = self._counts(), time.monotonic()
        at = crowd.do(do, **arguments)["at"]
        size = self._agents - (gone is not None)
        change = self._follow(at, size, [] if gone is None else [gone])
        time.sleep(_CALM)
        after, elapsed = self._counts(), time.monotonic() - began
        change["cpu"] = after["cpu"] - before["cpu"] - idle_cpu * elapsed
        change["bytes"] = change.pop("bytes_at_end") - before["bytes"]
        return change

    def _follow(self, since: float, size: int, without: Sequence[int] = ()) -> dict[str, Any]:
        for crowd in self._crowds:
            crowd.ask("follow", after=self._generation, without=list(without))
        answers = [crowd.answer() for crowd in self._crowds]
        received = self._counts()["bytes"]
        generations = {answer["generation"] for answer in answers}
        if len(generations) > 1 or any(answer["world_sizes"] != [size] for answer in answers):
            raise BenchmarkError(f"not all {size} agents are in one generation: {generations}")
        steps, self._generation = max(generations) - self._generation, max(generations)
        return {
            "told_ms": [1e3 * (at - since) for answer in answers for at in answer["told"]],
            "released_ms": [1e3 * (at - since) for answer in answers for at in answer["released"]],
            "generations": steps,
            "bytes_at_end": received,
        }

    def _counts(self) -> dict[str, float]:
        for crowd in self._crowds:
            crowd.ask("received")
        answers = [crowd.answer() for crowd in self._crowds]
        return {
            "cpu": self._server.cpu,
            "bytes": sum(answer["bytes"] for answer in answers),
            "messages": sum(answer["messages"] for answer in answers),
        }


def plain_settings(settings: Settings) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
