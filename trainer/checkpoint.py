"""The last resort: the state on disk, for the one case that every worker that held it is gone.

A step pays only for a copy of the state within memory; a thread writes that copy to a file of its own, which gets its
name when it is complete and on the disk. Whatever goes wrong while writing is a warning: training goes on without it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CheckpointError, UsageError
from .checkpoint_file import Damaged, load_into, remove_leftovers, step_of, verify, write
from .state.payload import Buffers, Payload

if TYPE_CHECKING:
    from .state.replica import Replica

_LARGE = 64 << 20  # bytes: below, memory for a copy is made at once

logger = logging.getLogger("elastic_launch.checkpoint")


class Checkpoints:
    """The checkpoints of one job in one directory, written by one worker at a time.

    `every_steps` and `every_seconds` say when one is due; None for not by that measure. The newest `keep` stay. Keeps
    one copy of the state in host memory from the first checkpoint on.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 2,
        every_steps: int | None = 100,
        every_seconds: float | None = None,
    ) -> None:
        """Makes the directory. CheckpointError if that cannot be done, UsageError for numbers that make no sense."""
        if keep < 1:
            raise UsageError(f"the number of checkpoints to keep is {keep}: it must be 1 or more")
        if (every_steps is not None and every_steps < 1) or (every_seconds is not None and not every_seconds > 0):
            raise UsageError(
                f"a checkpoint every {every_steps} steps, {every_seconds} s: both must be positive or None"
            )
        self.directory = Path(directory)
        self.pause = 0.0  # seconds that the newest checkpoint took from the training
        self._keep = keep
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._last_step = 0
        self._last_time = time.monotonic()
        self._worker: threading.Thread | None = None
        self._host = np.empty(0, np.uint8)
        self._verified: dict[Path, tuple[int, int]] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"the checkpoint directory {self.directory} cannot be made: {error}") from error
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise CheckpointError(f"the checkpoint directory {self.directory} is not writable")

    def is_due(self, step: int) -> bool:
        by_steps = self._every_steps is not None and step - self._last_step >= self._every_steps
        by_time = self._every_seconds is not None and time.monotonic() - self._last_time >= self._every_seconds
        return by_steps or by_time

    def save_if_due(self, replica: Replica, step: int) -> bool:
        """Call it between two steps; true if the state was taken. While the former one is being written, it waits."""
        if not self.is_due(step) or (self._worker is not None and self._worker.is_alive()):
            return False
        begin = time.monotonic()
        try:
            image = replica.capture()
            if self._host.nbytes != image.nbytes:
                self._start(self._make_host, image.nbytes, step)
                if image.nbytes > _LARGE:
                    return False  # at a later step, when there is memory that has been touched: the copy alone is quick
                self.close()
            image.payload().copy_to(self._host.data)
        except (UsageError, MemoryError, RuntimeError) as error:
            self._last_step, self._last_time = step, time.monotonic()
            logger.warning("no checkpoint of step %d: %s; training goes on without it", step, error)
            return False
        self._last_step, self._last_time = step, time.monotonic()
        self.pause = self._last_time - begin
        self._start(self._write_or_warn, step, image.meta, Buffers([self._host.data]))
        return True

    def write_now(self, replica: Replica, step: int, patience: float = 60.0) -> Path:
        """Writes straight from the live state and returns when it is on the disk. CheckpointError if that fails.

        Others may do so at the same time: what is half-written in the directory is left alone.
        """
        self.close(patience)
        image = replica.capture()
        try:
            return self._write(step, image.meta, image.payload())
        except OSError as error:
            raise CheckpointError(f"the checkpoint of step {step} could not be written: {error}") from error

    def newest(self) -> tuple[Path, int] | None:
        """The newest intact checkpoint and its step. Says loudly which ones are damaged and passes them over."""
        for path, step in self._found():
            if self._is_intact(path):
                return path, step
        return None

    def restore(self, replica: Replica) -> int:
        """Makes the newest intact checkpoint the replica's state and returns its step.

        CheckpointError if there is none, StateMismatchError if it is of another model. Damaged newer ones are set
        aside, so that they do not stand before those that are written from here on.
        """
        newest = self.newest()
        if newest is None:
            raise CheckpointError(f"there is no intact checkpoint in {self.directory}")
        path, step = newest
        try:
            load_into(path, replica)
        except (OSError, Damaged) as error:
            raise CheckpointError(f"{path} could not be restored: {error}") from error
        for other, later in self._found():
            if later > step:
                try:
                    other.rename(other.with_suffix(".damaged"))
                except OSError as error:
                    logger.warning("the damaged checkpoint %s cannot be set aside: %s", other, error)
        self._last_step, self._last_time = step, time.monotonic()
        return step

    def close(self, patience: float = 60.0) -> None:
        """Waits until the checkpoint that is being written, if any, is on the disk; a warning if that takes longer."""
        if self._worker is not None:
            self._worker.join(patience)
            if self._worker.is_alive():
                logger.warning("the checkpoint in %s is still not written after %g s", self.directory, patience)

    def _found(self) -> list[tuple[Path, int]]:
        """Newest first."""
        try:
            names = list(self.directory.iterdir())
        except OSError as error:
            logger.warning("the checkpoint directory %s cannot be read: %s", self.directory, error)
            return []
        found = [(path, step) for path in names if (step := step_of(path)) is not None]
        return sorted(found, key=lambda item: -item[1])

    def _is_intact(self, path: Path) -> bool:
        try:
            status = path.stat()
            identity = (status.st_mtime_ns, status.st_size)
            if self._verified.get(path) != identity:
                verify(path)
                self._verified[path] = identity
            return True
        except FileNotFoundError:
            return False  # a writer has removed it meanwhile
        except (OSError, Damaged) as error:
            logger.warning("DAMAGED CHECKPOINT %s: %s; falling back to the one before", path, error)
            return False

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._worker = threading.Thread(target=work, args=arguments, name="elastic-checkpoint", daemon=True)
        self._worker.start()

    def _make_host(self, nbytes: int, step: int) -> None:
        """Memory for the copy. That the system hands it out, at its first use, takes longer than the copy itself."""
        try:
            self._host = np.empty(0, np.uint8)  # the former one is not needed beside it
            host = np.empty(nbytes, np.uint8)
            host.fill(0)
            self._host = host
        except MemoryError as error:
            self._last_step, self._last_time = step, time.monotonic()  # to be tried again when the next one is due
            logger.warning("no checkpoint of step %d: no memory for a copy of %d bytes: %s", step, nbytes, error)

    def _write_or_warn(self, step: int, meta: bytes, payload: Buffers) -> None:
        try:
            remove_leftovers(self.directory)
            self._write(step, meta, payload)
        except Exception as error:
            logger.warning(
                "the checkpoint of step %d could not be written to %s: %s; training goes on without it",
                step, self.directory, error,
            )  # fmt: skip

    def _write(self, step: int, meta: bytes, payload: Payload) -> Path:
        path = write(self.directory, step, meta, payload)
        older = [other for other, its_step in self._found() if its_step <= step]
        for other in older[self._keep :]:
            other.unlink(missing_ok=True)
        return path
