"""The ring by itself: real processes, real kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_launch.rendezvous.meeting.point import MeetingServer

from .ring_process import JOB, SECRET, RingProcess


@pytest.fixture
def meeting() -> Iterator[MeetingServer]:
    server = MeetingServer("127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def members(meeting: MeetingServer) -> Iterator[list[RingProcess]]:
    processes = [RingProcess(meeting.address) for _ in range(3)]
    for process in processes:
        process.wait_until_ready()
    yield processes
    for process in processes:
        process.kill()


def form(meeting: MeetingServer, members: list[RingProcess], generation: int) -> None:
    meeting.open(JOB, generation, SECRET)
    all_do(members, "form", lambda rank: (generation, rank, len(members)))


def all_do(members: list[RingProcess], name: str, arguments: Any = lambda rank: ()) -> list[Any]:
    for rank, member in enumerate(members):
        member.ask(name, *arguments(rank))
    return [member.answer() for member in members]


def failures(members: list[RingProcess], limit: float) -> list[str]:
    texts = []
    deadline = time.monotonic() + limit
    for member in members:
        with pytest.raises(RuntimeError) as caught:
            member.answer(max(deadline - time.monotonic(), 0.1))
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 4_000_000])
def test_survivors_of_a_kill_form_the_next_ring_in_the_same_processes(
    meeting: MeetingServer, members: list[RingProcess], victim: int, size: int
) -> None:
    form(meeting, members, 1)
    assert all_do(members, "total", lambda rank: (size, 1.0)) == [3.0, 3.0, 3.0]
    survivors = [member for rank, member in enumerate(members) if rank != victim]
    for member in survivors:
        member.ask("total", size, 1.0)
    members[victim].kill()
    time.sleep(0.05)  # gloo notices at some members; the others wait until they are told to abort
    # the control thread's part, which the blocked main thread cannot play
    for member in survivors:
        os.kill(member.process.pid or 0, signal.SIGCONT)
    texts = []
    for member in survivors:
        try:
            member.answer(0.5)
        except (RuntimeError, AssertionError) as error:
            texts.append(str(error))
    assert len(texts) == 2


def test_abort_ends_a_collective_that_waits_for_a_silent_peer(
    meeting: MeetingServer, members: list[RingProcess]
) -> None:
    form(meeting, members, 1)
    waiting = members[:2]
    for member in waiting:
        member("abort_after", 0.5)
        member.ask("total", 1, 1.0)
    assert all("elastic ring broken" in text for text in failures(waiting, 15))
    all_do(waiting, "close")
    form(meeting, waiting, 2)
    assert all_do(waiting, "total", lambda rank: (10, 2.0)) == [4.0, 4.0]


def test_who_aborts_ends_the_waits_of_its_peers_too(meeting: MeetingServer, members: list[RingProcess]) -> None:
    form(meeting, members, 1)
    for member in members[:2]:
        member.ask("total", 1_000, 1.0)
    members[2]("abort")  # its sockets are shut, which reaches its neighbours
    assert all("elastic ring broken" in text for text in failures(members[:2], 5))


def test_abort_ends_forming_with_a_member_that_never_comes(meeting: MeetingServer, members: list[RingProcess]) -> None:
    meeting.open(JOB, 1, SECRET)
    there = members[:2]
    all_do(there, "start_forming", lambda rank: (1, rank, 3))
    for member in there:
        member("abort_after", 0.5)
        member.ask("finish_forming")
    assert all("the test said so" in text for text in failures(there, 15))
    all_do(there, "close")
    form(meeting, members, 2)
    assert all_do(members, "total", lambda rank: (10, 1.0)) == [3.0, 3.0, 3.0]


def test_a_subgroup_ends_with_its_generation(meeting: MeetingServer, members: list[RingProcess]) -> None:
    form(meeting, members, 1)
    all_do(members, "new_group", lambda rank: ([0, 1, 2],))
    assert all_do(members, "subgroup_total") == [3.0, 3.0, 3.0]
    all_do(members, "close")
    form(meeting, members, 2)
    for member in members:
        with pytest.raises(RuntimeError, match="belongs to generation 1, which has ended"):
            member("subgroup_total")
    all_do(members, "new_group", lambda rank: ([0, 1, 2],))
    assert all_do(members, "subgroup_total") == [3.0, 3.0, 3.0]


def test_small_objects_are_gathered_in_rank_order(meeting: MeetingServer, members: list[RingProcess]) -> None:
    form(meeting, members, 1)
    values = [b"a", b"", b"long" * 1000]
    assert all_do(members, "gather", lambda rank: (values[rank],)) == [values] * 3


def test_two_hundred_formations_leave_descriptors_threads_and_memory_flat(
    meeting: MeetingServer, members: list[RingProcess]
) -> None:
    def cycle(generation: int) -> None:
        form(meeting, members, generation)
        all_do(members, "total", lambda rank: (100_000, 1.0))
        if generation % 2:  # abort with a collective in flight: two wait for the third
            all_do(members[:2], "abort_after", lambda rank: (0.01,))
            for member in members[:2]:
                member.ask("total", 100_000, 1.0)
            failures(members[:2], 5)
        all_do(members, "close")
        meeting.forget(before=generation)

    for generation in range(1, 21):
        cycle(generation)
    settle(members)
    before = all_do(members, "footprint")
    for generation in range(21, 221):
        cycle(generation)
    settle(members)
    after = all_do(members, "footprint")
    for (descriptors, threads, memory), (descriptors_after, threads_after, memory_after) in zip(
        before, after, strict=True
    ):
        assert descriptors_after <= descriptors + 2
        assert threads_after <= threads + 2
        assert memory_after - memory < 40e6


def settle(members: list[RingProcess]) -> None:
    """Wait until the undertakers are done."""
    deadline = time.monotonic() + 30
    while any(all_do(members, "stuck")):
        assert time.monotonic() < deadline, "an undertaker never ended"
        time.sleep(0.05)
