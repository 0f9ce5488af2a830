"""The copy over sockets: every byte arrives once, strangers get nothing, and whatever breaks ends it at once."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_launch.errors import RingError
from elastic_launch.trainer.pytorch.state.memory import TensorSpec, cpu_bytes
from elastic_launch.trainer.pytorch.state.replica import TorchReplica
from elastic_launch.trainer.pytorch.state.tensor_payload import TensorCursor, TensorPayload
from elastic_launch.trainer.state.copy import CopyReceiver, CopySource
from elastic_launch.trainer.state.payload import Buffers, cumulated, cut

SECRET = "a generation's secret"
SOON = 10.0  # seconds: far below every limit that is waited for


class Memory:
    """An image of plain bytes."""

    meta = b"what the bytes mean"

    def __init__(self, sizes: list[int], layout: bytes = b"0123456789abcdef", seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pieces = [
            bytearray(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).tolist()) for size in sizes
        ]
        self.layout = layout

    def payload(self) -> Buffers:
        return Buffers([memoryview(piece) for piece in self.pieces])


class Gated(Buffers):
    """Lets parts be read only while `gate` is open, and notes which ones were."""

    def __init__(self, memory: Memory, gate: threading.Event) -> None:
        super().__init__([memoryview(piece) for piece in memory.pieces])
        self.gate = gate
        self.loaded: list[int] = []
        self.asked = threading.Event()

    def cursor(self) -> Gated:
        return self

    def payload(self) -> Gated:
        return self

    def load(self, start: int, stop: int) -> list[memoryview]:
        self.asked.set()
        self.gate.wait(30)
        self.loaded.append(start)
        return super().load(start, stop)


class GatedImage(Memory):
    def __init__(self, sizes: list[int], gate: threading.Event) -> None:
        super().__init__(sizes)
        self.gated = Gated(self, gate)

    def payload(self) -> Gated:
        return self.gated


class Serving:
    """A source that serves in a thread of its own; `error` is what `serve` raised."""

    def __init__(self, image: Memory, receivers: int = 1, limit: float = 10.0, host: str = "127.0.0.1") -> None:
        self.source = CopySource(host, SECRET, limit, arrival_limit=limit)
        self.error: RingError | None = None
        self.thread = threading.Thread(target=self._serve, args=(image, receivers))
        self.thread.start()

    @property
    def address(self) -> str:
        return self.source.address

    def end(self) -> RingError | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.source.close()
        return self.error

    def _serve(self, image: Memory, receivers: int) -> None:
        try:
            self.source.serve(image, receivers)
        except RingError as error:
            self.error = error


@contextmanager
def in_thread(function: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Runs `function` beside the block; afterwards the list holds what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        thread.join(20)
        assert not thread.is_alive()


def receive(addresses: list[str], sizes: list[int], chunk: int = 1000, secret: str = SECRET) -> list[bytearray]:
    room = [bytearray(size) for size in sizes]
    receiver = CopyReceiver(addresses, secret, chunk=chunk)
    try:
        assert receiver.meta() == Memory.meta
        receiver.fetch(Buffers([memoryview(piece) for piece in room]))
    finally:
        receiver.close()
    return room


SIZES = [10, 0, 12345, 1, 1, 1, 999, 1000, 1001, 50000]


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 60))
def test_chunks_cover_every_byte_once(sizes: list[int], chunk: int) -> None:
    ends = cumulated(sizes)
    total = ends[-1] if ends else 0
    seen = [(i, at) for start in range(0, total, chunk) for i, a, b in cut(ends, start, min(start + chunk, total))
            for at in range(a, b)]  # fmt: skip
    assert seen == [(i, at) for i, size in enumerate(sizes) for at in range(size)]


@pytest.mark.parametrize(("sources", "receivers"), [(1, 1), (1, 3), (3, 1), (2, 2), (4, 4)])
def test_all_receivers_have_all_bytes(sources: int, receivers: int) -> None:
    image = Memory(SIZES)
    serving = [Serving(image, receivers) for _ in range(sources)]
    addresses = [source.address for source in serving]
    found: list[list[bytearray]] = []
    threads = [threading.Thread(target=lambda: found.append(receive(addresses, SIZES))) for _ in range(receivers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [source.end() for source in serving] == [None] * sources
    assert found == [image.pieces] * receivers


def test_state_without_tensors_is_copied() -> None:
    serving = Serving(Memory([]))
    assert receive([serving.address], []) == []
    assert serving.end() is None


def test_payload_of_many_small_pieces_is_copied() -> None:
    sizes = [3] * 5000
    image = Memory(sizes)
    serving = Serving(image)
    assert receive([serving.address], sizes, chunk=1 << 20) == image.pieces
    assert serving.end() is None


def test_copy_works_over_ipv6() -> None:
    try:
        serving = Serving(Memory(SIZES), host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert serving.address.startswith("[::1]:")
    assert receive([serving.address], SIZES) == Memory(SIZES).pieces
    assert serving.end() is None


def test_slow_source_serves_less() -> None:
    gate = threading.Event()
    fast_gate = threading.Event()
    fast_gate.set()
    slow, fast = GatedImage([40_000], gate), GatedImage([40_000], fast_gate)
    serving = [Serving(slow), Serving(fast)]
    room = [bytearray(40_000)]
    receiver = CopyReceiver([source.address for source in serving], SECRET, chunk=1000)
    receiver.meta()
    with in_thread(lambda: receiver.fetch(Buffers([memoryview(room[0])]))) as errors:
        deadline = time.monotonic() + 20
        while len(fast.gated.loaded) < 38 and time.monotonic() < deadline:
            time.sleep(0.001)
        gate.set()
    receiver.close()
    assert errors == [] and room == slow.pieces
    assert len(slow.gated.loaded) == 2 and len(fast.gated.loaded) == 38
    assert [source.end() for source in serving] == [None, None]


def test_source_whose_bytes_lie_otherwise_is_left_out() -> None:
    image = Memory(SIZES)
    serving = [Serving(image), Serving(Memory(SIZES, layout=b"another layout 1", seed=9))]
    assert receive([source.address for source in serving], SIZES) == image.pieces
    assert [source.end() for source in serving] == [None, None]


def test_room_of_another_size_is_refused() -> None:
    serving = Serving(Memory(SIZES))
    with pytest.raises(ValueError, match="there is room for 3"):
        receive([serving.address], [3])
    assert serving.end() is not None


class TestStrangers:
    def test_wrong_secret_gets_nothing_and_disturbs_nobody(self) -> None:
        serving = Serving(Memory(SIZES))
        with pytest.raises(RingError, match="refused the secret"):
            receive([serving.address], SIZES, secret="of another generation")
        assert receive([serving.address], SIZES) == Memory(SIZES).pieces
        assert serving.end() is None

    @pytest.mark.parametrize(
        "says", [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(200)], ids=["nothing", "http", "random"]
    )
    def test_garbage_disturbs_nobody(self, says: bytes) -> None:
        serving = Serving(Memory(SIZES))
        host, port = serving.address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(says)
            assert receive([serving.address], SIZES) == Memory(SIZES).pieces
        assert serving.end() is None

    def test_source_that_does_not_know_the_secret_is_not_believed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def pretend() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"elastic-copy-01\n" + bytes(32))
                    peer.recv(64)
                    peer.sendall(bytes(32 + 32))

            with in_thread(pretend), pytest.raises(RingError, match="does not know the generation's secret"):
                receive([f"127.0.0.1:{listener.getsockname()[1]}"], SIZES)

    def test_other_server_is_not_taken_for_a_source(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + bytes(100))

            with in_thread(answer), pytest.raises(RingError, match="does not serve a state"):
                receive([f"127.0.0.1:{listener.getsockname()[1]}"], SIZES)


class TestBreaking:
    def test_source_that_nobody_serves_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RingError, match=f"source {address}"):
            receive([address], SIZES)

    def test_source_killed_in_the_middle_is_named(self) -> None:
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        process = context.Process(target=serve_one_part_then_hang, args=(its,), daemon=True)
        process.start()
        address = mine.recv()
        receiver = CopyReceiver([address], SECRET, chunk=1000)
        receiver.meta()
        with in_thread(lambda: receiver.fetch(Buffers([memoryview(bytearray(5000))]))) as errors:
            assert mine.recv() == "hanging"
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        receiver.close()
        process.join(20)
        assert isinstance(errors[0], RingError) and f"source {address}" in str(errors[0])

    def test_failing_source_ends_the_copy_from_the_others_too(self) -> None:
        gate = threading.Event()
        broken, hanging = GatedImage([40_000], gate), GatedImage([40_000], gate)
        serving = [Serving(broken), Serving(hanging)]
        receiver = CopyReceiver([source.address for source in serving], SECRET, chunk=1000)
        receiver.meta()
        with in_thread(lambda: receiver.fetch(Buffers([memoryview(bytearray(40_000))]))) as errors:
            assert broken.gated.asked.wait(20) and hanging.gated.asked.wait(20)
            serving[0].source.abort()
        receiver.close()
        gate.set()
        assert isinstance(errors[0], RingError)
        assert all(source.end() is not None for source in serving)

    def test_source_that_stalls_is_named_at_the_limit(self) -> None:
        gate = threading.Event()
        serving = Serving(GatedImage(SIZES, gate))
        receiver = CopyReceiver([serving.address], SECRET, limit=0.2)
        receiver.meta()
        with pytest.raises(RingError, match=rf"with source {serving.address} stalled: waited 0.2 s for a byte"):
            receiver.fetch(Buffers([memoryview(bytearray(sum(SIZES)))]))
        receiver.close()
        gate.set()
        assert serving.end() is not None

    def test_receiver_that_goes_silent_is_named_at_the_limit(self) -> None:
        serving = Serving(Memory(SIZES), limit=0.2)
        receiver = CopyReceiver([serving.address], SECRET)
        receiver.meta()
        error = serving.end()
        receiver.close()
        assert error is not None and re.search(r"with receiver 127.0.0.1:\d+ stalled: waited 0.2 s", str(error))

    def test_receiver_that_dies_ends_the_serving(self) -> None:
        serving = Serving(Memory(SIZES), receivers=2)
        receiver = CopyReceiver([serving.address], SECRET)
        receiver.meta()
        receiver.close()
        error = serving.end()
        assert error is not None and "receiver 127.0.0.1" in str(error)

    def test_receivers_that_do_not_come_are_counted(self) -> None:
        error = Serving(Memory(SIZES), receivers=2, limit=0.2).end()
        assert error is not None and "0 of 2 came" in str(error)

    def test_nonsense_request_is_refused(self) -> None:
        serving = Serving(Memory(SIZES))
        receiver = CopyReceiver([serving.address], SECRET)
        receiver.meta()
        receiver._connections[0].request(b"P", 5, 1 << 40)
        error = serving.end()
        receiver.close()
        assert error is not None and "asked for bytes 5 to" in str(error)


class TestAbort:
    def test_waiting_source_ends_at_once(self) -> None:
        serving = Serving(Memory(SIZES), limit=60)
        begin = time.monotonic()
        serving.source.abort("a member is gone")
        error = serving.end()
        assert "a member is gone" in str(error) and time.monotonic() - begin < SOON

    def test_source_ends_while_a_receiver_is_connected(self) -> None:
        serving = Serving(Memory(SIZES), limit=60)
        receiver = CopyReceiver([serving.address], SECRET, limit=60)
        receiver.meta()
        begin = time.monotonic()
        serving.source.abort("a member is gone")
        assert "a member is gone" in str(serving.end()) and time.monotonic() - begin < SOON
        receiver.close()

    def test_source_ends_while_the_receiver_takes_nothing(self) -> None:
        size = 64 << 20  # more than the sockets hold
        image = Memory([])
        image.pieces = [bytearray(size)]
        serving = Serving(image, limit=60)
        receiver = CopyReceiver([serving.address], SECRET)
        receiver.meta()
        receiver._connections[0].request(b"P", 0, size)
        receiver._connections[0].receive(1)  # so that the source is in the middle of it
        begin = time.monotonic()
        serving.source.abort()
        assert serving.end() is not None and time.monotonic() - begin < SOON
        receiver.close()

    def test_fetching_receiver_ends_at_once(self) -> None:
        gate = threading.Event()
        images = [GatedImage(SIZES, gate) for _ in range(2)]
        serving = [Serving(image, limit=60) for image in images]
        receiver = CopyReceiver([source.address for source in serving], SECRET, limit=60, chunk=1000)
        receiver.meta()
        with in_thread(lambda: receiver.fetch(Buffers([memoryview(bytearray(sum(SIZES)))]))) as errors:
            assert images[0].gated.asked.wait(20)
            begin = time.monotonic()
            receiver.abort("a member is gone")
        assert time.monotonic() - begin < SOON
        assert isinstance(errors[0], RingError) and "a member is gone" in str(errors[0])
        receiver.close()
        gate.set()
        assert all(source.end() is not None for source in serving)

    def test_receiver_ends_while_the_source_does_not_answer(self) -> None:
        source = CopySource("127.0.0.1", SECRET)  # it listens, and nobody serves
        receiver = CopyReceiver([source.address], SECRET, limit=60)
        begin = time.monotonic()
        with in_thread(receiver.meta) as errors:
            while not receiver._connections:
                time.sleep(0.001)
            receiver.abort("a member is gone")
        assert time.monotonic() - begin < SOON
        assert isinstance(errors[0], RingError) and "a member is gone" in str(errors[0])
        receiver.close()
        source.close()

    def test_what_was_aborted_before_does_not_begin(self) -> None:
        source = CopySource("127.0.0.1", SECRET)
        source.abort("too late")
        with pytest.raises(RingError, match="too late"):
            source.serve(Memory(SIZES), 1)
        receiver = CopyReceiver([source.address], SECRET)
        receiver.abort("too late")
        with pytest.raises(RingError, match="too late"):
            receiver.meta()
        receiver.close()
        source.close()
        source.abort()  # and again, whenever


def test_200_copies_leave_no_descriptors_or_threads() -> None:
    image = Memory([5000])

    def once(aborted: bool) -> None:
        serving = [Serving(image) for _ in range(2)]
        receiver = CopyReceiver([source.address for source in serving], SECRET, chunk=1000)
        receiver.meta()
        if aborted:
            receiver.abort()
        else:
            receiver.fetch(Buffers([memoryview(bytearray(5000))]))
        receiver.close()
        assert [source.end() is not None for source in serving] == [aborted] * 2

    once(False)
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for number in range(200):
        once(aborted=number % 4 == 3)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert threading.active_count() <= threads


def test_copy_needs_a_chunk_of_memory_beside_the_state() -> None:
    context = multiprocessing.get_context("spawn")
    (source_end, its_source_end), (receiver_end, its_receiver_end) = context.Pipe(), context.Pipe()
    source = context.Process(target=send_large_model, args=(its_source_end,), daemon=True)
    receiver = context.Process(target=receive_large_model, args=(its_receiver_end,), daemon=True)
    source.start()
    receiver.start()
    receiver_end.send(source_end.recv())
    received, receiver_growth = receiver_end.recv()
    sent, source_growth = source_end.recv()
    source.join(20)
    receiver.join(20)
    assert received == sent
    state, allowed = 160 << 20, 12 << 20
    assert source_growth < allowed < state and receiver_growth < allowed


def test_device_memory_goes_through_one_chunk() -> None:
    """The way of a GPU's tensors, with CPU tensors in their place."""
    tensors = [torch.arange(100, dtype=torch.uint8), torch.arange(100, 150, dtype=torch.uint8)]
    room = [torch.zeros(100, dtype=torch.uint8), torch.zeros(50, dtype=torch.uint8)]
    views: list[memoryview | None] = [None, None]
    reading, writing = (TensorCursor(rows, views, [100, 150]) for rows in (tensors, room))
    direct = TensorPayload(tensors, [TensorSpec.of(tensor) for tensor in tensors]).cursor()
    for start in range(0, 150, 40):
        stop = min(start + 40, 150)
        sent = b"".join(bytes(view) for view in reading.load(start, stop))
        assert sent == b"".join(bytes(view) for view in direct.load(start, stop))
        for view in writing.room(start, stop):
            view[:], sent = sent[: view.nbytes], sent[view.nbytes :]
        writing.store(start, stop)
    assert all(torch.equal(mine, its) for mine, its in zip(room, tensors, strict=True))


