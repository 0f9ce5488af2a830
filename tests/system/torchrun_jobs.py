"""Jobs of scripts that were written for torchrun: start them, and read what they have written down."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from .journals import Entry
from .launching import SCRIPTS, Command, Lab


def free_endpoint(host: str = "localhost") -> str:
    """HOST:PORT; the port is free at the time."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"{host}:{probe.getsockname()[1]}"


class TorchrunJob:
    """`scripts/digits_ddp.py` in one lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = lab.folder

    def launch(self, *flags: str, environment: dict[str, str] | None = None, **options: Any) -> Command:
        """An agent: the line is one of torchrun's, but for the program's name."""
        return self.lab.launch(*flags, script="digits_ddp.py", environment=environment, **options)

    def run(self, *line: str, environment: dict[str, str] | None = None) -> Command:
        """Any line."""
        command = Command("elastic_launch.launcher.main", line, environment)
        self.lab.commands.append(command)
        return command

    def script(self, name: str) -> str:
        return str(SCRIPTS / name)

    # --- what the scripts have written ---

    def entries(self, event: str, **fields: Any) -> list[Entry]:
        found: list[Entry] = []
        for file in self.folder.glob("ddp-*.jsonl"):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        wanted = [e for e in found if e["event"] == event and all(e.get(k) == v for k, v in fields.items())]
        return sorted(wanted, key=lambda entry: entry["time"])

    def newest(self, event: str = "ready") -> list[Entry]:
        """Those of the newest start, in the order of ranks."""
        entries = self.entries(event)
        last = max((restarts(entry) for entry in entries), default=-1)
        return sorted((e for e in entries if restarts(e) == last), key=lambda entry: int(entry["RANK"]))

    def wait_for_world(self, world_size: int, after: list[Entry] | None = None, limit: float = 90) -> list[Entry]:
        """The newest start, behind the one of `after`, once it is one of `world_size` scripts, and trains."""
        behind = restarts(after[0]) if after else -1

        def found() -> list[Entry]:
            entries = self.newest()
            is_it = entries and restarts(entries[0]) > behind and int(entries[0]["WORLD_SIZE"]) == world_size
            return entries if is_it and len(entries) == world_size else []

        entries: list[Entry] = self.lab.wait(found, limit, f"{world_size} scripts that train")
        return entries

    def wait_for_epochs(self, count: int = 1) -> None:
        """Until the newest start has finished that many more."""
        before = len(self.entries("epoch", RANK="0"))
        self.lab.wait(lambda: len(self.entries("epoch", RANK="0")) >= before + count, 60, f"{count} more epochs")

    def starts(self) -> list[int]:
        """The restart counts of which there are scripts that have trained."""
        return sorted({restarts(entry) for entry in self.entries("ready")})

    # --- what is told to them ---

    def finish(self) -> None:
        (self.folder / "finish").touch()

    def crash(self, rank: int) -> None:
        """By an exception."""
        (self.folder / f"crash-{rank}").touch()

    def exit(self, rank: int, code: int) -> None:
        note = self.folder / f"note-{rank}"
        note.write_text(str(code))
        note.rename(self.folder / f"exit-{rank}")

    def assert_resumed(self) -> None:
        """Every start went on from the newest checkpoint that had been written before it, with its weights."""
        saved = {entry["epoch"]: entry["weights"] for entry in self.entries("epoch")}
        for entry in self.entries("ready"):
            if entry["epoch"] >= 0:
                assert entry["weights"] == saved[entry["epoch"]], entry
        epochs = [entry["epoch"] for entry in self.entries("epoch", RANK="0")]
        assert epochs == sorted(epochs), "the epochs only go forward, but for the one that was interrupted"
        assert set(epochs) == set(range(max(epochs) + 1)), "no epoch is left out"


def restarts(entry: Entry) -> int:
    return int(entry["TORCHELASTIC_RESTART_COUNT"])
