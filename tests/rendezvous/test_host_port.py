"""HOST:PORT, which can be taken apart again."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.host_port import host_port


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("head.local", "head.local:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("[fd00::1]", "[fd00::1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ("a:5", "a:5:80"),  # no address: not made to look like one
    ],
)
def test_only_ipv6_addresses_stand_in_brackets(host: str, written: str) -> None:
    assert host_port(host, 80) == written