def test_memory_of_a_tensor_outlives_its_name() -> None:
    view = cpu_bytes(torch.arange(1 << 16))
    assert sum(view[:8192:8]) == sum(i & 255 for i in range(1024))


def serve_one_part_then_hang(pipe: Pipe) -> None:
    gate = threading.Event()
    image = GatedImage([5000], gate)
    threading.Thread(target=lambda: (image.gated.asked.wait(), pipe.send("hanging")), daemon=True).start()
    source = CopySource("127.0.0.1", SECRET)
    pipe.send(source.address)
    source.serve(image, 1)


def large_replica(seed: int) -> TorchReplica:
    torch.manual_seed(seed)
    replica = TorchReplica()
    replica.add_model("model", torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(10))))
    return replica


def send_large_model(pipe: Pipe) -> None:
    replica = large_replica(1)
    source = CopySource("127.0.0.1", SECRET)
    pipe.send(source.address)
    start_measuring()
    source.serve(replica.capture(), 1)
    growth = measured_growth()
    pipe.send((replica.digest(), growth))


def receive_large_model(pipe: Pipe) -> None:
    replica = large_replica(2)
    receiver = CopyReceiver([pipe.recv()], SECRET)
    start_measuring()
    incoming = replica.prepare(receiver.meta())
    receiver.fetch(incoming.payload())
    incoming.commit()
    receiver.close()
    growth = measured_growth()
    pipe.send((replica.digest(), growth))


_before = 0


def start_measuring() -> None:
    global _before
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of the resident set starts anew
    _before = resident("VmRSS")


def measured_growth() -> int:
    return resident("VmHWM") - _before


def resident(what: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(what))
