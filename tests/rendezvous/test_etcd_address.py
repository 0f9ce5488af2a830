"""What a user may write for an etcd, and what is answered to anything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.memory import MemoryStore
from elastic_launch.rendezvous.stores.opening import open_store


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("etcd://h:2379", EtcdAddress(("h:2379",))),
        ("etcd://h:2379/", EtcdAddress(("h:2379",), prefix="/elastic-launch/")),
        ("etcd://h1:1,h-2.ns.svc:65535/a/b", EtcdAddress(("h1:1", "h-2.ns.svc:65535"), prefix="/a/b/")),
        ("etcd://[::1]:2379,10.0.0.1:2379/a/", EtcdAddress(("[::1]:2379", "10.0.0.1:2379"), prefix="/a/")),
        ("etcd://me:p%40ss%3A%2F@h:2379", EtcdAddress(("h:2379",), user="me", password="p@ss:/")),
        ("etcds://h:2379", EtcdAddress(("h:2379",), tls=True)),
        (
            "etcds://me:x@h:2379/p?ca=/c/ca.pem&cert=c.pem&key=k.pem",
            EtcdAddress(("h:2379",), "me", "x", True, "/c/ca.pem", "c.pem", "k.pem", "/p/"),
        ),
    ],
)
def test_an_address_is_read(text: str, address: EtcdAddress) -> None:
    assert EtcdAddress.parse(text) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h:2379", "does not begin with etcd:// or etcds://"),
        ("http://h:2379", "does not begin with"),
        ("etcd:h:2379", "does not begin with"),
        ("etcd://", "is not HOST:PORT"),
        ("etcd://h", "'h' is not HOST:PORT"),
        ("etcd://h:2379,", "'' is not HOST:PORT"),
        ("etcd://h:0", "'0' is not a port"),
        ("etcd://h:65536", "is not a port"),
        ("etcd://h:port", "'port' is not a port"),
        ("etcd://:2379", "is not HOST:PORT"),
        ("etcd://::1:2379", r"stands in brackets: \[::1\]:2379"),
        ("etcd://[::1]", "is not HOST:PORT"),
        ("etcd://[h]:2379", "is not"),
        ("etcd://[::1:2379", "Invalid IPv6"),
        ("etcd://h h:2379", "is not the name of a host"),
        ("etcd://h:1,h:1", "twice"),
        ("etcd://@h:2379", "no user"),
        ("etcd://me@h:2379", "no password for user 'me': put it into ELASTIC_ETCD_PASSWORD"),
        ("etcd://me:a@b@h:2379", "write %40"),
        ("etcd://me:a#b@h:2379", "write %23"),
        ("etcd://h:2379/a b", "printable ASCII"),
        ("etcd://h:2379?ca=f", "begin with etcds://"),
        ("etcds://h:2379?ca", "is not NAME=FILE"),
        ("etcds://h:2379?ca=", "empty"),
        ("etcds://h:2379?ca=f&ca=g", "twice"),
        ("etcds://h:2379?cacert=f", "'cacert' is not known"),
        ("etcds://h:2379?cert=f", "together"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        EtcdAddress.parse(text)
    assert "Give etcd://HOST:2379" in str(raised.value)


def test_a_password_is_taken_from_the_environment_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", "sesame")
    address = EtcdAddress.parse("etcd://me@h:2379")
    assert (address.user, address.password) == ("me", "sesame")
    assert EtcdAddress.parse("etcd://me:other@h:2379").password == "other"
    assert "sesame" not in repr(address)
    for wrong in ("etcd://me:sesame@h:0", "etcd://me:sesame@h", "etcd://me:ses@sesame@h:1"):
        with pytest.raises(UsageError) as raised:
            EtcdAddress.parse(wrong)
        assert "sesame" not in str(raised.value)


def test_a_store_is_opened_by_its_name() -> None:
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store("etcd://127.0.0.1:1"), EtcdStore)
    with pytest.raises(UsageError, match="'redis://h' is not a store: give memory, etcd://"):
        open_store("redis://h")
    with pytest.raises(UsageError, match=r"the file '/no/ca.pem' .* cannot be read: No such file"):
        open_store("etcds://h:2379?ca=/no/ca.pem")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )


def test_a_server_without_etcd_needs_none_of_its_packages() -> None:
    done = python(
        "import sys\n"
        "import elastic_launch.launcher.main, elastic_launch.rendezvous.main\n"
        "from elastic_launch.rendezvous.stores.etcd import process as etcd_process\n"
        "from elastic_launch.rendezvous.stores.opening import open_store\n"
        "open_store('memory')\n"
        "print({'grpc', 'aetcd', 'google.protobuf'} & set(sys.modules))\n"
    )
    assert done.stdout == "set()\n", done


@pytest.mark.parametrize("package", ["aetcd", "grpc"])
def test_a_missing_package_is_named_with_the_way_out(package: str) -> None:
    done = python(
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from elastic_launch.rendezvous.stores.opening import open_store\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        open_store('etcd://h:2379')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    assert done.stdout.count("UsageError") == 2, done
    assert done.stdout.count("pip install 'elastic-launch[etcd]'") == 2
    assert package in done.stdout
