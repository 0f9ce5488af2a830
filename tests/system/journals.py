"""What the workers of a job have written down, and what it proves."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class JournalFolder:
    """The journals of one job, one file a process, and the notes by which a test speaks to the script (`scripts/train.py`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
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
        """Of the newest ring; 0 while it has made no step."""
        steps = self.journal("step", generation=self.generation())
        return int(steps[0]["world_size"]) if steps else 0

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
        """Nobody has seen another loss of a step than the others, however often it was taken. (Where a step was finished
        after a loss, the one that died may have seen everybody's, and the others only their own.)"""
        seen: dict[int, float] = {}
        partial = self.finished_without_a_voter()
        for entry in self.journal("step"):
            if entry["step"] in partial:
                continue
            loss = seen.setdefault(entry["step"], entry["loss"])
            assert math.isclose(loss, entry["loss"], rel_tol=1e-9), f"step {entry['step']}: {loss} and {entry['loss']}"

    def assert_follows(self, undisturbed: JournalFolder, tolerance: float = 1e-9) -> None:
        """Losses, and weights after each epoch, are those of an undisturbed run of one worker.

        Rounding differences of losses that approach zero grow tenfold in 1,500 steps, from 1e-15 to 1e-9 in 8,000 (measured);
        so of very long runs the first 5,000 losses are compared, and the weights to the end.
        """
        expected, partial = undisturbed.losses(), self.finished_without_a_voter()
        losses = {step: loss for step, loss in self.losses().items() if step not in partial}
        assert losses and len(losses) <= len(expected), f"{len(losses)} steps, {len(expected)} to compare with"
        compared = {step: loss for step, loss in losses.items() if step <= 5000}
        worst = max(abs(loss - expected[step]) / abs(expected[step]) for step, loss in compared.items())
        assert worst < tolerance, f"the losses differ by {worst:.2e}"
        weights = {entry["epoch"]: entry["weights"] for entry in undisturbed.journal("epoch")}
        for entry in self.journal("epoch"):
            assert abs(entry["weights"] / weights[entry["epoch"]] - 1) < tolerance, (entry, weights[entry["epoch"]])

    def finished_without_a_voter(self) -> set[int]:
        """Steps that survivors may have finished on the spot: the metrics of whom they lost are lost with it."""
        changes = [entry for entry in self.journal("change") if entry["cause"] not in ("start", "joined", "drained")]
        return {entry["step"] + 1 for entry in changes}

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
