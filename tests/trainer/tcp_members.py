"""The members of a ring under test, and what their fixtures share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_launch.rendezvous.meeting.point import MeetingServer

from .ring_process import JOB, SECRET
from .tcp_process import TcpProcess


class Members:
    """Processes that live as long as a test; one that it has killed is replaced when it is needed."""

    def __init__(self) -> None:
        self.meeting = MeetingServer("127.0.0.1")
        self.processes: list[TcpProcess] = []
        self._generations = itertools.count(1)

    def start(self, count: int) -> list[TcpProcess]:
        """That many live processes, none of which has a ring."""
        self.processes = [process for process in self.processes if process.process.is_alive()]
        fresh = [TcpProcess(self.meeting.address) for _ in range(count - len(self.processes))]
        self.processes += fresh
        for process in fresh:
            process.wait_until_ready()
        ask_all(self.processes, "close")
        return self.processes[:count]

    def generation(self) -> int:
        """A fresh one, for which the meeting point is open."""
        generation = next(self._generations)
        self.meeting.open(JOB, generation, SECRET)
        self.meeting.forget(before=generation)
        return generation

    def form(self, members: list[TcpProcess]) -> list[TcpProcess]:
        generation = self.generation()
        ask_all(members, "form", lambda rank: (generation, rank, len(members)))
        return members

    def ring(self, count: int) -> list[TcpProcess]:
        """A formed ring of that many."""
        return self.form(self.start(count))

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        self.meeting.close()


def ask_all(
    members: list[TcpProcess], name: str, arguments: Callable[[int], tuple[Any, ...]] = lambda _: ()
) -> list[Any]:
    """Everybody's answer in rank order."""
    for rank, member in enumerate(members):
        member.ask(name, *arguments(rank))
    return [member.answer() for member in members]


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    yield members
    members.end()
