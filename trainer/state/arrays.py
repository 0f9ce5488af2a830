"""The replica of a job whose variables are read and set as numpy arrays, whichever framework they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from ...errors import StateMismatchError, UsageError
from ..ring.ring import Ring
from ..ring.sockets import SocketRing
from .payload import Buffers
from .replica import Replica
from .structure import Model, Optimizer, Structure, Tensor
from .tree import pack

Array: TypeAlias = npt.NDArray[Any]


class Variable(Protocol):
    """What TensorFlow's variables and Keras's have."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def trainable(self) -> bool: ...

    def numpy(self) -> Array: ...

    def assign(self, value: Any) -> Any: ...


class ArraySpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Array) -> ArraySpec:
        return ArraySpec(array.shape, _dtype_name(array.dtype))

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def layout(self) -> list[object]:
        return [self.shape, self.dtype]

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


class ArraySlot(NamedTuple):
    """Stands for an array that has not come yet."""

    number: int
    spec: ArraySpec


class VariablesPart:
    """Variables by name. All are there before anything is received: what is made lazily has to be built first."""

    def __init__(self, name: str, kind: str, variables: Mapping[str, Variable]) -> None:
        self.name = name
        self.kind = kind
        self.variables = dict(variables)

    def tree(self) -> Any:
        return {path: array_of(variable) for path, variable in self.variables.items()}

    def hint(self) -> Any:
        return None

    def place(self, tree: Any, hint: Any, placer: Any) -> None:
        here = {path: _spec_of(variable) for path, variable in self.variables.items()}
        there = {path: slot.spec for path, slot in tree.items()}
        for path in [*here, *there]:
            if here.get(path) != there.get(path):
                raise StateMismatchError(
                    f"{self.name} variable {path!r} is {here.get(path, 'missing')} here and {there.get(path, 'missing')} "
                    "in the job: give every worker the same model, and build the optimizer before it joins"
                )

    def load(self, tree: Any) -> None:
        for path, value in tree.items():
            self.variables[path].assign(value)

    def untrained(self) -> list[Variable]:
        return [variable for variable in self.variables.values() if not variable.trainable]


class ArrayReplica(Replica):
    """See `Replica`; tensors are numpy arrays, which are received beside the variables and then assigned."""

    def add_model(self, name: str, variables: Mapping[str, Variable]) -> None:
        if not variables:
            raise UsageError(f"{name!r} has no variables yet: build it (call it once on a sample) before joining")
        self._add(name, VariablesPart(name, "model", variables), structural=True)

    def add_optimizer(self, name: str, kind: str, variables: Mapping[str, Variable]) -> None:
        part = VariablesPart(name, "optimizer", variables)
        self._optimizer_kinds[name] = kind
        self._add(name, part, structural=True)

    def __init__(self) -> None:
        super().__init__()
        self._optimizer_kinds: dict[str, str] = {}

    def structure(self) -> Structure:
        models, optimizers = {}, {}
        for name, part in self._structural.items():
            assert isinstance(part, VariablesPart)
            if part.kind == "optimizer":
                described = [f"{path} {_spec_of(variable)}" for path, variable in part.variables.items()]
                optimizers[name] = Optimizer(self._optimizer_kinds[name], [described])
                continue
            trained = {path: _described(v) for path, v in part.variables.items() if v.trainable}
            others = {path: _described(v) for path, v in part.variables.items() if not v.trainable}
            models[name] = Model(trained, others)
        return Structure(models, optimizers)

    def share_buffers(self, ring: Ring, lead: int) -> None:
        shared = [v for part in self._structural.values() if part.kind == "model" for v in _untrained(part)]
        if ring.world_size == 1 or not shared:
            return
        assert isinstance(ring, SocketRing)
        arrays = [np.ascontiguousarray(array_of(variable)) for variable in shared]
        own = b"".join(array.tobytes() for array in arrays) if ring.rank == lead else b""
        data = ring.run(lambda below: below.broadcast_bytes(own, lead))
        if ring.rank == lead:
            return
        start = 0
        for variable, array in zip(shared, arrays, strict=True):
            variable.assign(np.frombuffer(data, array.dtype, array.size, start).reshape(array.shape))
            start += array.nbytes

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.names is None

    def _spec(self, tensor: Array) -> ArraySpec:
        return ArraySpec.of(tensor)

    def _spec_from_plain(self, plain: Any) -> ArraySpec:
        shape, dtype = plain
        return ArraySpec(tuple(shape), dtype)

    def _room(self, tensors: list[Array], specs: Sequence[Any], receiving: bool) -> ArrayRoom:
        return ArrayRoom(tensors)

    def _placer(self, specs: Sequence[Any]) -> ArrayPlacer:
        return ArrayPlacer(specs)

    def _digest(self, meta: bytes, tensors: list[Array]) -> str:
        hasher = xxhash.xxh3_128(meta)
        for array in tensors:
            hasher.update(pack(ArraySpec.of(array)))
            hasher.update(_bytes(array))
        return hasher.hexdigest()

    def _fill(self, tensor: Array, value: Array) -> None:
        tensor[...] = value


class ArrayPlacer:
    """Fresh memory for each array that comes."""

    def __init__(self, specs: Sequence[ArraySpec]) -> None:
        self._specs = specs

    def slot(self, number: int) -> ArraySlot:
        return ArraySlot(number, self._specs[number])

    def tensors(self) -> list[Array]:
        return [np.empty(spec.shape, spec.dtype) for spec in self._specs]


class ArrayRoom(Buffers):
    """The bytes of arrays, in their order."""

    def __init__(self, arrays: list[Array]) -> None:
        self._rows = [_bytes(array) for array in arrays]
        super().__init__([row for row in self._rows if row.nbytes])

    def copy_to(self, host: memoryview) -> None:
        start = 0
        for row in self._rows:
            host[start : start + row.nbytes] = row
            start += row.nbytes

    def finish(self) -> None:
        """Nothing: all of it lies where it belongs."""


def array_of(variable: Variable) -> Array:
    """The variable's value at this moment; it may not be changed. With TensorFlow it does not change with the variable."""
    held = (
        variable if hasattr(variable, "read_value") else getattr(variable, "value", None)
    )  # Keras's wrap TensorFlow's
    read = getattr(held, "read_value", None)
    return np.asarray(
        variable.numpy() if read is None else read()
    )  # TensorFlow's numpy() makes a copy, a value does not


def _untrained(part: Any) -> list[Variable]:
    found: list[Variable] = part.untrained()
    return found


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """One that `numpy.dtype` knows again; the short form of bfloat16, which numpy lacks, says nothing."""
    name = str(dtype.name)
    try:
        return name if np.dtype(name) == dtype else str(dtype.str)
    except TypeError:
        return str(dtype.str)


def _spec_of(variable: Variable) -> ArraySpec:
    """Without its value, which may lie on a device, where that can be."""
    kind = getattr(variable.dtype, "as_numpy_dtype", variable.dtype)
    try:
        return ArraySpec(tuple(variable.shape), _dtype_name(np.dtype(kind)))
    except TypeError:  # a type that numpy does not know by this name
        return ArraySpec.of(array_of(variable))


def _described(variable: Variable) -> Tensor:
    spec = _spec_of(variable)
    return Tensor(list(spec.shape), spec.dtype)
