"""Where an agent looks for the server that leads."""

from __future__ import annotations

import asyncio
import socket

import pytest

from elastic_launch.rendezvous.replicas import ReplicaFinder
from elastic_launch.rendezvous.server import Server

from .agents import new_agent
from .conftest import Run


@pytest.fixture
def name_with_two_addresses(monkeypatch: pytest.MonkeyPatch) -> str:
    """The system's resolver cannot be told of a name without the machine's own files."""
    look_up = socket.getaddrinfo

    def answer(host: str, *arguments: object, **options: object) -> object:
        if host != "replicas.test":
            return look_up(host, *arguments, **options)  # type: ignore[call-overload]
        return [entry for each in ("127.0.0.1", "127.0.0.2") for entry in look_up(each, *arguments, **options)]  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return "replicas.test"


def test_each_address_of_a_name_is_tried_in_turn(run: Run, name_with_two_addresses: str) -> None:
    async def scenario() -> None:
        finder = ReplicaFinder([f"ws://{name_with_two_addresses}:7/x", "ws://127.0.0.3:8/x"])
        tried = [await finder.next_address() for _ in range(4)]
        assert [each.options.get("host") for each in tried] == ["127.0.0.1", "127.0.0.2", None, "127.0.0.1"]
        assert [each.url for each in tried[1:3]] == [f"ws://{name_with_two_addresses}:7/x", "ws://127.0.0.3:8/x"]

    run(scenario())


def test_a_server_behind_the_second_address_of_a_name_is_found(run: Run, name_with_two_addresses: str) -> None:
    async def scenario() -> None:
        server = await Server.start(host="127.0.0.2")
        try:
            port = server.url.rpartition(":")[2]
            async with new_agent(f"http://{name_with_two_addresses}:{port}", "a") as agent:
                async with asyncio.timeout(5):
                    while not agent.client.connected:
                        await asyncio.sleep(0.01)
        finally:
            await server.stop()

    run(scenario())


def test_where_a_replica_points_to_comes_first_and_only_so_many_times_in_a_row(run: Run) -> None:
    async def scenario() -> None:
        finder = ReplicaFinder(["ws://127.0.0.1:1/x"])
        assert (await finder.next_address()).url == "ws://127.0.0.1:1/x"
        for hop in range(3):
            assert finder.follow(f"https://127.0.0.9:{hop + 1}/x")
            assert (await finder.next_address()).url == f"wss://127.0.0.9:{hop + 1}/x"
        assert not finder.follow("http://127.0.0.9:5/x"), "they send it round in circles"
        assert (await finder.next_address()).url == "ws://127.0.0.1:1/x"

    run(scenario())


@pytest.mark.parametrize("location", ["", "nonsense", "file:///etc/passwd", "http:///x"])
def test_nonsense_is_not_followed(location: str) -> None:
    assert not ReplicaFinder(["ws://127.0.0.1:1/x"]).follow(location)


def test_a_name_that_nobody_knows_is_an_error(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(OSError):
            await ReplicaFinder(["ws://nowhere.invalid:1/x"]).next_address()

    run(scenario())
