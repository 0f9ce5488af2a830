"""The pickles of Horovod's protocol: what a process sends is believed to be anything, and what it gets is what it expects."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_launch.errors import RendezvousError
from elastic_launch.launcher.horovod.pickles import LONGEST, hosts_updated, read_addresses

KEY = b"k" * 32


def sent(value: Any) -> bytes:
    return base64.b64encode(pickle.dumps(value, protocol=5))


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_addresses_and_key_are_read() -> None:
    found = read_addresses(sent(({"lo": [("127.0.0.1", 5)], "eth0": [("10.0.0.1", 5)]}, KEY)))
    assert (found.port, found.key) == (5, KEY)


def test_a_pickle_that_names_anything_is_refused_before_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Evil(), ({"lo": [("127.0.0.1", Evil())]}, KEY), ({"lo": [("127.0.0.1", 5)]}, Path("key"))):
        with pytest.raises(RendezvousError, match=r"names (posix|pathlib)\.\w+, and only plain values may be in it"):
            read_addresses(sent(value))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        base64.b64encode(b"no pickle"),
        base64.b64encode(b"\x80\x04P1\n."),
        sent(5),
        sent(({}, KEY)),
        sent(({"lo": [("127.0.0.1", 70000)]}, KEY)),
        sent(({"lo": [("127.0.0.1", "5")]}, KEY)),
        sent(({"lo": [("127.0.0.1", 5)]}, b"short")),
        sent([{"lo": 5}, KEY]),
        b"A" * (LONGEST + 1),
    ],
)
def test_what_is_not_as_horovod_sends_it_is_refused(body: bytes) -> None:
    with pytest.raises(RendezvousError, match="a worker's addresses"):
        read_addresses(body)


def test_horovod_reads_a_notification_as_its_own(horovod: Path) -> None:
    reading = (
        "import pickle, sys; said = pickle.load(sys.stdin.buffer);"
        "from horovod.runner.elastic.worker import HostsUpdatedRequest, HostUpdateResult;"
        "assert type(said) is HostsUpdatedRequest;"
        "assert (said.timestamp, said.res) == (12.5, HostUpdateResult.added)"
    )
    environ = {**os.environ, "PYTHONPATH": str(horovod)}
    subprocess.run([sys.executable, "-c", reading], input=hosts_updated(12.5), env=environ, check=True, timeout=60)
