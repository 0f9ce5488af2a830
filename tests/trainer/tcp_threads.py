"""Rings whose members are threads of the test: for what needs no process of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.rendezvous.meeting.point import MeetingServer
from elastic_launch.trainer.ring.tcp.ring import TcpRing

T = TypeVar("T")
JOB, SECRET = "threads", "between threads"
LIMIT = 30.0  # seconds


@pytest.fixture
def rings() -> Iterator[Callable[[int], list[TcpRing]]]:
    """Makes rings of as many members as it is asked for, and ends them all."""
    server = MeetingServer("127.0.0.1")
    generations = itertools.count(1)
    made: list[TcpRing] = []

    def form(count: int) -> list[TcpRing]:
        generation = next(generations)
        server.open(JOB, generation, SECRET)
        client = MeetingClient(server.address, JOB, generation, SECRET)
        members = [
            TcpRing(f"g{generation}", rank, count, secret=SECRET, operation_limit=LIMIT) for rank in range(count)
        ]
        made.extend(members)
        try:
            for forming in [ring.start_forming(client) for ring in members]:
                forming.wait(LIMIT)
        finally:
            client.close()
        return members

    yield form
    for ring in made:
        ring.close()
    server.close()


def in_threads(call: Callable[[TcpRing], T], members: list[TcpRing]) -> list[T]:
    """What `call` returns for each member, at the same time; the first error if one fails."""
    with ThreadPoolExecutor(len(members)) as threads:
        return [future.result(LIMIT) for future in [threads.submit(call, ring) for ring in members]]
