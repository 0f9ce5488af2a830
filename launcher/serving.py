"""The rendezvous server inside an agent: nothing else needs to be started, but its death ends the job's ability to change."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ..errors import ElasticError, RendezvousError
from ..rendezvous.messages import JobSpec
from .options import Options

if TYPE_CHECKING:
    from ..rendezvous.job import Job
    from ..rendezvous.server import Server


class PortError(ElasticError):
    """The server in this agent cannot listen where it should; the message says what to do."""


class JobServer:
    """A running server with a memory store."""

    def __init__(self, server: Server, job: str) -> None:
        self._server = server
        self._job = job
        self.url = server.url

    @classmethod
    async def start(
        cls, address: str, options: Options, spec: JobSpec, listener: socket.socket | None = None
    ) -> JobServer:
        """On `listener` if there is one already. Knows the job from its first moment on: other agents may be there first.

        PortError if it cannot listen at the address."""
        # FastAPI is imported by the agents that serve only.
        from ..rendezvous.http.face import Face
        from ..rendezvous.server import Server

        try:
            face = Face(tokens=options.access.tokens())
            server = await Server.start(address, options.port, face=face, listener=listener)
            server.jobs.get_or_create(options.job, spec)
            return cls(server, options.job)
        except RendezvousError as error:
            raise PortError(f"--port {options.port}: {error}") from error

    @property
    def job(self) -> Job | None:
        """What the server knows of the job; None before its first agent has come."""
        return self._server.jobs.get(self._job)

    @property
    def connected_agents(self) -> int:
        return self._server.connected_agents

    async def wait_until_all_have_left(self, limit: float) -> bool:
        """Other agents are told how the job has ended before their server goes. False if that took more than `limit` seconds."""
        return await self._server.wait_until_deserted(self._job, limit)

    async def close(self) -> None:
        await self._server.stop()


def job_spec(options: Options) -> JobSpec:
    """What the job is, for the server."""
    return JobSpec(
        min=options.min,
        max=options.max,
        max_restarts=options.max_restarts,
        min_timeout=options.min_timeout,
        hang_timeout=options.hang_timeout,
        shutdown_timeout=options.shutdown_timeout,
    )
