"""What one member asks of all: one collective on one array, under a name by which the members' requests are matched."""

from __future__ import annotations

import math

import msgspec


class Request(msgspec.Struct, frozen=True, array_like=True):
    """`kind` is one of "allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "bytes", "barrier", "join".

    `operation` is one of the ring's ("sum", "mean", ...). `root` is a rank, -1 where there is none. `splits` are the rows of
    an alltoall for each rank. Of "bytes", which one member gives to all, `shape` counts on the root alone.
    """

    name: str
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    operation: str = ""
    root: int = -1
    splits: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """In elements."""
        return math.prod(self.shape)

    @property
    def row(self) -> int:
        """Elements of one row, which is what one index of the first dimension stands for."""
        return math.prod(self.shape[1:])

    def explain(self, other: Request) -> str:
        """How the other member's request does not fit this one; empty if it does."""
        for what, mine, others in (
            ("are different collectives", self.kind, other.kind),
            ("have different types", self.dtype, other.dtype),
            ("reduce in different ways", self.operation, other.operation),
            ("have different roots", self.root, other.root),
        ):
            if mine != others:
                return f"they {what}: {mine} and {others}"
        if self.kind == "bytes":
            return ""
        by_rows = self.kind in ("allgather", "alltoall")
        if self.shape[by_rows:] != other.shape[by_rows:] or len(self.shape) != len(other.shape):
            return f"they have different shapes: {list(self.shape)} and {list(other.shape)}"
        return ""
