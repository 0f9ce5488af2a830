"""Agents without standard input call their launcher, once, with their ticket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from elastic_launch.launcher.hosts.calls import Calls, call


def test_a_ticket_is_good_for_one_call() -> None:
    async def session() -> None:
        calls = await Calls.start("127.0.0.1")
        answered: list[int] = []

        def answer(writer: asyncio.StreamWriter) -> None:
            answered.append(1)
            writer.write(b"hello\n")

        flag, addresses, ticket = calls.invite(["127.0.0.1"], answer)
        assert flag == "--call"
        assert await asyncio.to_thread(_what_is_said, addresses, ticket) == b"hello\n"
        assert await asyncio.to_thread(_what_is_said, addresses, ticket) == b""
        assert await asyncio.to_thread(_what_is_said, addresses, "") == b""
        assert await asyncio.to_thread(_what_is_said, addresses, "x" * 10_000) == b""
        assert answered == [1]
        withdrawn = calls.invite(["127.0.0.1"], answer)
        calls.withdraw(withdrawn)
        assert await asyncio.to_thread(_what_is_said, *withdrawn[1:]) == b""
        calls.close()

    asyncio.run(session())


def test_addresses_are_tried_in_turn() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = closed.getsockname()[1]
        with call(f"127.0.0.1:{nobody},127.0.0.1:{port}", "ticket"):
            caller, _ = listener.accept()
            assert caller.recv(100) == b"ticket\n"
            caller.close()
        with pytest.raises(OSError):
            call(f"127.0.0.1:{nobody}", "ticket")


def _what_is_said(addresses: str, ticket: str) -> bytes:
    with call(addresses, ticket) as connection:
        connection.settimeout(5)
        try:
            return connection.recv(100)
        except ConnectionResetError:
            return b""
