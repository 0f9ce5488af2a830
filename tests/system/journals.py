"""What the workers of a job have written down, and what it proves."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class JournalFolder:
    """The journals of one job, one file a process, and the notes by which a test speaks to the script (`scripts/train.py`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._entries: list[Entry] = []
        self._offsets: dict[Path, int] = {}

    def journal(self, event: str | None = None, **fields: Any) -> list[Entry]:
        """The entries of that kind that have those fields, in order of time."""
        self._read()
        return [
            entry
            for entry in self._entries
            if event in (None, entry["event"]) and all(entry.get(name) == value for name, value in fields.items())
        ]

    def step(self) -> int:
        """The newest committed step."""
        return max((entry["step"] for entry in self.journal("step")), default=0)

    def world_size(self) -> int:
        """Of the ring that made the newest step."""
        steps = self.journal("step")
        return int(max(steps, key=lambda entry: entry["step"])["world_size"]) if steps else 0

    def generation(self) -> int:
        """The newest that was formed."""
        return max((entry["generation"] for entry in self.journal("change")), default=0)

    def losses(self) -> dict[int, float]:
        return {entry["step"]: entry["loss"] for entry in self.journal("step")}

    # --- notes to the script ---

    def finish(self) -> None:
        """Have a job that was started `--open-ended` end after its present epoch."""
        (self.folder / "finish").touch()

    def plan_death(self, point: str, local_rank: int) -> Path:
        """Have the next worker of that slot that reaches the named point kill itself there. The note is gone afterwards."""
        note = self.folder / f"death-{point}-{local_rank}"
        note.touch()
        return note

    # --- what it proves ---

    def assert_exact(self, epochs: int | None = None, members: int | None = None, samples: int = 200) -> None:
        """Each sample of each epoch was applied exactly once; everybody who finished has the same state and saw the same."""
        ends = self.journal("end")
        assert ends, "nobody finished"
        if members is not None:
            assert len(ends) == members, ends
        epochs = ends[0]["epochs"] if epochs is None else epochs
        for end in ends:
            assert end["counts"] == [-float(epochs)], end
            assert (end["samples"], end["epochs"], end["seen"]) == (epochs * samples, epochs, epochs), end
        assert len({(end["weights"], end["steps"], end["lr"]) for end in ends}) == 1, ends
        self.assert_agreed()
        assert {entry["step"] for entry in self.journal("step")} == set(range(1, ends[0]["steps"] + 1))

    def assert_agreed(self) -> None:
        """Nobody has seen another loss of a step than the others."""
        seen: dict[int, float] = {}
        for entry in self.journal("step"):
            loss = seen.setdefault(entry["step"], entry["loss"])
            assert loss == entry["loss"], f"step {entry['step']}: {loss} and {entry['loss']}"

    def assert_follows(self, undisturbed: dict[int, float], tolerance: float = 1e-9) -> None:
        """The losses are those of an undisturbed run of one worker."""
        losses = self.losses()
        assert losses and len(undisturbed) >= len(losses), f"{len(losses)} steps, {len(undisturbed)} to compare with"
        worst = max(abs(loss - undisturbed[step]) / abs(undisturbed[step]) for step, loss in losses.items())
        assert worst < tolerance, f"the losses differ by {worst:.2e}"

    def assert_nothing_redone(self) -> None:
        assert not self.journal("redo"), self.journal("redo")

    def _read(self) -> None:
        fresh = False
        for file in self.folder.glob("*.jsonl"):
            with open(file, "rb") as stream:
                stream.seek(self._offsets.get(file, 0))
                whole, _, _ = stream.read().rpartition(b"\n")
            if not whole:
                continue
            self._offsets[file] = self._offsets.get(file, 0) + len(whole) + 1
            fresh = True
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):
                    self._entries.append(json.loads(line))
        if fresh:
            self._entries.sort(key=lambda entry: entry["time"])
