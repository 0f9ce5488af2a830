from __future__ import annotations

import socket

import pytest

from elastic_launch.launcher.address import (
    AddressError,
    address_of_interface,
    address_towards,
    address_towards_any,
    checked_address,
    interface_with,
)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")


def test_a_server_on_this_host_is_reached_from_the_loopback_address() -> None:
    assert address_towards("http://127.0.0.1:1234") == "127.0.0.1"


@needs_ipv6
def test_an_ipv6_server_is_reached_from_an_ipv6_address() -> None:
    assert address_towards("http://[::1]:1234") == "::1"


def test_a_server_without_an_address_is_an_error() -> None:
    with pytest.raises(OSError):
        address_towards("http://no-such-host.invalid:1234")


def test_a_name_of_this_host_becomes_a_number() -> None:
    assert checked_address("localhost") in ("127.0.0.1", "::1")


@needs_ipv6
def test_ipv6_may_stand_in_brackets() -> None:
    assert checked_address("[::1]") == "::1"


def test_an_interface_has_an_address() -> None:
    assert address_of_interface("lo") == "127.0.0.1"


def test_an_unknown_interface_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(AddressError, match=r"this host has .*lo"):
        address_of_interface("nowhere0")


def test_a_replica_whose_name_is_gone_does_not_hide_the_others() -> None:
    assert address_towards_any(["http://no-such-host.invalid:1", "http://127.0.0.1:2"]) == "127.0.0.1"
    with pytest.raises(OSError):
        address_towards_any(["http://no-such-host.invalid:1", "http://no-such-host.invalid:2"])


def test_an_address_is_known_by_its_interface() -> None:
    for _, name in socket.if_nameindex():
        try:
            address = address_of_interface(name)
        except AddressError:
            continue
        assert interface_with(address) == name
    assert interface_with("203.0.113.7") == ""


@needs_ipv6
def test_an_ipv6_address_is_known_by_its_interface_too() -> None:
    assert interface_with("::1") == "lo"
