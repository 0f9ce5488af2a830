"""What a training run says about itself: a progress line, and a line for each change of the membership.

Rank 0 speaks for all; when it is lost, its successor goes on. On a terminal the progress line stays in place, elsewhere
(under `elastic-launch`, in a file) a plain line comes once a second.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from elastic_launch import Change, Job

SECONDS_BETWEEN_LINES = 1.0
SECONDS_BETWEEN_RENEWALS = 0.25  # of the line on a terminal


class Report:
    """Reports on a job; call `step` after each step and `epoch` after each evaluation."""

    def __init__(self, job: Job, epochs: int) -> None:
        self._job = job
        self._epochs = epochs
        self._console = Console(highlight=False, soft_wrap=True)
        self._interval = SECONDS_BETWEEN_RENEWALS if self._console.is_terminal else SECONDS_BETWEEN_LINES
        self._line: Status | None = None
        self._last_time = time.monotonic()
        self._last_samples: int | None = None
        job.on_change(self._changed)

    def step(self) -> None:
        """Renew the progress line if it is time to."""
        job, now = self._job, time.monotonic()
        if self._last_samples is None:
            self._last_time, self._last_samples = now, job.samples
        elapsed = now - self._last_time
        if elapsed < self._interval:
            return
        rate = (job.samples - self._last_samples) / elapsed
        self._last_time, self._last_samples = now, job.samples
        self._progress(
            f"epoch {job.epoch + 1}/{self._epochs}  step {job.global_step}  loss {job.metrics.get('loss', 0.0):.4f}  "
            f"{_workers(job.world_size)}  {rate:.0f} samples/s"
        )

    def epoch(self, results: dict[str, float]) -> None:
        """Say how the epoch that has ended did on the test set."""
        said = "  ".join(f"test {name} {value:.4f}" for name, value in results.items())
        self._say(f"epoch {self._job.epoch + 1}/{self._epochs}  step {self._job.global_step}  {said}")

    def close(self) -> None:
        """Take the progress line off the terminal."""
        if self._line is not None:
            self._line.stop()

    def _changed(self, change: Change) -> None:
        if change.previous_world_size == 0:
            if change.rank == 0:
                self._say(f"{_workers(change.world_size)} at step {change.step}", style="bold")
            return
        counts = f"{_workers(change.world_size)} instead of {change.previous_world_size}"
        self._say(
            f"{change.cause}: {change.reason or 'no reason given'}; {counts} go on behind step {change.step} "
            f"after a pause of {change.pause_seconds:.2f} s",
            style="bold yellow",
        )

    def _say(self, text: str, style: str | None = None) -> None:
        if self._job.rank == 0:
            self._console.print(text, style=style)

    def _progress(self, text: str) -> None:
        if self._job.rank != 0:
            return
        if not self._console.is_terminal:
            self._console.print(text)
        elif self._line is None:
            self._line = self._console.status(text)
            self._line.start()
        else:
            self._line.update(text)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
