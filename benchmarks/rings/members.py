"""The processes of the benchmark from the outside."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.jobs import BenchmarkError
from elastic_launch.rendezvous.meeting.point import MeetingServer

from .member import JOB, SECRET, serve

_LIMIT = 600.0  # seconds for any command


class Members:
    """All ranks, of which each does the same at the same time."""

    def __init__(self, count: int) -> None:
        self._meeting = MeetingServer("127.0.0.1")
        self._generations = itertools.count(1)
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        for rank in range(count):
            pipe, other = context.Pipe()
            process = context.Process(target=serve, args=(other, self._meeting.address, rank, count), daemon=True)
            process.start()
            other.close()
            self._pipes.append(pipe)
            self._processes.append(process)
        self._answers()

    def do(self, name: str, *arguments: Any) -> Any:
        """What rank 0 answers, when all have."""
        for pipe in self._pipes:
            pipe.send((name, arguments))
        return self._answers()[0]

    @contextmanager
    def ring(self, backend: str) -> Iterator[float]:
        """A formed ring; the seconds that it took."""
        generation = next(self._generations)
        self._meeting.open(JOB, generation, SECRET)
        yield self.do("form", backend, generation)
        self.do("close")
        self._meeting.forget(before=generation + 1)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)
        self._meeting.close()

    def _answers(self) -> list[Any]:
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_LIMIT):
                raise BenchmarkError(f"rank {rank} has not answered within {_LIMIT:g} s")
            try:
                answers.append(pipe.recv())
            except EOFError:
                raise BenchmarkError(f"rank {rank} has ended; what it said is above") from None
        return answers
