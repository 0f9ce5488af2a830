"""All output of an agent and its workers: builds the way of each stream from what was asked for, and owns the threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import prefixes
from .lines import LinePrefixer
from .prefixes import Label
from .routing import Streams
from .settings import OutputSettings
from .sinks import Descriptor, LogFile
from .spool import Spool
from .tracebacks import Folder, Shown
from .writing import OutputThread

_NAMES = {1: "standard output", 2: "standard error"}


class Output:
    """The console, and files. To be closed when everything has been said."""

    def __init__(self, settings: OutputSettings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.shown = Shown()
        self.consoles = {number: Descriptor(number, name) for number, name in _NAMES.items()}
        self.has_colours = {number: prefixes.wants_colour(number, environ) for number in _NAMES}
        self.console = OutputThread(self._complain, "console", Spool())
        self.files = OutputThread(self._complain, "log-files")
        self._logs: dict[Path, LogFile] = {}

    def destinations(self, slot: int, logs: Path | None) -> tuple[Destination, Destination]:
        """Of a process's standard output and error: the console, and files in `logs`. OSError if one cannot be opened."""
        output = Destination(self, Streams.OUT, slot, logs)
        try:
            return output, Destination(self, Streams.ERR, slot, logs)
        except OSError:
            output.close()
            raise

    def say(self, host: str, text: str, log: LogFile | None = None) -> None:
        """The agent's own words, on standard error."""
        lines = text.splitlines()
        prefix = prefixes.agents_own(host, self.settings.prefix)
        if log is not None:
            in_file = prefixes.agents_own(host, "time")
            self.files.write(log, _joined(lines, in_file))
        if self.has_colours[2]:
            prefix = prefixes.bold(prefix)
        self.console.write(self.consoles[2], _joined(lines, prefix))

    def prefix(self, label: Label, stream: int) -> bytes:
        text = prefixes.in_style(label, self.settings.prefix)
        return (prefixes.coloured(text, label) if self.has_colours[stream] else text).encode(errors="replace")

    def open_log(self, path: Path) -> LogFile:
        """OSError."""
        return LogFile(path, self.settings.most_bytes, self.settings.files)

    def open_common_log(self, path: Path) -> LogFile:
        """One for all who write to it; stays open. OSError."""
        if path not in self._logs:
            self._logs[path] = self.open_log(path)
        return self._logs[path]

    def close(self, limit: float) -> bool:
        """False if nothing could be written for `limit` seconds, and something is lost."""
        for log in self._logs.values():
            self.files.close_sink(log)
        written = self.files.close(limit)
        return self.console.close(limit) and written

    def _complain(self, text: str) -> None:
        if "standard error" not in text:
            self.console.write(self.consoles[2], f"elastic-launch: {text}\n".encode(errors="replace"))


class Destination:
    """Where one stream of one process goes."""

    def __init__(self, output: Output, stream: Streams, slot: int, logs: Path | None) -> None:
        self._output = output
        self._stream = int(stream)
        self._console = output.consoles[self._stream]
        self._route = output.settings.routing.route(slot, stream)
        self._prefixer = LinePrefixer()
        self._folder: Folder | None = None
        if stream == Streams.ERR and output.settings.folds_tracebacks and slot >= 0:
            self._folder = Folder(output.shown)
        self._log: LogFile | None = None
        self._wanted = tuple(text.encode() for text in output.settings.duplicates.get(self._stream, ()))
        self._duplicates: LogFile | None = None
        self._duplicates_prefixer = LinePrefixer()
        if logs is not None:
            name = "stdout" if stream == Streams.OUT else "stderr"
            if self._route.file:
                self._log = output.open_log(logs / f"{name}.log")
            if self._route.duplicate and self._wanted:
                self._duplicates = output.open_common_log(logs.parent / f"filtered_{name}.log")

    def write(self, data: bytes, label: Label) -> None:
        if self._route.console:
            shown = data if self._folder is None else self._folder.feed(data, _who(label))
            self._show(self._prefixer.feed(shown, self._output.prefix(label, self._stream)))
        if self._log is not None:
            self._output.files.write(self._log, data)
        if self._duplicates is not None:
            self._duplicate(self._duplicates_prefixer.feed(data, self._plain_prefix(label)))

    def finish(self, label: Label) -> None:
        """The stream has ended."""
        if self._route.console:
            rest = b"" if self._folder is None else self._folder.finish()
            prefix = self._output.prefix(label, self._stream)
            self._show(self._prefixer.feed(rest, prefix) + self._prefixer.finish(prefix))
        if self._duplicates is not None:
            self._duplicate(self._duplicates_prefixer.finish(self._plain_prefix(label)))
        self.close()

    def close(self) -> None:
        if self._log is not None:
            self._output.files.close_sink(self._log)
            self._log = None

    def full_thread(self) -> OutputThread | None:
        """A thread that cannot keep up, and that this stream is to wait for."""
        output = self._output
        if self._route.console and output.console.is_full:
            return output.console
        if self._log is not None and output.files.is_full:
            return output.files
        return None

    def _show(self, data: bytes) -> None:
        self._output.console.write(self._console, data)

    def _plain_prefix(self, label: Label) -> bytes:
        return prefixes.in_style(label, self._output.settings.prefix).encode(errors="replace")

    def _duplicate(self, lines: bytes) -> None:
        assert self._duplicates is not None
        wanted = [line for line in lines.splitlines(keepends=True) if any(text in line for text in self._wanted)]
        self._output.files.write(self._duplicates, b"".join(wanted))


def _who(label: Label) -> str:
    return f"rank {label.rank}" if label.generation else f"worker {label.slot}"


def _joined(lines: list[str], prefix: str) -> bytes:
    return "".join(f"{prefix}{line}\n" for line in lines).encode(errors="backslashreplace")
