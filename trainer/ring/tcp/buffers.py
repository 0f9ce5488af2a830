"""The memory behind an array of any framework, flat and without a copy.

Nothing here imports a framework: a tensor is known by the module of its class. How each of them shows its memory:

- numpy, and whatever has the buffer protocol or `__array_interface__`: itself, to be read and written; bfloat16 as the
  dtype of that name which other packages add, or as a `Bfloat16`.
- torch: CPU tensors, to be read and written; bfloat16 by way of the same memory as 16-bit integers.
- TensorFlow: eager CPU tensors, to be read alone, since they never change. A result is made one without a copy by
  `tf.experimental.dlpack.from_dlpack(array.__dlpack__())`, of an array from `empty`: TensorFlow ends the process over memory
  that is not aligned.
- whatever else has DLPack on the CPU: to be read alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ....errors import UsageError

Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT = 64  # bytes, of what TensorFlow takes over
_CPU = 1  # of DLPack's devices
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool",
)  # fmt: skip


class Bfloat16(np.ndarray):
    """The bits of bfloat16 numbers, which numpy lacks: `array.view(Bfloat16)` of an array of uint16."""


@dataclass(frozen=True)
class Flat:
    """`elements` is one-dimensional and contiguous; of bfloat16, which numpy lacks, it holds the bits, as uint16."""

    elements: Array
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes

    def same_kind_as(self, other: Flat) -> bool:
        return self.dtype == other.dtype and self.elements.size == other.elements.size


def readable(value: Any) -> Flat:
    """The elements of `value`. Raises `UsageError` if they cannot be had without a copy."""
    return _flat(value, _shared(value))


def writable(value: Any) -> Flat:
    """The elements of `value`, to be written. Raises `UsageError` if they cannot be had without a copy, or not be changed."""
    flat = readable(value)
    if not flat.elements.flags.writeable:
        raise UsageError(f"{_kind(value)} cannot be changed: give another array for the result, as out=")
    return flat


def empty(size: int, dtype: str) -> Array:
    """Memory for `size` elements, aligned as TensorFlow wants it; bfloat16 as uint16."""
    kind = storage(dtype)
    room = np.empty(size * kind.itemsize + ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + size * kind.itemsize].view(kind)


def storage(dtype: str) -> np.dtype[Any]:
    """The type of the elements in memory: of bfloat16, which numpy lacks, that of its bits."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def as_typed(elements: Array, dtype: str) -> Array:
    """`elements`, as they are in a `Flat`, as an array that says of itself what type they have.

    Of bfloat16 as numpy's own where a package has added that, else as a `Bfloat16`.
    """
    if dtype != "bfloat16":
        return elements
    added = sys.modules.get("ml_dtypes")
    return elements.view(Bfloat16 if added is None else added.bfloat16)


def describe(value: Any) -> tuple[str, tuple[int, ...]]:
    """The type and the shape of an array or tensor, wherever it is."""
    framework = type(value).__module__.partition(".")[0]
    if framework == "torch":
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if framework == "tensorflow":
        return value.dtype.name, tuple(value.shape)
    return readable(value).dtype, _shared(value).shape


def alike(value: Any, elements: Array) -> Array:
    """`elements`, as they are in a `Flat`, in the shape and the type of `value`."""
    array = _shared(value)
    found = elements.view(array.dtype).reshape(array.shape)
    return found.view(Bfloat16) if isinstance(array, Bfloat16) else found


def as_bytes(elements: Array) -> memoryview:
    """The memory of a contiguous array."""
    return elements.view(np.uint8).data


def _shared(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    framework = type(value).__module__.partition(".")[0]
    if framework == "torch":
        return _of_torch(value)
    if framework == "tensorflow":
        return _of_tensorflow(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        pass  # it has no buffer
    if hasattr(value, "__dlpack__"):
        device, _ = value.__dlpack_device__()
        if device != _CPU:
            raise UsageError(f"{_kind(value)} is not in the CPU's memory: copy it there first")
        return np.from_dlpack(value)
    raise UsageError(f"{_kind(value)} shows its memory in no known way: give a numpy array, or a tensor on the CPU")


def _of_torch(value: Any) -> Array:
    if value.device.type != "cpu" or value.layout is not sys.modules["torch"].strided:
        raise UsageError(f"{_kind(value)} is not a dense tensor on the CPU, but on {value.device}, {value.layout}")
    tensor = value.detach()
    torch = sys.modules["torch"]
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy().view(np.uint16)
        marked: Array = bits.view(Bfloat16)
        return marked
    array: Array = tensor.numpy()
    return array


def _of_tensorflow(value: Any) -> Array:
    if type(value).__name__ != "EagerTensor" or "CPU" not in value.device:
        raise UsageError(f"{_kind(value)} is not an eager tensor on the CPU (of a variable, give its read_value())")
    array: Array = np.asarray(value).view()
    array.flags.writeable = False
    return array


def _flat(value: Any, array: Array) -> Flat:
    is_bits = isinstance(array, Bfloat16) and array.dtype == np.uint16
    dtype = "bfloat16" if is_bits else array.dtype.name
    if dtype not in DTYPES or not array.dtype.isnative:
        raise UsageError(f"{_kind(value)} has elements of type {array.dtype}; a ring carries {', '.join(DTYPES)}")
    if not array.flags.c_contiguous:
        raise UsageError(f"{_kind(value)} is not contiguous: make it so first, for example by numpy.ascontiguousarray")
    elements = array.view(np.ndarray).reshape(-1)
    return Flat(elements.view(np.uint16) if dtype == "bfloat16" else elements, dtype)


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__name__}"
