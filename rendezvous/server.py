"""Serving the rendezvous inside an event loop that is already there: an agent's, a test's, or the command's own.

A stop takes well under a second however many agents are connected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from dataclasses import replace

import uvicorn

from .host_port import host_port
from .http.app import Election, create_app
from .http.face import Face
from .job import NewMembership
from .jobs import Jobs
from .listening import listen
from .membership.machine import Membership
from .membership.members import Timing
from .quiet_server import QuietServer
from .route import address_on_the_way_to
from .stores.memory import MemoryStore
from .stores.store import Store
from .waiting import is_set_within

__all__ = ["Election", "Server", "create_app", "listen"]


class Server:
    """A running server: it serves once `Server.start(...)` has returned, and is gone once `stop()` has."""

    def __init__(
        self,
        listener: socket.socket,
        store: Store,
        timing: Timing,
        new_membership: NewMembership = Membership,
        election: Election | None = None,
        face: Face = Face(),
    ) -> None:
        tls = face.tls
        self.url = url_of(listener, scheme=face.scheme)
        self._listener = listener
        self._app = create_app(store, timing, new_membership, election, face)
        self._uvicorn = QuietServer(
            uvicorn.Config(
                self._app,
                http="h11",
                ws="websockets-sansio",
                ws_max_size=face.limits.message,
                ws_ping_interval=None,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        host: str = "127.0.0.1",
        port: int = 0,
        store: Store | None = None,
        timing: Timing | None = None,
        new_membership: NewMembership = Membership,
        election: Election | None = None,
        face: Face = Face(),
        listener: socket.socket | None = None,
    ) -> Server:
        """Listens on `host` and `port` (0 for any free one), or on `listener`. RendezvousError if that cannot be.

        With `election` it is one of the replicas that share `store`.
        """
        listener = listener or listen(host, port)
        if election is not None and not election.url:
            election = replace(election, url=url_of(listener, election.towards, face.scheme))
        server = cls(listener, store or MemoryStore(), timing or Timing(), new_membership, election, face)
        server._serving = asyncio.ensure_future(server._uvicorn.serve(sockets=[server._listener]))
        return server

    @property
    def jobs(self) -> Jobs:
        """Its jobs, for whoever commands them from within the same event loop."""
        jobs: Jobs = self._app.state.jobs
        return jobs

    @property
    def connected_agents(self) -> int:
        return len(self._app.state.jobs.connections)

    async def wait(self) -> None:
        """Until the server ends, which it does only by `stop` or an error; an error is raised."""
        assert self._serving is not None
        await asyncio.shield(self._serving)

    async def wait_until_deserted(self, job: str, timeout: float) -> bool:
        """Whether every agent of the job has gone within `timeout` seconds: whoever serves should be the last to leave."""
        known = self._app.state.jobs.get(job)
        if known is None:
            return True
        return await is_set_within(known.deserted, timeout if math.isfinite(timeout) else None)

    async def stop(self) -> None:
        """Ends the port, all jobs' tasks and all connections. May be called again."""
        if self._serving is None:
            return
        await self._app.state.jobs.stop()
        await self._uvicorn.end(self._serving)
        self._listener.close()


def _address_towards(place: str) -> str:
    """This host's own address on the way to HOST:PORT; empty if there is none."""
    host, _, port = place.rpartition(":")
    try:
        return address_on_the_way_to(host.strip("[]"), int(port)) if host else ""
    except (OSError, ValueError):
        return ""


def _is_no_denial(record: logging.LogRecord) -> bool:
    return record.msg != "ASGI callable returned without completing handshake."


# uvicorn logs an error for every WebSocket that is answered in plain HTTP: redirected, refused, put off.
logging.getLogger("uvicorn.error").addFilter(_is_no_denial)


def url_of(listener: socket.socket, towards: str = "", scheme: str = "http") -> str:
    """SCHEME://ADDRESS:PORT; of a listener on all addresses, the one from which this host speaks to `towards` (HOST:PORT).

    Without `towards`, or a way to it, that of this machine's loopback.
    """
    address, port = listener.getsockname()[:2]
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    if address in loopback:
        address = _address_towards(towards) or loopback[address]
    return f"{scheme}://{host_port(address, port)}"
