"""An epoch's order, computed block by block: a worker that joins a long epoch must not sort all of it while others wait.

A Feistel network over the bits of a sample's number is a permutation of the next power of two; numbers that fall outside
are sent through again (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The keys are raw
output of a bit generator, a stream that numpy promises for ever, since members may run different versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ROUNDS = 10  # as many as NIST's FF1 takes for small domains
_BLOCK = 1 << 14  # positions computed at once, about a millisecond
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_AGAIN = np.uint64(0xBF58476D1CE4E5B9)


class Order:
    """The order of `length` samples in `epoch`. The same three numbers always give the same one."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self._low_bits = np.uint64(bits - bits // 2)
        self._masks = (np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << (bits // 2)) - 1))  # of low, of high
        self._keys = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(_ROUNDS)
        self._block: tuple[int, npt.NDArray[Any]] = (-1, np.empty(0, np.uint64))

    def samples(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Those at the positions [start, stop)."""
        pieces = [np.empty(0, np.uint64)]
        while start < stop:
            index = start // _BLOCK
            if self._block[0] != index:
                first = index * _BLOCK
                self._block = (
                    index,
                    self._permuted(np.arange(first, min(first + _BLOCK, self.length), dtype=np.uint64)),
                )
            offset = start - index * _BLOCK
            piece = self._block[1][offset : offset + stop - start]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces)

    def _permuted(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = self._once(positions)
        outside = np.flatnonzero(found >= self.length)
        while len(outside):
            found[outside] = self._once(found[outside])
            outside = outside[found[outside] >= self.length]
        return found

    def _once(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        low, high = numbers & self._masks[0], numbers >> self._low_bits
        for number, key in enumerate(self._keys):
            source, mask = (low, self._masks[1]) if number % 2 == 0 else (high, self._masks[0])
            mixed = (source + key) * _MIX
            mixed ^= mixed >> np.uint64(32)
            mixed *= _MIX_AGAIN
            mixed >>= np.uint64(32)
            mixed &= mask
            if number % 2 == 0:
                high = high ^ mixed
            else:
                low = low ^ mixed
        joined: npt.NDArray[Any] = (high << self._low_bits) | low
        return joined
