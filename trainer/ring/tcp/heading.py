"""What each member says at the start of a collective, so that two different ones never run into each other.

The members of a ring call the same collectives in the same order. Where a script does not, the bytes of one would be taken
for those of another; so the number of the collective and what it is go ahead of its bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ....errors import RingError, UsageError
from .arithmetic import OPERATIONS
from .buffers import DTYPES

_FORMAT = struct.Struct("<IBBHIQ")
SIZE = _FORMAT.size
GOODBYE = b"\xff" * SIZE  # in the place of a heading, by who leaves between two collectives
KINDS = ("barrier", "allreduce", "reduce_scatter", "allgather", "broadcast", "gather of bytes", "broadcast of bytes")
_WORDS = ("", *OPERATIONS)


class Heading(NamedTuple):
    """`number` counts the ring's collectives; `nbytes` is the size of what one member gives."""

    number: int
    kind: str
    operation: str = ""
    dtype: str = "uint8"
    root: int = 0
    nbytes: int = 0

    def pack(self) -> bytes:
        return _FORMAT.pack(
            self.number & 0xFFFFFFFF,
            KINDS.index(self.kind),
            _WORDS.index(self.operation),
            DTYPES.index(self.dtype),
            self.root,
            self.nbytes,
        )

    def check(self, data: bytes | bytearray, rank: int, any_size: bool = False) -> int:
        """Raise `UsageError` if the heading of `rank` says another collective; its size, which may differ with `any_size`."""
        if not any_size and data == self.pack():
            return self.nbytes
        if data == GOODBYE:
            raise RingError(f"rank {rank} has left")
        fields: tuple[int, ...] = _FORMAT.unpack(data)
        number, kind, operation, dtype, root, nbytes = fields
        try:
            theirs = Heading(number, KINDS[kind], _WORDS[operation], DTYPES[dtype], root, nbytes)
        except IndexError:
            raise UsageError(
                f"rank {rank} runs another version of this package: its collective is unknown here"
            ) from None
        mine = self._replace(number=self.number & 0xFFFFFFFF)
        if theirs != (mine._replace(nbytes=nbytes) if any_size else mine):
            raise UsageError(
                f"the members call different collectives: rank {rank} {theirs}, this rank {mine}; every member must make "
                "the same calls in the same order"
            )
        return nbytes

    def __str__(self) -> str:
        words = [self.kind]
        if self.operation:
            words.append(f"({self.operation})")
        if self.kind in ("broadcast", "broadcast of bytes"):
            words.append(f"from {self.root}")
        words.append(f"of {self.nbytes} bytes of {self.dtype}, number {self.number}")
        return " ".join(words)
