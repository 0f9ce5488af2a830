"""The ring of our own sockets below `torch.distributed`: every collective, faults, and generations that follow each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_launch.rendezvous.meeting.point import MeetingServer

from .ring_process import JOB, SECRET, RingProcess
from .test_ring import all_do, failures, settle


class Torches:
    """Three processes with torch, and the number of their generation."""

    def __init__(self) -> None:
        self.meeting = MeetingServer("127.0.0.1")
        self.generation = 0
        self.members = [self.fresh() for _ in range(3)]
        for member in self.members:
            member.wait_until_ready()

    def fresh(self) -> RingProcess:
        return RingProcess(self.meeting.address, backend="tcp")

    def form(self, count: int = 3) -> list[RingProcess]:
        members = self.members[:count]
        self.open()
        all_do(members, "form", lambda rank: (self.generation, rank, count))
        return members

    def open(self) -> None:
        self.generation += 1
        self.meeting.open(JOB, self.generation, SECRET)
        self.meeting.forget(before=self.generation)


@pytest.fixture(scope="module")
def torches() -> Iterator[Torches]:
    torches = Torches()
    yield torches
    for member in torches.members:
        member.kill()
    torches.meeting.close()


@pytest.mark.parametrize("count", [2, 3])
def test_every_collective_of_torch_gives_what_it_must(torches: Torches, count: int) -> None:
    members = torches.form(count)
    assert all_do(members, "mismatches") == [[]] * count
    all_do(members, "close")


def test_messages_between_two_members_are_refused_with_the_way_out(torches: Torches) -> None:
    members = torches.form()
    for told in all_do(members, "refusals"):
        assert [text.partition(":")[0] for text in told] == ["UsageError", "UsageError"]
        assert "--backend gloo" in told[0]
    assert all_do(members, "total", lambda _: (10, 1.0)) == [3.0] * 3
    all_do(members, "close")


def test_small_objects_are_gathered_in_rank_order(torches: Torches) -> None:
    members = torches.form()
    values = [b"a", b"", b"long" * 1000]
    assert all_do(members, "gather", lambda rank: (values[rank],)) == [values] * 3
    all_do(members, "close")


def test_abort_ends_a_collective_that_waits_for_a_silent_peer_and_a_subgroup_ends_with_its_generation(
    torches: Torches,
) -> None:
    members = torches.form()
    all_do(members, "new_group", lambda _: ([0, 1, 2],))
    assert all_do(members, "subgroup_total") == [3.0, 3.0, 3.0]
    waiting = members[:2]
    waiting[0]("abort_after", 0.3)
    for member in waiting:
        member.ask("total", 1, 1.0)
    assert all("elastic ring broken" in text for text in failures(waiting, 5))
    all_do(members, "close")
    torches.form()
    for member in members:
        with pytest.raises(RuntimeError, match=r"belongs to generation .*, which has ended"):
            member("subgroup_total")
    assert all_do(members, "total", lambda _: (10, 2.0)) == [6.0] * 3
    all_do(members, "close")


def test_abort_ends_forming_with_a_member_that_never_comes(torches: Torches) -> None:
    torches.open()
    there = torches.members[:2]
    all_do(there, "start_forming", lambda rank: (torches.generation, rank, 3))
    for member in there:
        member("abort_after", 0.3)
        member.ask("finish_forming")
    told = failures(there, 5)
    assert any("the test said so" in text for text in told)
    # The second one may hear of the first one's end before its own.
    assert all("the test said so" in text or "could not connect" in text for text in told), told
    all_do(there, "close")


def test_a_hundred_formations_leave_descriptors_threads_and_memory_flat(torches: Torches) -> None:
    def cycle(number: int) -> None:
        members = torches.form()
        all_do(members, "total", lambda _: (100_000, 1.0))
        if number % 2:
            members[0]("abort_after", 0.002)
            for member in members[:2]:
                member.ask("total", 100_000, 1.0)
            failures(members[:2], 5)
        all_do(members, "close")

    for number in range(20):
        cycle(number)
    settle(torches.members)
    before = all_do(torches.members, "footprint")
    for number in range(100):
        cycle(number)
    settle(torches.members)
    after = all_do(torches.members, "footprint")
    for (descriptors, threads, memory), (descriptors_after, threads_after, memory_after) in zip(
        before, after, strict=True
    ):
        assert descriptors_after <= descriptors + 1
        assert threads_after <= threads + 1
        assert (
            memory_after - memory < 35e6
        )  # garbage comes and goes; a tensor that each aborted sum left behind would be 60e6


@pytest.mark.parametrize("size", [1, 4_000_000])
def test_survivors_of_a_kill_fail_at_once_and_form_the_next_ring_in_the_same_processes(
    torches: Torches, size: int
) -> None:
    members = torches.form()
    victim = members[1]
    survivors = [members[0], members[2]]
    for member in survivors:
        member.ask("total", size, 1.0)
    victim.kill()
    texts = failures(survivors, 5)
    assert all("elastic ring broken" in text and "is gone" in text for text in texts)
    torches.members[:] = [*survivors, torches.fresh()]
    torches.members[2].wait_until_ready()
    all_do(survivors, "close")
    assert all_do(torches.form(), "total", lambda _: (size, 1.0)) == [3.0] * 3
    all_do(torches.members, "close")
