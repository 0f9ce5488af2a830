"""The meeting point over real sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from elastic_launch.errors import RingError
from elastic_launch.rendezvous.meeting import point as meeting
from elastic_launch.rendezvous.meeting.client import GatherTimeout, MeetingClient, MeetingTimeout
from elastic_launch.rendezvous.meeting.messages import (
    MAX_FRAME,
    PREFIX,
    Enter,
    Get,
    Set,
    Value,
    decode_reply,
    frame,
)
from elastic_launch.rendezvous.meeting.point import MeetingServer

JOB, SECRET = "digits", "open sesame"
LIMIT = 20.0

NewClient = Callable[..., MeetingClient]


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    server = MeetingServer("127.0.0.1")
    server.open(JOB, 1, SECRET)
    yield server
    server.close()


@pytest.fixture
def new_client(server: MeetingServer) -> Iterator[NewClient]:
    clients = []

    def create(generation: int = 1, secret: str = SECRET, address: str = "", timeout: float = LIMIT) -> MeetingClient:
        clients.append(MeetingClient(address or server.address, JOB, generation, secret, timeout))
        return clients[-1]

    yield create
    for client in clients:
        client.close()


@pytest.fixture
def client(new_client: NewClient) -> MeetingClient:
    return new_client()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


@pytest.fixture
def unanswering() -> Iterator[str]:
    """The address of a listener whose queue is full: a connection to it stays half-open."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def waiting(server: MeetingServer, count: int) -> None:
    """Returns when `count` requests wait on the server, however long the threads behind them took to come so far."""
    limit = time.monotonic() + LIMIT
    while sum(not connection._answered for connection in [*server._connections]) != count:
        assert time.monotonic() < limit, "the requests did not arrive"
        time.sleep(0.001)


def ends_with_ring_error(call: Future[Any], within: float = 1.0) -> RingError:
    error = call.exception(within)
    assert isinstance(error, RingError)
    return error


def test_values_are_kept_as_they_were_given(client: MeetingClient) -> None:
    client.set("a", b"\x00\xff")
    client.set("b", b"")
    client.set("a", b"second")
    assert client.get("a") == b"second"
    assert client.multi_get(["b", "a"]) == [b"", b"second"]
    assert client.num_keys() == 2
    assert client.check(["a", "b"])
    assert not client.check(["a", "c"])


def test_a_deleted_key_is_absent(client: MeetingClient) -> None:
    client.set("a", b"1")
    assert client.delete("a")
    assert not client.delete("a")
    assert not client.check(["a"])


def test_add_counts_in_decimal_as_torch_does(client: MeetingClient) -> None:
    assert client.add("n", 3) == 3
    assert client.add("n", -5) == -2
    assert client.get("n") == b"-2"
    client.set("text", b"x")
    with pytest.raises(RingError, match="not a number"):
        client.add("text", 1)
    assert client.add("n", 1) == -1, "a refused request leaves the connection usable"


def test_append_makes_and_extends_a_key(client: MeetingClient) -> None:
    client.append("a", b"x")
    client.append("a", b"y")
    assert client.get("a") == b"xy"


def test_compare_set_follows_torch(client: MeetingClient) -> None:
    assert client.compare_set("a", b"other", b"mine") == b"other"
    assert not client.check(["a"])
    assert client.compare_set("a", b"", b"first") == b"first"
    assert client.compare_set("a", b"wrong", b"second") == b"first"
    assert client.compare_set("a", b"first", b"second") == b"second"
    assert client.get("a") == b"second"


