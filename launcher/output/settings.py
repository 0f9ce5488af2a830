"""What was asked for of the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .routing import Routing


@dataclass(frozen=True)
class OutputSettings:
    """`most_bytes` and `files` are of each log; 0 bytes for no limit.

    `duplicates` are the texts of lines that go, by stream (1 or 2), into a file for those of all workers.
    """

    prefix: str = "full"
    routing: Routing = field(default_factory=Routing)
    most_bytes: int = 256 << 20
    files: int = 8
    duplicates: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    folds_tracebacks: bool = True
