"""What a worker notes of its steps, in memory that the benchmark reads while it runs: about a microsecond a note.

Times are of CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

_NOTE = struct.Struct("<6q")
_COUNT = struct.Struct("<q")
_CAPACITY = 1 << 18


class Event(IntEnum):
    STARTED = 1  # the process runs Python
    IMPORTED = 2  # torch is there
    READY = 3  # model and optimizer are made, the job is joined
    BEGAN = 4  # an attempt at a step
    COMMITTED = 5


@dataclass(frozen=True)
class Note:
    event: Event
    time: int
    step: int
    generation: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class ChangeNote:
    """A change of membership as one worker went through it: when each of its phases had ended, in nanoseconds."""

    generation: int
    rank: int
    world_size: int
    cause: str
    time: int
    phases: dict[str, int]
    copied_bytes: int = 0


class Timeline:
    """One process's notes: `<pid>.steps`, and its changes of membership beside it."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}.steps"
        with open(path, "wb+") as file:
            file.truncate(_COUNT.size + _CAPACITY * _NOTE.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._changes = open(folder / f"{os.getpid()}.changes", "w", buffering=1)  # noqa: SIM115 - for the process's life

    def note(self, event: Event, step: int = 0, generation: int = 0, rank: int = 0, world_size: int = 0) -> None:
        now = time.monotonic_ns()
        offset = _COUNT.size + self._count * _NOTE.size
        _NOTE.pack_into(self._memory, offset, event, now, step, generation, rank, world_size)
        self._count += 1
        _COUNT.pack_into(self._memory, 0, self._count)

    def change(self, change: Any) -> None:
        """Note an `elastic_launch.Change`, from its callback."""
        now = time.monotonic_ns()
        began = now - int(change.pause_seconds * 1e9)
        phases = {name: began + int(seconds * 1e9) for name, seconds in change.phases.items()}
        fields = {name: getattr(change, name) for name in ("generation", "rank", "world_size", "cause")}
        self._changes.write(json.dumps({**fields, "time": now, "phases": {"stopped": began, **phases}}) + "\n")


class Recorded:
    """The notes of one process, read from outside while it may still write them."""

    def __init__(self, path: Path) -> None:
        self.pid = int(path.stem)
        self.place = path.parent.name
        """The folder that it writes into: one for all, or one for each pod."""
        self._changes_path = path.with_suffix(".changes")
        with open(path, "rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._notes: list[Note] = []

    @property
    def notes(self) -> list[Note]:
        (count,) = _COUNT.unpack_from(self._memory, 0)
        for index in range(len(self._notes), count):
            event, *numbers = _NOTE.unpack_from(self._memory, _COUNT.size + index * _NOTE.size)
            self._notes.append(Note(Event(event), *numbers))
        return self._notes

    @property
    def last(self) -> Note | None:
        notes = self.notes
        return notes[-1] if notes else None

    @property
    def commits(self) -> list[Note]:
        return [note for note in self.notes if note.event is Event.COMMITTED]

    @property
    def changes(self) -> list[ChangeNote]:
        lines = self._changes_path.read_text().splitlines() if self._changes_path.exists() else []
        return [ChangeNote(**json.loads(line)) for line in lines]

    def when(self, event: Event) -> int | None:
        return next((note.time for note in self.notes if note.event is event), None)


class Recordings:
    """The notes of all processes that write into a folder, or into folders in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, Recorded] = {}

    def all(self) -> list[Recorded]:
        for path in self._folder.rglob("*.steps"):
            if path not in self._known and path.stat().st_size:
                self._known[path] = Recorded(path)
        return list(self._known.values())

    def members(self) -> list[Recorded]:
        """Those whose newest step is of the newest generation, by rank."""
        stepping = [(each.last, each) for each in self.all() if each.commits]
        newest = max((last.generation for last, _ in stepping if last), default=0)
        found = [(last.rank, each) for last, each in stepping if last and last.generation == newest]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]