def test_get_waits_for_a_key_of_another_member(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    value = threads.submit(new_client().get, "a")
    both = threads.submit(new_client().wait, ["a", "b"])
    waiting(server, 2)
    new_client().set("a", b"1")
    assert value.result(LIMIT) == b"1"
    new_client().add("b", 1)
    assert both.result(LIMIT) is None


def test_a_wait_that_is_over_names_what_was_missing(client: MeetingClient) -> None:
    client.set("there", b"")
    with pytest.raises(MeetingTimeout, match=r"generation 1: waited 0\.1 s for wait of there, gone, .*missing gone"):
        client.wait(["there", "gone"], timeout=0.1)
    client.set("gone", b"late")
    assert client.get("gone") == b"late"


def test_threads_do_not_wait_for_one_another(
    server: MeetingServer, client: MeetingClient, threads: ThreadPoolExecutor
) -> None:
    waits = [threads.submit(client.get, f"key {i}") for i in range(20)]
    waiting(server, 20)
    for i in reversed(range(20)):
        client.set(f"key {i}", b"%d" % i)
        assert waits[i].result(LIMIT) == b"%d" % i


def test_gather_returns_all_values_in_rank_order(new_client: NewClient, threads: ThreadPoolExecutor) -> None:
    clients = [new_client() for _ in range(8)]
    for name in ("first", "second"):
        given = [threads.submit(clients[r].gather, name, r, 8, b"%d" % r) for r in (5, 2, 7, 0, 1, 6, 3, 4)]
        assert [call.result(LIMIT) for call in given] == [[b"%d" % r for r in range(8)]] * 8
    assert clients[0].num_keys() == 0


def test_a_gather_that_is_over_names_the_missing_ranks_and_may_be_asked_again(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    first = new_client()
    with pytest.raises(GatherTimeout, match="gather 'state'") as raised:
        first.gather("state", 1, 3, b"one", timeout=0.1)
    assert raised.value.missing == [0, 2]
    other = threads.submit(new_client().gather, "state", 0, 3, b"zero")
    waiting(server, 1)
    assert new_client().gather("state", 2, 3, b"two") == [b"zero", b"one", b"two"]
    assert other.result(LIMIT) == [b"zero", b"one", b"two"]
    assert first.gather("state", 1, 3, b"one") == [b"zero", b"one", b"two"]


def test_ranks_that_do_not_fit_the_gather_are_refused(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    threads.submit(new_client().gather, "state", 0, 2, b"")
    waiting(server, 1)
    with pytest.raises(RingError, match="is of 2 ranks, rank 1 takes it for 3"):
        new_client().gather("state", 1, 3, b"")
    with pytest.raises(RingError, match="there is no rank 2"):
        new_client().gather("state", 2, 2, b"")
    with pytest.raises(RingError, match="has rank 0's value already"):
        new_client().gather("state", 0, 2, b"")
    assert new_client().gather("state", 1, 2, b"") == [b"", b""]


def test_a_member_that_dies_in_a_gather_harms_nobody(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    dying = new_client()
    call = threads.submit(dying.gather, "state", 0, 2, b"zero")
    waiting(server, 1)
    dying.close()
    ends_with_ring_error(call)
    waiting(server, 0)
    assert new_client().gather("state", 1, 2, b"one") == [b"zero", b"one"]


def test_abort_ends_every_wait_and_every_later_call_at_once(
    server: MeetingServer, client: MeetingClient, threads: ThreadPoolExecutor
) -> None:
    calls: list[Future[Any]] = [threads.submit(client.get, f"key {i}") for i in range(5)]
    calls.append(threads.submit(client.gather, "state", 0, 2, b""))
    waiting(server, 6)
    began = time.monotonic()
    client.abort("generation 2 has been announced")
    for call in calls:
        assert str(ends_with_ring_error(call)).endswith("of generation 1: generation 2 has been announced")
    assert time.monotonic() - began < 5
    with pytest.raises(RingError, match="generation 2 has been announced"):
        client.set("a", b"")


def test_abort_ends_an_attempt_to_connect(new_client: NewClient, unanswering: str, threads: ThreadPoolExecutor) -> None:
    client = new_client(address=unanswering, timeout=60)
    call = threads.submit(client.get, "a")
    while not client._in_use:
        time.sleep(0.001)
    time.sleep(0.05)
    client.abort("over")
    assert "over" in str(ends_with_ring_error(call))


def test_abort_ends_the_wait_for_a_server_that_is_not_there(
    new_client: NewClient, free_port: int, threads: ThreadPoolExecutor
) -> None:
    client = new_client(address=f"127.0.0.1:{free_port}", timeout=60)
    call = threads.submit(client.get, "a")
    time.sleep(0.05)
    client.abort("over")
    assert "over" in str(ends_with_ring_error(call))


def test_connecting_has_a_limit(new_client: NewClient, free_port: int, unanswering: str) -> None:
    for address in (f"127.0.0.1:{free_port}", unanswering):
        began = time.monotonic()
        with pytest.raises(
            MeetingTimeout, match=f"could not reach the meeting point {address} of generation 1 in 0.2 s"
        ):
            new_client(address=address, timeout=0.2).set("a", b"")
        assert time.monotonic() - began < 10


def test_a_member_may_come_before_the_server(
    new_client: NewClient, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        call = threads.submit(new_client(address=f"127.0.0.1:{reserved.getsockname()[1]}").num_keys)
        time.sleep(0.05)
        monkeypatch.setattr(meeting, "_listen", lambda host: _start_listening(reserved))
        server = MeetingServer("127.0.0.1")
    server.open(JOB, 1, SECRET)
    assert call.result(LIMIT) == 0
    server.close()


def _start_listening(reserved: socket.socket) -> socket.socket:
    listener = reserved.dup()
    listener.listen()
    return listener


def test_a_wrong_secret_is_refused(new_client: NewClient) -> None:
    with pytest.raises(RingError, match="wrong secret for generation 1 of job 'digits'"):
        new_client(secret="guess").set("a", b"")


def test_generations_do_not_see_one_another(server: MeetingServer, new_client: NewClient) -> None:
    server.open(JOB, 2, "other secret")
    new_client().set("a", b"old")
    assert new_client(2, "other secret").num_keys() == 0
    with pytest.raises(RingError, match="wrong secret for generation 2"):
        new_client(2).num_keys()


def test_a_member_that_is_ahead_is_held_until_its_generation_is_opened(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    call = threads.submit(new_client(3).num_keys)
    server.open(JOB, 2, SECRET)
    assert not call.done()
    server.open(JOB, 3, SECRET)
    assert call.result(LIMIT) == 0


def test_a_member_is_not_held_for_ever(new_client: NewClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HOLD", 0.1)
    with pytest.raises(RingError, match="generation 7 was not opened here"):
        new_client(7).num_keys()


def test_a_forgotten_generation_is_refused_and_its_members_wait_no_longer(
    server: MeetingServer, new_client: NewClient, threads: ThreadPoolExecutor
) -> None:
    call = threads.submit(new_client().get, "a")
    waiting(server, 1)
    server.open(JOB, 2, SECRET)
    current = new_client(2)
    current.set("a", b"")
    server.forget(before=2)
    assert "is gone" in str(ends_with_ring_error(call))
    with pytest.raises(RingError, match="generation 1 is over, 2 is the newest here"):
        new_client().set("a", b"")
    assert current.get("a") == b""


def test_members_of_a_meeting_point_that_ends_wait_no_longer(
    server: MeetingServer, client: MeetingClient, threads: ThreadPoolExecutor
) -> None:
    call = threads.submit(client.get, "a")
    waiting(server, 1)
    server.close()
    assert "is gone" in str(ends_with_ring_error(call))
    assert not server._thread.is_alive()


def test_a_server_that_hangs_ends_the_call_at_its_limit(
    new_client: NewClient, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr("elastic_launch.rendezvous.meeting.client._SLACK", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = new_client(address=f"127.0.0.1:{listener.getsockname()[1]}")
        call = threads.submit(client.get, "a", 0.1)
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(frame(Value()))
            error = ends_with_ring_error(call)
    assert isinstance(error, MeetingTimeout)
    assert "has not answered get of a" in str(error)


def test_large_values_pass_and_too_large_ones_are_named(client: MeetingClient) -> None:
    large = bytes(range(256)) * 4096 * 40
    client.set("large", large)
    assert client.get("large") == large
    with pytest.raises(RingError, match=f"limit {MAX_FRAME}"):
        client.set("huge", bytes(MAX_FRAME + 1))
    client.set("second", large)
    with pytest.raises(RingError, match=f"limit {MAX_FRAME}"):
        client.multi_get(["large", "second"])
    with pytest.raises(RingError, match="would hold more than"):
        client.append("large", large)
    assert client.num_keys() == 2


def test_a_key_that_is_too_long_is_refused(client: MeetingClient) -> None:
    with pytest.raises(RingError):
        client.set("k" * 2000, b"")
    assert client.num_keys() == 0


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff",
        (5).to_bytes(PREFIX, "big") + b"\xc1abcd",
        frame(Set("a", b"")),
        frame(Enter(JOB, 1, SECRET)) + frame(Set("a", b"")),
        (MAX_FRAME).to_bytes(PREFIX, "big"),
        frame(Enter(JOB, 1, "guess")),
    ],
)
def test_noise_is_answered_by_closing_and_harms_nobody(
    server: MeetingServer, client: MeetingClient, noise: bytes
) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), LIMIT) as stranger:
        stranger.sendall(noise)
        while stranger.recv(4096):
            pass
    assert client.num_keys() == 0


def test_a_second_request_during_a_wait_ends_the_connection(server: MeetingServer, client: MeetingClient) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), LIMIT) as stranger:
        stranger.sendall(frame(Enter(JOB, 1, SECRET)))
        assert decode_reply(stranger.recv(4096)[PREFIX:]) == Value()
        stranger.sendall(frame(Get(["a"], 60)))
        waiting(server, 1)
        stranger.sendall(frame(Set("b", b"")))
        assert b"while another one waits" in stranger.recv(4096)
        assert stranger.recv(4096) == b""
    assert client.num_keys() == 0


def test_a_limit_that_is_not_a_number_is_refused(server: MeetingServer) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), LIMIT) as stranger:
        stranger.sendall(frame(Enter(JOB, 1, SECRET)))
        assert decode_reply(stranger.recv(4096)[PREFIX:]) == Value()
        stranger.sendall(frame(Get(["a"], float("nan"))))
        assert b"not a request" in stranger.recv(4096)


def test_who_says_nothing_is_sent_away(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HOLD", 0.1)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), LIMIT) as stranger:
        assert b"no Enter" in stranger.recv(4096)
        assert stranger.recv(4096) == b""


def test_ipv6_addresses_are_served_and_written_in_brackets(new_client: NewClient) -> None:
    try:
        server = MeetingServer("::1")
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    server.open(JOB, 1, SECRET)
    assert server.address.startswith("[::1]:")
    assert new_client(address=server.address).add("n", 2) == 2
    server.close()


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError):
        MeetingServer("192.0.2.1")


def test_closing_twice_is_harmless_and_leaves_no_thread_and_no_port() -> None:
    server = MeetingServer("127.0.0.1")
    server.close()
    server.close()
    server.open(JOB, 1, SECRET)
    server.forget(before=2)
    assert "meeting-point" not in [thread.name for thread in threading.enumerate() if thread is server._thread]
    host, port = server.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_the_member_side_imports_neither_torch_nor_asyncio() -> None:
    code = (
        "import sys, elastic_launch.rendezvous.meeting.client; print('torch' in sys.modules, 'asyncio' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]
