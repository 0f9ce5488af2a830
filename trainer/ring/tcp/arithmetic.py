"""How two members' numbers become one: the operations, and the numbers of 16 bits, which are added up as float32.

A sum of many bfloat16 or float16 numbers that is rounded after each addition loses what is small; here it is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import UsageError
from .buffers import Array

_UFUNCS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
OPERATIONS = tuple(_UFUNCS)
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_HALVES = ("float16", "bfloat16")
_ONE_BIT_BELOW, _QUIET = np.uint32(0x7FFF), np.uint16(0x40)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


@dataclass(frozen=True)
class Arithmetic:
    """One operation on elements of one type, among `members`. Of booleans, a sum says whether any is true."""

    operation: str
    dtype: str
    members: int

    @staticmethod
    def of(operation: str, dtype: str, members: int) -> Arithmetic:
        """Raises `UsageError` for an operation that there is not, or not for such numbers."""
        if operation not in _UFUNCS:
            raise UsageError(f"a ring cannot compute {operation!r}, only {', '.join(OPERATIONS)}")
        if operation == "mean" and dtype not in _FLOATS:
            raise UsageError(f"a mean of {dtype} is no {dtype}: convert to floating point, or take the sum")
        if operation in ("band", "bor", "bxor") and dtype in _FLOATS:
            raise UsageError(f"{operation} is for integers and booleans, not for {dtype}")
        return Arithmetic(operation, dtype, members)

    @property
    def is_widened(self) -> bool:
        """Whether partial results have another type than the elements."""
        return self.dtype in _HALVES

    @property
    def partial_dtype(self) -> str:
        return "float32" if self.is_widened else self.dtype

    def widen(self, elements: Array, out: Array) -> Array:
        """`elements` in the type of partial results, in `out` if that is another one."""
        if self.dtype == "bfloat16":
            np.left_shift(elements, 16, out=out.view(np.uint32), dtype=np.uint32)
            return out
        if self.dtype == "float16":
            out[...] = elements
            return out
        return elements

    def join(self, before: Array, own: Array, out: Array) -> None:
        """`before` comes from the members ahead in the order."""
        _UFUNCS[self.operation](before, own, out=out)

    def finish(self, partial: Array, out: Array) -> None:
        """The result in the elements' type, from what all have been joined to. `partial` is overwritten."""
        if self.operation == "mean":
            np.true_divide(partial, self.members, out=partial)
        if self.dtype == "bfloat16":
            _round_to_bfloat16(partial, out)
        elif partial is not out:
            out[...] = partial


def scale(elements: Array, dtype: str, weight: float, out: Array) -> None:
    """`out` is `weight` times `elements`; for 0 it is zero even where they are not finite. Both may be the same memory.

    Raises `UsageError` for another weight than 0 and 1 of what are no floating-point numbers.
    """
    if weight == 0.0:
        out[...] = 0
    elif weight == 1.0:
        if out is not elements:
            np.copyto(out, elements)
    elif dtype not in _FLOATS:
        raise UsageError(f"{weight:g} times {dtype} is no {dtype}: convert to floating point")
    elif dtype == "float64":
        np.multiply(elements, weight, out=out)
    elif dtype == "bfloat16":
        wide = np.left_shift(elements, 16, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            np.multiply(wide, np.float32(weight), out=wide)
        _round_to_bfloat16(wide, out)
    else:
        with np.errstate(all="ignore"):
            np.multiply(elements, np.float32(weight), out=out, casting="same_kind")


def _round_to_bfloat16(numbers: Array, out: Array) -> None:
    """To the nearest, ties to even."""
    bits = numbers.view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + (_ONE_BIT_BELOW + (upper & np.uint32(1)))) >> np.uint32(16)
    out[...] = rounded
    strange = (bits & _MAGNITUDE) > _INFINITY
    if strange.any():  # a NaN must not become an infinity by losing its lower bits
        out[strange] = upper[strange].astype(np.uint16) | _QUIET
