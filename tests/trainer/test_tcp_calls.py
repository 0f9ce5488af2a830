"""The ring of our own sockets by itself: when its calls return, who may join it, and what is an error."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from elastic_launch.errors import RingError, UsageError
from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.trainer.ring.tcp.ring import TcpRing

from .ring_process import JOB, SECRET
from .tcp_members import Members, ask_all, members

__all__ = ["members"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_nobody_leaves_a_barrier_before_the_last_one_has_come(members: Members, count: int) -> None:
    ring = members.ring(count)
    early = ring[:-1]
    for member in early:
        member.ask("patience", 0.2)
    assert [member.answer() for member in early] == ["the collective was not over in 0.2 s; False"] * len(early)
    ring[-1]("barrier")
    assert ask_all(
        ring, "several", lambda _: (1, 1)
    )  # the barrier that was given up waiting for took place all the same


def test_many_collectives_may_be_started_before_the_first_is_waited_for(members: Members) -> None:
    ring = members.ring(3)
    for size in (3, 100_000):
        assert ask_all(ring, "several", lambda _: (20, size)) == [[3.0 * index + 3 for index in range(20)]] * 3  # noqa: B023


def test_a_collective_is_not_waited_for_in_the_callback_of_another_one() -> None:
    ring = TcpRing("alone", 0, 1)
    ring.form(None)
    found: list[BaseException] = []
    begun = threading.Event()

    def callback(_: object) -> None:
        try:
            ring.barrier()
        except UsageError as error:
            found.append(error)

    slow = ring._turns.start(begun.wait)
    work = ring.start_barrier()
    work.when_done(callback)
    begun.set()
    slow.wait(10)
    assert work.exception(10) is None
    ring.close()
    assert "start it, and wait elsewhere" in str(found[0])


def test_different_calls_are_an_error_that_says_which(members: Members) -> None:
    for calls in (
        [("allreduce", 1, 10, "float32", "sum"), ("barrier",), ("barrier",)],
        [("allreduce", 1, 10, "float32", "sum"), ("allreduce", 1, 11, "float32", "sum")],
        [("allreduce", 1, 100_000, "float32", "sum"), ("allreduce", 1, 100_000, "float32", "max")],
        [("broadcast", 1, 4, "float32", 1), ("broadcast", 1, 4, "int32", 1)],
    ):
        ring = members.ring(len(calls))
        for member, call in zip(ring, calls, strict=True):
            member.ask("timed", *call) if calls[0][0] != "broadcast" else member.ask(*call)
        texts = []
        for member in ring:
            try:
                texts.append(str(member.answer(10)))
            except RuntimeError as error:
                texts.append(str(error))
        assert any("the members call different collectives" in text and "UsageError" in text for text in texts)


def test_who_does_not_know_the_secret_is_no_member_and_delays_nobody(members: Members) -> None:
    processes = members.start(3)
    generation = members.generation()
    for rank in (0, 1):
        processes[rank].ask("form", generation, rank, 3)
    client = MeetingClient(members.meeting.address, JOB, generation, SECRET)
    host, port = client.get(f"g{generation}/0", 10).decode().split()
    silent = [socket.create_connection((host, int(port))) for _ in range(3)]
    rude = socket.create_connection((host, int(port)))
    rude.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" + bytes(100))
    impostor = TcpRing(f"g{generation}", 2, 3, secret="a guess", forming_limit=10)
    with pytest.raises(RingError, match="it does not know the generation's secret"):
        impostor.form(_Elsewhere(client, f"g{generation}/2"))
    impostor.close()
    processes[2]("form", generation, 2, 3)
    assert [processes[rank].answer() for rank in (0, 1)] == [None, None]
    assert ask_all(processes, "several", lambda _: (1, 4)) == [[3.0], [3.0], [3.0]]
    for connection in [*silent, rude]:
        connection.close()
    client.close()


class _Elsewhere:
    """A meeting point at which nobody hears what one says."""

    def __init__(self, client: MeetingClient, key: str) -> None:
        self._client = client
        self._key = key

    def set(self, key: str, value: bytes) -> None:
        assert key == self._key

    def get(self, key: str, timeout: float | None = None) -> bytes:
        return self._client.get(key, timeout)


def test_a_member_that_never_comes_is_named_at_the_limit(members: Members) -> None:
    processes = members.start(2)
    generation = members.generation()
    for rank, member in enumerate(processes):
        member.ask("form", generation, rank, 3, 0.5)
    texts = []
    for member in processes:
        with pytest.raises(RuntimeError) as caught:
            member.answer(10)
        texts.append(str(caught.value))
    assert "rank 2 to connect" in texts[0] or "rank 1" in texts[0]
    assert "rank 2 has not said where it listens" in texts[1]


def test_a_member_that_is_silent_for_the_limit_is_named(members: Members) -> None:
    processes = members.start(2)
    generation = members.generation()
    ask_all(processes, "form", lambda rank: (generation, rank, 2, 20.0, 0.3))
    with pytest.raises(RuntimeError, match=r"waited 0.3 s for a byte from or to rank 1"):
        processes[0]("barrier")


def test_it_works_over_ipv6_and_imports_no_framework(members: Members) -> None:
    generation = members.generation()
    rings = [TcpRing(f"g{generation}", rank, 3, address="::1", secret=SECRET) for rank in range(3)]
    client = MeetingClient(members.meeting.address, JOB, generation, SECRET)
    threads = [threading.Thread(target=ring.form, args=(client,)) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    works = [ring.start_barrier() for ring in rings]
    for work in works:
        work.wait(20)
    for ring in rings:
        ring.close()
    client.close()
    assert members.start(1)[0]("modules") == []


def test_wrong_arguments_are_refused_and_leave_the_ring_whole() -> None:
    ring = TcpRing("alone", 0, 1)
    ring.form(None)
    numbers = np.zeros(4, np.float32)
    read_only = np.zeros(4, np.float32)
    read_only.flags.writeable = False
    for call, message in [
        (lambda: ring.allreduce(numbers, "median"), "cannot compute 'median'"),
        (lambda: ring.allreduce(np.zeros(4, np.int32), "mean"), "a mean of int32 is no int32"),
        (lambda: ring.allreduce(numbers, "bxor"), "for integers"),
        (lambda: ring.allreduce(read_only), "cannot be changed: give another array for the result"),
        (lambda: ring.allreduce(np.zeros((4, 4))[:, 1]), "not contiguous"),
        (lambda: ring.allreduce(np.zeros(4, np.complex64)), "a ring carries float32"),
        (lambda: ring.allreduce(np.zeros(4, ">f4")), "a ring carries float32"),
        (lambda: ring.allreduce([1.0]), "shows its memory in no known way"),
        (lambda: ring.allreduce(numbers, out=np.zeros(5, np.float32)), "does not fit into 5 elements"),
        (lambda: ring.broadcast(numbers, 1), "there is no rank 1 in a ring of 1"),
        (lambda: ring.reduce_scatter(numbers, np.zeros(3, np.float32)), "do not make up 4 elements"),
        (lambda: ring.allgather(numbers, np.zeros(5, np.float32)), "do not fit into"),
    ]:
        with pytest.raises(UsageError, match=message):
            call()
    ring.allreduce(numbers)
    assert ring.broken is None
    ring.close()
    assert ring.broken == "it was closed"
    with pytest.raises(RingError, match="it was closed"):
        ring.barrier()
    with pytest.raises(RingError, match="it was closed"):
        ring.start_barrier().wait(1)
