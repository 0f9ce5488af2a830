"""An etcd of one's own: there when it is needed, gone with its owner."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.stores.etcd import process as etcd_process
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.process import EtcdFailed, EtcdProcess, find_etcd, own_etcd
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore

from .conftest import LIMIT
from .etcds import etcd_binary, running_etcd

REPOSITORY = Path(__file__).parents[2]
OWNER = """
import time
from elastic_launch.rendezvous.stores.etcd.process import own_etcd
with own_etcd() as address:
    print(address.endpoints[0], flush=True)
    time.sleep(60)
"""


def etcds_below(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    etcd_binary("3.5")
    return tmp_path


def test_an_own_etcd_answers_on_loopback_and_leaves_nothing(temporary: Path) -> None:
    async def use(address: EtcdAddress) -> None:
        store = EtcdStore(address)
        assert await store.compare_and_set("a", b"", 0)
        await store.close()

    with own_etcd() as address:
        asyncio.run(use(address))
        (etcd,) = etcds_below(temporary)
        listening = [found.laddr.ip for found in etcd.net_connections("tcp") if found.status == "LISTEN"]
        assert listening and set(listening) == {"127.0.0.1"}
    assert not etcd.is_running()
    assert list(temporary.iterdir()) == []


def test_many_own_etcds_do_not_meet(temporary: Path) -> None:
    with own_etcd() as one, own_etcd() as other:
        assert one.endpoints != other.endpoints


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_an_own_etcd_dies_with_its_owner_and_its_data_with_the_next(temporary: Path, ending: int) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=REPOSITORY, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        (etcd,) = etcds_below(temporary)
        with own_etcd():
            assert len(list(temporary.iterdir())) == 2, "that of a living owner stays"
        owner.send_signal(ending)
    psutil.wait_procs([etcd], LIMIT)
    assert not etcd.is_running()
    assert len(list(temporary.iterdir())) == 1
    with own_etcd():
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


def test_options_of_another_etcd_are_not_taken(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
    monkeypatch.setenv("ETCD_NAME", "somebody")
    with own_etcd() as address:
        assert address.endpoints[0].startswith("127.0.0.1:")


def test_without_a_binary_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(etcd_process, "packaged_etcd", lambda: None)
    with pytest.raises(UsageError, match=r"no etcd is installed here: .* or give the address of one that runs"):
        with own_etcd():
            pass


def test_a_script_named_etcd_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("a", b"#!/bin/sh\n"), ("b", b"\x7fELF")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "etcd").write_bytes(content)
        (tmp_path / name / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    assert find_etcd() == f"{tmp_path}/b/etcd"
    with pytest.raises(UsageError, match=f"{tmp_path}/b/etcd cannot be run"):
        with own_etcd():
            pass


def test_an_etcd_that_ends_says_why(tmp_path: Path) -> None:
    with running_etcd("3.5") as other:
        begun = time.monotonic()
        failing = EtcdProcess(etcd_binary("3.5"), tmp_path, url=f"http://{other.endpoint}")
        with pytest.raises(EtcdFailed, match=r"ended with exit code 1: .*address already in use"):
            failing.wait_until_ready()
        assert time.monotonic() - begun < LIMIT


def test_an_etcd_that_is_not_ready_in_time_is_given_up(tmp_path: Path) -> None:
    """It waits for a peer that there is not."""
    arguments = ["--initial-cluster", "default=http://127.0.0.1:1,other=http://127.0.0.1:2"]
    arguments += ["--initial-advertise-peer-urls", "http://127.0.0.1:1"]
    etcd = EtcdProcess(etcd_binary("3.5"), tmp_path, arguments=arguments)
    with pytest.raises(EtcdFailed, match="not ready within 1 s; the end of its log"):
        etcd.wait_until_ready(within=1.0)
    etcd.signal(signal.SIGSTOP)
    etcd.stop()
    etcd.stop()
    assert not etcd.is_alive()


@pytest.mark.parametrize(("version", "warnings"), [("3.4", 0), ("3.5", 1)])
def test_a_version_that_damages_data_is_warned_of(
    version: str, warnings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = etcd_binary(version)
    monkeypatch.setattr(etcd_process, "find_etcd", lambda: binary)
    with caplog.at_level(logging.WARNING), own_etcd():
        pass
    assert sum("can damage its data" in message for message in caplog.messages) == warnings
