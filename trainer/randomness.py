"""Random generators: derived anew for each step from (seed, step, rank), so that nothing has to be carried to anybody."""

from __future__ import annotations

import random
import sys

import xxhash


def seed_for(seed: int, step: int, rank: int) -> int:
    """A 63-bit seed; the same step on the same rank always gets the same one."""
    return xxhash.xxh64_intdigest(f"{seed}/{step}/{rank}".encode()) >> 1


def seed_python(value: int) -> None:
    """Seed Python's and, where it is in use, NumPy's global generators."""
    random.seed(value)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(value & 0xFFFFFFFF)
