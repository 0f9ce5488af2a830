"""Which hosts are this one, and how the others reach it."""

from __future__ import annotations

import socket

from elastic_launch.launcher.hosts.places import find_place, is_this_host


def test_this_host_is_known_by_its_names() -> None:
    for name in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        assert is_this_host(name), name


def test_other_names_and_users_are_other_hosts() -> None:
    for name in ("127.0.0.2", "no-such-host.invalid", "me@localhost", "192.0.2.1"):
        assert not is_this_host(name), name


def test_a_host_is_given_the_address_on_the_way_to_it() -> None:
    assert find_place("127.0.0.2", []).addresses == ("127.0.0.1",)
    assert find_place("me@127.0.0.2", []).addresses == ("127.0.0.1",)


def test_an_agent_here_takes_the_address_that_others_can_reach() -> None:
    assert find_place("localhost", ["localhost", "127.0.0.2"]).addresses == ("127.0.0.1",)


def test_a_name_that_only_the_remote_shell_knows_gets_addresses_to_try() -> None:
    place = find_place("no-such-host.invalid", [])
    assert not place.is_here
    assert place.addresses
