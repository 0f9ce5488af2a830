from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from elastic_launch.errors import RendezvousError, UsageError
from elastic_launch.launcher.endpoint import Endpoint, Seat, take_seat

NOT_HERE = "203.0.113.7"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = has_ipv6()


def seat_of(endpoint: Endpoint, limit: float = 20.0) -> Seat | None:
    return asyncio.run(take_seat(endpoint, limit))


def taken(endpoint: Endpoint) -> Seat:
    seat = seat_of(endpoint)
    assert seat is not None
    return seat


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("head", "head", 29400),
        ("head.example.com:80", "head.example.com", 80),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[fd00::1]", "fd00::1", 29400),
        ("[fd00::1]:81", "fd00::1", 81),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert Endpoint.parse(text) == Endpoint(host, port)


@pytest.mark.parametrize("text", ["", ":80", "a:b", "a:1:2", "fd00::1", "http://a:1", "a:65536", "a b:1"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no HOST:PORT"):
        Endpoint.parse(text)


def test_a_url_has_brackets_around_ipv6() -> None:
    assert Endpoint("fd00::1", 5).url == "http://[fd00::1]:5"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.3"])
def test_the_agent_of_the_named_machine_serves_at_the_address_that_it_is_named_by(host: str) -> None:
    seat = taken(Endpoint(host, 0))
    with seat.listener:
        expected = "127.0.0.1" if host == "localhost" else host
        assert (seat.address, seat.listener.getsockname()[0]) == (expected, expected)


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6 loopback")
def test_an_ipv6_address_is_one_too() -> None:
    seat = taken(Endpoint("::1", 0))
    with seat.listener:
        assert (seat.address, seat.listener.getsockname()[0]) == ("::1", "::1")


def test_a_machine_knows_its_own_name_and_tells_others_no_loopback_address() -> None:
    seat = taken(Endpoint(socket.gethostname(), 0))
    with seat.listener:
        listening = seat.listener.getsockname()[0]
        assert listening == seat.address or listening in ("0.0.0.0", "::")
        assert listening != "127.0.0.1"


def test_another_machine_s_endpoint_is_joined() -> None:
    assert seat_of(Endpoint(NOT_HERE, 29400)) is None


def test_a_second_agent_of_the_machine_joins_the_first(busy_port: int) -> None:
    assert seat_of(Endpoint("127.0.0.1", busy_port)) is None


def test_of_two_agents_that_come_at_once_one_serves() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def both() -> list[Seat | None]:
        return await asyncio.gather(*(take_seat(Endpoint("127.0.0.1", port), 5.0) for _ in range(8)))

    seats = [seat for seat in asyncio.run(both()) if seat is not None]
    assert len(seats) == 1
    seats[0].listener.close()


def test_who_is_to_serve_does_not_join_another(busy_port: int) -> None:
    with pytest.raises(UsageError, match=f"endpoint 127.0.0.1:{busy_port}: cannot serve the rendezvous"):
        seat_of(Endpoint("127.0.0.1", busy_port, serves=True))


def test_who_is_not_to_serve_joins_on_its_own_machine_too() -> None:
    assert seat_of(Endpoint("127.0.0.1", 29400, serves=False)) is None


def test_behind_an_address_that_is_not_its_own_it_serves_on_every_address_if_told_so() -> None:
    seat = taken(Endpoint(NOT_HERE, 0, serves=True))
    with seat.listener:
        assert seat.listener.getsockname()[0] == "0.0.0.0"
        assert seat.address != "0.0.0.0"


def test_any_free_port_is_for_the_machine_itself() -> None:
    with pytest.raises(UsageError, match=r"Give a port, such as 203\.0\.113\.7:29400"):
        seat_of(Endpoint(NOT_HERE, 0))


def test_a_name_that_is_never_known_is_an_error_that_says_so() -> None:
    with pytest.raises(RendezvousError, match=r"'no-such-host\.invalid' cannot be resolved: .* Looked for 1 s"):
        seat_of(Endpoint("no-such-host.invalid"), limit=1.0)
