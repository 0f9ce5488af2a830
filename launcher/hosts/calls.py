"""Agents whose remote shell passes them no standard input, such as Kubeflow's kubexec.sh: they call their launcher instead.

Such an agent finds on its command line where to call and a ticket, which is good for one call. It is then told over the
connection what others are told over their standard input, and hangs on it as they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable, Iterable

from ...rendezvous.host_port import host_port
from ...rendezvous.server import listen

FLAG = "--call"
_LIMIT = 10.0  # seconds for a caller to show its ticket, and for an agent to be heard
_LONGEST = 256  # bytes

Answer = Callable[[asyncio.StreamWriter], None]


class Calls:
    """The launcher's side: it listens from `start` to `close`."""

    def __init__(self, server: asyncio.Server, port: int, answers: dict[str, Answer]) -> None:
        self._server = server
        self._port = port
        self._answers = answers

    @classmethod
    async def start(cls, address: str) -> Calls:
        """RendezvousError if it cannot listen there."""
        answers: dict[str, Answer] = {}
        listener = listen(address, 0)

        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answer = await _awaited(reader, answers)
            if answer is None:
                writer.close()
            else:
                answer(writer)

        server = await asyncio.start_server(called, sock=listener, limit=_LONGEST)
        return cls(server, listener.getsockname()[1], answers)

    def invite(self, addresses: Iterable[str], answer: Answer) -> tuple[str, ...]:
        """What an agent's command line gets, so that its call is answered by `answer`."""
        ticket = secrets.token_hex(16)
        self._answers[ticket] = answer
        return (FLAG, ",".join(host_port(address, self._port) for address in addresses), ticket)

    def withdraw(self, invitation: tuple[str, ...]) -> None:
        self._answers.pop(invitation[-1], None)

    def close(self) -> None:
        self._server.close()


async def _awaited(reader: asyncio.StreamReader, answers: dict[str, Answer]) -> Answer | None:
    """Whoever the caller's ticket is for; it is used up."""
    shown = b""
    with contextlib.suppress(asyncio.TimeoutError, ValueError, ConnectionError):
        shown = (await asyncio.wait_for(reader.readline(), _LIMIT)).strip()
    found = [ticket for ticket in answers if hmac.compare_digest(ticket.encode(), shown)]
    return answers.pop(found[0]) if found else None


def call(addresses: str, ticket: str) -> socket.socket:
    """The agent's side. OSError if the launcher is reached at none of its addresses."""
    failure = OSError("no address was given")
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), _LIMIT)
        except OSError as error:
            failure = error
            continue
        connection.sendall(ticket.encode() + b"\n")
        connection.settimeout(None)
        return connection
    raise failure
