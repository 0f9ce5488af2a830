"""Sums and the like of small arrays: everybody's numbers go to everybody, who computes the same from them, in rank order.

Half a ring of hops instead of two rings of them, for as many times the bytes as there are members: time is what counts here.
"""

from __future__ import annotations

import numpy as np

from . import passing
from .arithmetic import Arithmetic
from .buffers import Array, as_bytes
from .heading import Heading
from .lanes import Lanes

LIMIT = 128 * 1024  # bytes of all members together


def allreduce(
    lanes: Lanes, rank: int, size: int, heading: Heading, arithmetic: Arithmetic, source: Array, result: Array
) -> None:
    """`result` may be `source`."""
    given = np.empty((size, source.size), source.dtype)
    given[rank] = source
    passing.exchange(lanes, rank, size, heading, as_bytes(given[rank]), lambda other, nbytes: as_bytes(given[other]))
    room = np.empty((2, source.size), np.dtype(arithmetic.partial_dtype))
    partial = result if not arithmetic.is_widened else room[1]
    partial[...] = arithmetic.widen(given[0], room[0])
    for own in given[1:]:
        arithmetic.join(partial, arithmetic.widen(own, room[0]), partial)
    arithmetic.finish(partial, result)
