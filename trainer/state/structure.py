"""The shape that a replica must have to take the job's state: names, shapes and types, not values.

What optimizers make lazily does not count, and neither do registered objects: a script may register them later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import xxhash


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''}) {self.dtype}"


class Model(msgspec.Struct, frozen=True, array_like=True):
    """Tied parameters appear once, under their first name. Only buffers that are saved with the model count."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


class Optimizer(msgspec.Struct, frozen=True, array_like=True):
    """`groups`: for each parameter group the names of its parameters, "" for one of no registered model."""

    kind: str
    groups: list[list[str]]


class Structure(msgspec.Struct, frozen=True, array_like=True):
    models: dict[str, Model] = {}
    optimizers: dict[str, Optimizer] = {}

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Structure:
        return msgspec.msgpack.decode(data, type=Structure)

    def digest(self) -> str:
        """Equal for equal structures; the order in which models define their parameters does not count."""
        return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(self, order="deterministic"))

    def explain(self, job: Structure, limit: int = 3) -> str:
        """The first differences between this structure and the job's in words, "" if there is none."""
        found = list(self._differences(job))
        more = f" (and {len(found) - limit} more differences)" if len(found) > limit else ""
        return "; ".join(found[:limit]) + more

    def _differences(self, job: Structure) -> Iterator[str]:
        yield from _names("model", self.models, job.models)
        for name in (name for name in self.models if name in job.models):
            here, there = self.models[name], job.models[name]
            yield from _tensors(f"{name} parameter", here.parameters, there.parameters)
            yield from _tensors(f"{name} buffer", here.buffers, there.buffers)
        yield from _names("optimizer", self.optimizers, job.optimizers)
        for name in (name for name in self.optimizers if name in job.optimizers):
            yield from _optimizers(name, self.optimizers[name], job.optimizers[name])


def _names(what: str, here: Mapping[str, object], there: Mapping[str, object]) -> Iterator[str]:
    for name in here:
        if name not in there:
            yield f"{what} {name!r} is here and not in the job"
    for name in there:
        if name not in here:
            yield f"{what} {name!r} is in the job and not here"


def _tensors(what: str, here: dict[str, Tensor], there: dict[str, Tensor]) -> Iterator[str]:
    for name, tensor in here.items():
        if name not in there:
            yield f"{what} {name!r} {tensor} is here and not in the job"
        elif tensor != there[name]:
            yield f"{what} {name!r} is {tensor} here and {there[name]} in the job"
    for name, tensor in there.items():
        if name not in here:
            yield f"{what} {name!r} {tensor} is in the job and not here"


def _optimizers(name: str, here: Optimizer, there: Optimizer) -> Iterator[str]:
    if here.kind != there.kind:
        yield f"optimizer {name!r} is {here.kind} here and {there.kind} in the job"
    if len(here.groups) != len(there.groups):
        yield f"optimizer {name!r} has {len(here.groups)} parameter groups here and {len(there.groups)} in the job"
        return
    for number, (mine, theirs) in enumerate(zip(here.groups, there.groups, strict=True)):
        if len(mine) != len(theirs):
            yield f"optimizer {name!r} group {number} has {len(mine)} parameters here and {len(theirs)} in the job"
        elif mine != theirs:
            at = next(i for i in range(len(mine)) if mine[i] != theirs[i])
            yield (
                f"optimizer {name!r} group {number} parameter {at} is {mine[at] or 'of no model'!r} here "
                f"and {theirs[at] or 'of no model'!r} in the job"
            )
