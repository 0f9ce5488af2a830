"""The stores that a server can be measured with."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.jobs import ROOT, Program, ending, wait_for

MISSING = "there is no etcd on the path, or the server has no --store"


@contextmanager
def serving(store: str, folder: Path) -> Iterator[list[str] | None]:
    """The server's flags for this store, an etcd with an empty folder of its own running. None where that cannot be."""
    if store == "memory":
        yield []
    elif store != "etcd":
        yield ["--store", store]
    elif shutil.which("etcd") is None or not _server_takes_stores():
        yield None
    else:
        client, peer = _free_port(), _free_port()
        with TemporaryDirectory(dir=folder) as data:
            command = [
                *("etcd", "--data-dir", data, "--log-level", "error"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ]
            etcd = Program(command, folder / "etcd.log")
            with ending(etcd):
                address = client.removeprefix("http://")
                wait_for(lambda: _answers(address), 30, "etcd", etcd)
                # While thousands arrive, the server cannot renew a lease of 3 s in time, and would give up its lead.
                yield ["--store", f"etcd://{address}", "--leader-lease", "15"]


def _server_takes_stores() -> bool:
    command = [sys.executable, "-m", "elastic_launch.rendezvous.main", "--help"]
    return "--store" in subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout


def _answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
