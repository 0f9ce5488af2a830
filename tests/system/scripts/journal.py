"""How a training script of the system tests writes down what it sees, and hears what the test wants of it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from elastic_launch.trainer import probe


class Journal:
    """One file of JSON lines for this process, in the folder of the job."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.local_rank = int(os.environ.get("ELASTIC_LOCAL_RANK", "0"))
        self.first_life = not (self.folder / f"born-{self.local_rank}").exists()
        (self.folder / f"born-{self.local_rank}").touch()
        self._file = open(self.folder / f"{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115
        self._traces = open(self.folder / f"{os.getpid()}.traces", "a")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=self._traces, all_threads=True)
        probe.on_reach = self._reached

    def __call__(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **fields}) + "\n")

    def finish_wanted(self) -> bool:
        return (self.folder / "finish").exists()

    def hold(self, place: str) -> None:
        """Wait here as long as the test wants it."""
        note = self.folder / f"hold-{place}"
        if note.exists():
            self("held", place=place)
            while note.exists():
                time.sleep(0.005)
            self("let go", place=place)

    def once(self, name: str) -> bool:
        """True for the first process of the job that asks."""
        try:
            (self.folder / f"once-{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _reached(self, point: str, generation: int) -> None:
        try:
            (self.folder / f"death-{point}-{self.local_rank}").unlink()  # a note is one death: agents share local ranks
        except FileNotFoundError:
            return
        self("death", point=point, generation=generation)
        os.kill(os.getpid(), signal.SIGKILL)
