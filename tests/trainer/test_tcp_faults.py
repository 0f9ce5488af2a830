"""The ring of our own sockets when members die, stop or give up, at random moments of forming and of collectives."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from .tcp_members import Members, ask_all, members
from .tcp_process import TcpProcess

__all__ = ["members"]

AT_ONCE = 5.0  # seconds; a collective's own limit is 60, and the machine may be busy


def errors(members: list[TcpProcess], limit: float = AT_ONCE) -> list[tuple[str, float]]:
    """What each of them, asked for something timed, has failed with, and when."""
    deadline = time.monotonic() + limit
    found: list[tuple[str, float]] = []
    for member in members:
        found.append(member.answer(max(deadline - time.monotonic(), 0.1)))
    return found


def works(members: list[TcpProcess]) -> bool:
    size = len(members)
    total = float(sum(range(size)))
    return ask_all(members, "several", lambda _: (1, 50_000)) == [[total]] * size


@pytest.mark.parametrize("size", [1, 20_000, 3_000_000])
def test_survivors_of_a_kill_in_a_collective_fail_at_once_and_form_the_next_ring(members: Members, size: int) -> None:
    source = random.Random(size)
    for _ in range(8):
        ring = members.ring(4)
        for member in ring:
            member.ask("timed", "reduce_for_ever", size)
        time.sleep(source.uniform(0, 0.08))  # a random moment, not something that is waited for
        victim = ring[source.randrange(4)]
        survivors = [member for member in ring if member is not victim]
        victim.kill()
        for text, _ in errors(survivors):
            assert text.startswith("RingError: ring g"), text
            assert "is gone" in text and "rank" in text
        assert works(members.form(survivors))


def test_survivors_of_a_kill_while_forming_end_when_they_are_told_and_form_the_next_ring(members: Members) -> None:
    source = random.Random(1)
    for _ in range(15):
        processes = members.start(4)
        generation = members.generation()
        ask_all(processes, "prepare", lambda rank: (generation, rank, 4))  # noqa: B023
        ask_all(processes, "abort_after", lambda _: (0.3,))
        for member in processes:
            member.ask("timed", "finish_and_reduce")
        time.sleep(source.uniform(0, 0.01))
        victim = processes[source.randrange(4)]
        survivors = [member for member in processes if member is not victim]
        victim.kill()
        for text, _ in errors(survivors):
            assert "RingError" in text
        assert works(members.form(survivors))


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_an_abort_from_another_thread_ends_a_collective_at_any_moment_and_those_of_the_peers(
    members: Members, size: int
) -> None:
    source = random.Random(size)
    for _ in range(8):
        ring = members.ring(3)
        ring[1]("abort_after", source.uniform(0, 0.08))
        for member in ring:
            member.ask("timed", "reduce_for_ever", size)
        texts = [text for text, _ in errors(ring)]
        assert "the test said so" in texts[1]
        assert all("RingError" in text for text in texts)
        assert works(members.form(ring))


def test_an_abort_ends_a_collective_that_waits_for_a_silent_peer(members: Members) -> None:
    ring = members.ring(3)
    ring[0]("abort_after", 0.2)
    ring[0].ask("timed", "barrier")
    ring[1].ask("timed", "barrier")
    assert ["the test said so" in text for text, _ in errors(ring[:1])] == [True]
    assert ["is gone" in text for text, _ in errors(ring[1:2])] == [True]


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_an_abort_ends_a_collective_with_a_stopped_peer(members: Members, size: int) -> None:
    ring = members.ring(3)
    stopped = ring[2].process.pid or 0
    ask_all(ring[:2], "abort_after", lambda _: (0.5,))
    for member in ring:
        member.ask("timed", "reduce_for_ever", size)
    os.kill(stopped, signal.SIGSTOP)
    try:
        texts = [text for text, _ in errors(ring[:2])]
        assert any("the test said so" in text for text in texts)
        assert all("RingError" in text for text in texts)
        assert works(members.form(ring[:2]))
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert "RingError" in errors(ring[2:])[0][0]


def test_an_abort_ends_forming_at_any_moment(members: Members) -> None:
    source = random.Random(3)
    for _ in range(15):
        processes = members.start(2)
        generation = members.generation()
        ask_all(processes, "prepare", lambda rank: (generation, rank, 3))  # noqa: B023
        for member in processes:
            member("abort_after", source.uniform(0, 0.02))
            member.ask("timed", "finish_forming")
        assert all("RingError" in text for text, _ in errors(processes))
    assert works(members.form(processes))


def test_who_leaves_between_two_collectives_breaks_nobodys_last_one(members: Members) -> None:
    for _ in range(25):
        for error in ask_all(members.ring(5), "barrier_and_close"):
            assert error is None


def test_a_child_that_a_member_has_forked_does_not_keep_its_death_from_the_peers(members: Members) -> None:
    ring = members.ring(2)
    child = ring[1]("fork")
    try:
        ring[0].ask("timed", "barrier")
        ring[1].kill()
        text, _ = errors(ring[:1])[0]
        assert "rank 1 is gone" in text
    finally:
        os.kill(child, signal.SIGKILL)


def test_two_hundred_formations_leave_descriptors_threads_and_memory_flat(members: Members) -> None:
    ring = members.start(3)

    def cycle(number: int) -> None:
        members.form(ring)
        assert works(ring)
        if number % 2:  # two wait for the third, and are aborted
            for member in ring[:2]:
                member("abort_after", 0.002)
                member.ask("timed", "barrier")
            assert all("RingError" in text for text, _ in errors(ring[:2]))
        ask_all(ring, "close")

    for number in range(20):
        cycle(number)
    before = ask_all(ring, "footprint")
    for number in range(200):
        cycle(number)
    after = ask_all(ring, "footprint")
    for (descriptors, threads, memory), (descriptors_after, threads_after, memory_after) in zip(
        before, after, strict=True
    ):
        assert descriptors_after <= descriptors
        assert threads_after <= threads
        assert memory_after - memory < 8e6
