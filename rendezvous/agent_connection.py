"""An agent's WebSocket on the server: what it says goes to its job, what the job tells it goes out, and neither waits.

A slow agent costs itself its connection, and a broken one that says what is not a message, and nobody else anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..errors import UsageError
from .http.limits import Limits, TokenBucket, within
from .job import Job
from .jobs import Jobs
from .logs import about
from .messages import Hello, JobSpec, Refused, ToAgent, ToServer, decode_to_server, encode
from .names import check_job_name

logger = logging.getLogger(__name__)

OUTGOING = 256  # messages that may wait for an agent to read them
HELLO_WITHIN = 10.0  # seconds
_FAREWELL = 1.0  # seconds in which a last word still goes out
_POLICY, _GOING_AWAY, _TRY_AGAIN = 1008, 1001, 1013  # WebSocket close codes


class TooMuch(Exception):
    """The agent goes over a limit; the connection ends, and it may come again."""


class AgentConnection:
    """`serve` is the connection's life."""

    def __init__(self, websocket: WebSocket, jobs: Jobs, job_name: str, limits: Limits = Limits()) -> None:
        self._websocket = websocket
        self._jobs = jobs
        self._job_name = job_name
        self._limits = limits
        self._allowance = TokenBucket(limits.rate, limits.burst, time.monotonic())
        self._outgoing: asyncio.Queue[ToAgent] = asyncio.Queue(OUTGOING)
        self._ended = asyncio.Event()
        self._close_code = _GOING_AWAY
        self._close_reason = ""
        self._agent = ""
        self._job: Job | None = None

    def tell(self, message: ToAgent) -> None:
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self._end(_TRY_AGAIN, f"the agent has left {OUTGOING} messages unread")

    def end(self, reason: str) -> None:
        self._end(_GOING_AWAY, reason)

    def _end(self, code: int, reason: str) -> None:
        if not self._ended.is_set():
            self._close_code, self._close_reason = code, reason
            self._ended.set()

    async def serve(self) -> None:
        await self._websocket.accept()
        self._jobs.connections.add(self)
        receiving, sending = asyncio.ensure_future(self._receive_all()), asyncio.ensure_future(self._send_all())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            # Not on sending: what a dead agent has said last is still to be read.
            await asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._jobs.connections.discard(self)
            for task in (receiving, sending, ended):
                task.cancel()
            if self._job is not None:
                await self._job.closed(self._agent, self)
            await asyncio.gather(receiving, sending, ended, return_exceptions=True)
        await self._say_farewell()

    async def _receive_all(self) -> None:
        try:
            check_job_name(self._job_name)
            hello = await asyncio.wait_for(self._next_message(), HELLO_WITHIN)
            await self._greet(hello)
            while True:
                await self._take(await self._next_message())
        except (UsageError, msgspec.MsgspecError) as error:
            self._refuse(str(error))
        except RecursionError:
            self._refuse("a message is nested too deeply")
        except TooMuch as error:
            logger.warning("agent %s of job %s is sent away: %s", self._agent or "?", self._job_name[:80], error)
            self._end(_POLICY, str(error))
        except asyncio.TimeoutError:
            self._refuse(f"no Hello within {HELLO_WITHIN:.0f} s")
        except WebSocketDisconnect:
            pass
        except Exception:
            logger.exception("connection of agent %s of job %s failed", self._agent or "?", self._job_name[:80])

    async def _next_message(self) -> ToServer:
        received = await self._websocket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        if not self._allowance.take(time.monotonic()):
            raise TooMuch(f"more than {self._limits.rate:g} messages a second (after {self._limits.burst} at once)")
        text = received.get("text")
        if text is None:
            raise UsageError("messages are JSON text, not bytes")
        message: ToServer = decode_to_server(text)
        return within(message, self._limits)

    async def _greet(self, hello: ToServer) -> None:
        if not isinstance(hello, Hello):
            raise UsageError(f"the first message must be Hello, not {type(hello).__name__}")
        if not self._jobs.decides:
            self.end("this rendezvous server does not lead, or stops")
            raise WebSocketDisconnect
        job = self._jobs.get(self._job_name)
        if job is None:
            if hello.spec is None:
                raise UsageError(f"job {self._job_name!r} is not known here and its Hello does not say what it is")
            if len(self._jobs.names()) >= self._limits.jobs:
                raise UsageError(
                    f"this server has {self._limits.jobs} jobs, which is its limit: wait for one to end, or raise its --max-jobs"
                )
            job = self._jobs.get_or_create(self._job_name, checked(hello.spec))
        if job.is_full(hello.agent, self._limits.agents):
            raise UsageError(
                f"job {self._job_name!r} has {self._limits.agents} agents, which is this server's limit: raise its --max-agents"
            )
        self._agent, self._job = hello.agent, job
        await job.said(self._agent, self, hello)

    async def _take(self, message: ToServer) -> None:
        if isinstance(message, Hello):
            raise UsageError("Hello comes once on a connection")
        assert self._job is not None
        await self._job.said(self._agent, self, message)

    def _refuse(self, reason: str) -> None:
        text = "agent %s of job %s is refused: %s"
        name = self._job_name[:80]
        logger.warning(text, self._agent or "?", name, reason, extra=about(name, agent=self._agent))
        self.tell(Refused(reason))
        self._end(_POLICY, reason)

    async def _send_all(self) -> None:
        try:
            while True:
                await self._websocket.send_text(encode(await self._outgoing.get()).decode())
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # the end of receiving follows
        except Exception:
            logger.exception("connection of agent %s of job %s failed", self._agent, self._job_name[:80])
            self.end("internal error of the rendezvous server")

    async def _say_farewell(self) -> None:
        """What is still to be said, for an agent that reads it; the others are left to TCP's own time limit."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._send_the_rest(), _FAREWELL)

    async def _send_the_rest(self) -> None:
        while not self._outgoing.empty():
            await self._websocket.send_text(encode(self._outgoing.get_nowait()).decode())
        await self._websocket.close(self._close_code, _cut(self._close_reason))


def _cut(reason: str) -> str:
    """At most the 123 bytes that a close frame has room for."""
    return reason.encode()[:120].decode(errors="ignore")


def checked(spec: JobSpec) -> JobSpec:
    """The spec itself. UsageError if no job can be like that."""
    if not 1 <= spec.min <= spec.max:
        raise UsageError(f"a job needs 1 <= min <= max, not min={spec.min} max={spec.max}")
    if spec.max_restarts < 0 or not spec.min_timeout >= 0:
        raise UsageError(f"negative limits: max_restarts={spec.max_restarts} min_timeout={spec.min_timeout}")
    return spec
