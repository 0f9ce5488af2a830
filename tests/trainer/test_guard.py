"""Waits that can be ended from outside."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import Store

from elastic_launch.errors import RingError
from elastic_launch.trainer.pytorch.ring import futures
from elastic_launch.trainer.pytorch.ring.addresses import RingAddresses, published_address
from elastic_launch.trainer.pytorch.ring.gloo import Connecting
from elastic_launch.trainer.ring.guard import Guard


class Work:
    """Stands for an operation of gloo's: completes when the test says so."""

    def __init__(self) -> None:
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future


def watch(guard: Guard, work: Work, result: Any = None) -> Any:
    return futures.watch(guard, work, result)  # type: ignore[arg-type]


def test_an_operation_that_completes_gives_its_result() -> None:
    guard, work = Guard(3), Work()
    future = watch(guard, work)
    work.future.set_result([1, 2])
    assert future.wait() == [1, 2]
    assert guard.longest_wait() == 0.0


def test_abort_completes_a_wait_whose_operation_never_ends() -> None:
    guard, work = Guard(3), Work()
    future = watch(guard, work)
    threading.Timer(0.05, guard.abort, ["worker 2 is gone"]).start()
    with pytest.raises(RingError, match="generation 3: worker 2 is gone"):
        future.wait()
    work.future.set_result(None)  # too late, and harmless


def test_one_failed_operation_ends_all_waits() -> None:
    guard, failing, waiting = Guard(3), Work(), Work()
    first, second = watch(guard, failing), watch(guard, waiting)
    failing.future.set_exception(RuntimeError("connection reset"))
    for future in (first, second):
        with pytest.raises(RingError, match="connection reset"):
            future.wait()
    assert guard.broken is not None


def test_nothing_starts_on_a_broken_ring() -> None:
    guard = Guard(3)
    guard.abort("gone")
    with pytest.raises(RingError):
        guard.check()
    with pytest.raises(RingError):
        watch(guard, Work()).wait()


def test_what_waits_for_an_abort_is_called_once_also_when_it_comes_late() -> None:
    guard, calls = Guard(3), []
    guard.on_abort(lambda: calls.append("early"))
    guard.abort("gone")
    guard.abort("gone again")
    guard.on_abort(lambda: calls.append("late"))
    assert calls == ["early", "late"]


def blob(host: str, port: int) -> bytes:
    """A value as gloo stores it for a rank."""
    if ":" in host:
        family, rest = socket.AF_INET6, bytes(4) + socket.inet_pton(socket.AF_INET6, host)
    else:
        family, rest = socket.AF_INET, socket.inet_pton(socket.AF_INET, host)
    address = struct.pack("<H", family) + port.to_bytes(2, "big") + rest
    return struct.pack("<Q", 4) + b"host" + struct.pack("<Q", 136) + address.ljust(128, b"\0") + bytes(8 + 24)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_addresses_that_gloo_really_publishes_are_read(host: str) -> None:
    published: dict[str, bytes] = {}

    class Recording(Store):
        def set(self, key: str, value: Any) -> None:
            published[key] = bytes(value)

        def get(self, key: str) -> bytes:
            return published[key]

        def wait(self, keys: Any, timeout: Any = None) -> None:
            raise RuntimeError("the other rank never comes")

    store = Recording()
    guard = Guard(1)
    with pytest.raises(RingError):
        Connecting(store, 0, 2, host, guard).result()
    found = [published_address(value) for value in published.values()]
    assert [address[0] for address in found if address is not None] == [host]


@pytest.mark.parametrize("address", [("127.0.0.1", 4242), ("10.0.0.7", 1), ("fd00::1", 65535)])
def test_addresses_are_read_from_what_gloo_publishes(address: tuple[str, int]) -> None:
    assert published_address(blob(*address)) == address


@pytest.mark.parametrize("value", [b"", b"1", bytes(500), b"\xff" * 200])
def test_other_values_of_the_store_are_no_addresses(value: bytes) -> None:
    assert published_address(value) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_connected_sockets_of_the_ring_are_shut(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as ring,
        socket.create_server((host, 0), family=family) as other,
    ):
        addresses = RingAddresses()
        addresses.learn(blob(host, ring.getsockname()[1]))
        ours = [socket.create_connection(ring.getsockname()[:2]), ring.accept()[0]]
        foreign = [socket.create_connection(other.getsockname()[:2]), other.accept()[0]]
        assert addresses.shut() == 2
        assert ours[0].recv(1) == b""
        foreign[0].sendall(b"x")
        assert foreign[1].recv(1) == b"x"
        again = socket.create_connection(ring.getsockname()[:2])  # the listener lives
        for each in (*ours, *foreign, again):
            each.close()


def test_looking_for_sockets_leaves_no_descriptor_behind() -> None:
    addresses = RingAddresses()
    addresses.learn(blob("127.0.0.1", 1))
    with open(__file__) as file, socket.socket() as unconnected:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            assert addresses.shut() == 0
        assert len(os.listdir("/proc/self/fd")) == before
        assert file.read(3) == '"""' and unconnected.fileno() > 0
