"""Hosts as people, hostfiles and discovery scripts write them."""

from __future__ import annotations

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.launcher.hosts.listing import Host, parse_discovered, parse_hostfile, parse_hosts


def test_hosts_have_their_own_slots_or_the_default() -> None:
    assert parse_hosts("h1:2, h-2.example.com ,10.0.0.3:16", 4) == (
        Host("h1", 2),
        Host("h-2.example.com", 4),
        Host("10.0.0.3", 16),
    )


def test_an_address_of_ipv6_stands_in_brackets_and_a_user_before_the_host() -> None:
    assert parse_hosts("[fd00::7]:2,[::1],me@h1:3", 1) == (Host("fd00::7", 2), Host("::1", 1), Host("me@h1", 3))


def test_a_hostfile_may_be_mpiruns_or_horovods() -> None:
    text = "# a comment\nh1 slots=2\nh2 slots=3 max_slots=4\n\n  h3:5   # five\nh4\nh1 slots=1\n"
    assert parse_hostfile(text, 7) == (Host("h1", 3), Host("h2", 3), Host("h3", 5), Host("h4", 7))


def test_a_host_that_a_script_prints_twice_counts_once() -> None:
    assert parse_discovered("h1:2\nh2\n\nh1:2\n", 3) == (Host("h1", 2), Host("h2", 3))
    assert parse_discovered("\n", 3) == ()


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x", "h1:", "h1:-1", "h1:0", "h1:1.5", "h1:2:3", "a b", "h;ls", "h1:70000"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    for parse in (parse_hosts, parse_discovered):
        with pytest.raises(UsageError, match=r"is no host|has no number of slots"):
            parse(text, 1)
