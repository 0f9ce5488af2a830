"""The ring of our own sockets works on the memory of each framework's arrays, not on copies of it."""

from __future__ import annotations

import array
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.rendezvous.meeting.point import MeetingServer
from elastic_launch.trainer.ring.tcp.arithmetic import Arithmetic
from elastic_launch.trainer.ring.tcp.buffers import Bfloat16, empty, readable, writable
from elastic_launch.trainer.ring.tcp.ring import TcpRing


@pytest.fixture
def pair() -> Iterator[tuple[TcpRing, TcpRing]]:
    """Both members of a ring, in this process."""
    server = MeetingServer("127.0.0.1")
    server.open("frameworks", 1, "secret")
    client = MeetingClient(server.address, "frameworks", 1, "secret")
    rings = TcpRing("pair", 0, 2, secret="secret"), TcpRing("pair", 1, 2, secret="secret")
    for forming in [ring.start_forming(client) for ring in rings]:
        forming.wait(30)
    yield rings
    for ring in rings:
        ring.close()
    client.close()
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tcp-ring")]


def both(works: list[Any]) -> None:
    for work in works:
        work.wait(30)


def address_of(elements: Any) -> int:
    return int(elements.ctypes.data)


def test_what_has_the_buffer_protocol_or_numpys_interface_is_used_as_it_is() -> None:
    numbers = np.arange(6.0)
    assert address_of(writable(numbers.reshape(2, 3)).elements) == address_of(numbers)
    assert address_of(writable(memoryview(numbers)).elements) == address_of(numbers)
    room = bytearray(8)
    writable(room).elements[0] = 7
    assert room[0] == 7
    standard = array.array("d", [1.0, 2.0])
    assert writable(standard).dtype == "float64"
    assert readable(b"abc").dtype == "uint8"
    with pytest.raises(UsageError, match="cannot be changed"):
        writable(b"abc")
    assert readable(np.float32(3)).elements.tolist() == [3.0]
    assert readable(np.zeros(2, np.uint16).view(Bfloat16)).dtype == "bfloat16"


def test_torch_tensors_are_used_without_a_copy(pair: tuple[TcpRing, TcpRing]) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    names = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "bool"]
    for name in names:
        tensors = [torch.ones(3, 4).to(getattr(torch, name)) for _ in pair]
        for tensor in tensors:
            flat = writable(tensor)
            assert (address_of(flat.elements), flat.dtype) == (tensor.data_ptr(), name)
        both([ring.start_allreduce(tensor) for ring, tensor in zip(pair, tensors, strict=True)])
        for tensor in tensors:
            assert tensor.float().unique().tolist() == [1.0 if name == "bool" else 2.0]
    parameter = torch.nn.Parameter(torch.ones(2))
    assert address_of(writable(parameter).elements) == parameter.data_ptr()
    assert writable(torch.ones(())).elements.shape == (1,)
    with pytest.raises(UsageError, match="not contiguous"):
        readable(torch.ones(3, 4).t())
    with pytest.raises(UsageError, match="not a dense tensor on the CPU"):
        readable(torch.ones(3).to_sparse())
    with pytest.raises(UsageError, match="not a dense tensor on the CPU"):
        readable(torch.ones(3, device="meta"))


def test_rounding_to_bfloat16_is_torchs() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    bits = np.arange(1 << 16, dtype=np.uint32)
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        numbers = ((bits << 16) | np.uint32(low)).view(np.float32)
        out = np.empty(numbers.size, np.uint16)
        Arithmetic.of("sum", "bfloat16", 2).finish(numbers.copy(), out)
        wanted = torch.from_numpy(numbers).to(torch.bfloat16)
        got = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got[~got.isnan()], wanted[~wanted.isnan()])


def test_tensorflows_tensors_are_read_without_a_copy_and_results_become_tensors_without_one(
    pair: tuple[TcpRing, TcpRing],
) -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    for name in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"):
        tensor = tensorflow.cast(tensorflow.ones((3, 4)), name)
        flat = readable(tensor)
        assert flat.dtype == name
        assert address_of(flat.elements) == address_of(tensor._numpy())  # which shares its memory; numpy() copies
        with pytest.raises(UsageError, match="cannot be changed: give another array for the result"):
            writable(tensor)
        results = [empty(12, name) for _ in pair]
        outs = [result.view(Bfloat16) if name == "bfloat16" else result for result in results]
        both([ring.start_allreduce(tensor, "sum", out) for ring, out in zip(pair, outs, strict=True)])
        if name == "bfloat16":
            continue  # DLPack does not carry it between numpy and TensorFlow
        made = tensorflow.experimental.dlpack.from_dlpack(results[0].__dlpack__())
        assert address_of(made._numpy()) == address_of(results[0])
        assert made.numpy().tolist() == [1 if name == "bool" else 2] * 12
    variable = tensorflow.Variable([1.0, 2.0])
    assert readable(variable.read_value()).elements.tolist() == [1.0, 2.0]
    with pytest.raises(UsageError, match="read_value"):
        readable(variable)


def test_numpys_own_bfloat16_is_known(pair: tuple[TcpRing, TcpRing]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
    arrays = [np.array([1.5, 2.5], ml_dtypes.bfloat16) for _ in pair]
    both([ring.start_allreduce(each) for ring, each in zip(pair, arrays, strict=True)])
    assert arrays[0].astype(np.float32).tolist() == [3.0, 5.0]
