"""An agent's connection to the rendezvous server: one WebSocket, kept up for as long as the job lasts.

The agent talks to this object as if the server were always there. While it is not, messages wait, and every new
connection begins with a fresh `Hello` that tells everything anew; so a server may lose messages, its connections or
itself without an agent noticing more than a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl as tls
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from urllib.parse import quote, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from ..errors import RendezvousError, UsageError
from .credentials import Credentials
from .messages import Beat, Done, Failed, Hello, Refused, ToAgent, ToServer, Welcome, decode_to_agent, encode
from .names import check_job_name
from .reaching import reach
from .replicas import STATE, ReplicaFinder

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts, before jitter
_ELECTION_PAUSE = 0.4  # seconds, before jitter, at most while replicas answer that none of them leads
_ATTEMPT = 10.0  # seconds for one attempt, up to the server's first word
_SHORTEST_ATTEMPT = 1.0  # and if there is less time left: what it fails with is what is told
_FAREWELL = 1.0  # seconds in which `close` still sends what waits
_MAX_MESSAGE = 4 * 1024 * 1024  # bytes
_BEATS = 3  # in a lease


class Client:
    """`run` keeps the connection up; everything else is called on the same event loop.

    `urls` are the server's replicas, each http://HOST:PORT; they are tried in turn, and of a name with several addresses
    each one. `hello` is asked for the agent's `Hello` at each new connection. `on_message` gets every message of the
    server, in order; it must not block. `connect_timeout` (seconds) bounds the time until a server is first reached, not
    later interruptions. `on_lease` is told until when (`time.monotonic()`) this host may count itself in: a server that
    leads has heard it, or a replica says that nobody decides. `beat` is asked for each heartbeat, `token` for the token at
    each new connection. `ssl` is for https URLs; None trusts what the system trusts.
    """

    def __init__(
        self,
        urls: Sequence[str],
        job: str,
        hello: Callable[[], Hello],
        on_message: Callable[[ToAgent], None],
        connect_timeout: float = 60.0,
        on_lease: Callable[[float], None] = lambda until: None,
        *,
        beat: Callable[[], Beat] = Beat,
        token: Callable[[], str] | None = None,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        """UsageError if a URL or the job's name cannot be one."""
        if not urls:
            raise UsageError("no rendezvous URL: give http://HOST:PORT of the server")
        self._urls = [agent_url(url, job) for url in urls]
        self._shown = ", ".join(urls)
        self._hello = hello
        self._on_message = on_message
        self._connect_timeout = connect_timeout
        self._beat_now = beat
        self._credentials = Credentials(token, ssl)
        self._on_lease = on_lease
        self._lease = 3.0
        self._term = 0
        self._finder = ReplicaFinder(self._urls)
        self._waiting: deque[ToServer] = deque()
        self._something_waits = asyncio.Event()
        self._nothing_waits = asyncio.Event()
        self._nothing_waits.set()
        self._closing = asyncio.Event()
        self._was_welcome = False
        self._over = asyncio.Event()
        self._last_error = "no attempt was made"
        self.connected = False
        """Whether the server has welcomed this agent on a connection that is still up."""
        self.disconnected_since: float | None = time.monotonic()
        """`time.monotonic()` at which the connection was lost (or the client made), None while connected."""
        self.last_heard: float | None = None
        """`time.monotonic()` at which the server last showed that it is alive, by a message or by answering a ping."""

    def send(self, message: ToServer) -> None:
        """Sends now, or once the server has welcomed this agent (again). A `Beat` is not kept."""
        if isinstance(message, Beat) and not self.connected:
            return
        self._waiting.append(message)
        self._nothing_waits.clear()
        self._something_waits.set()

    async def run(self) -> None:
        """Returns after `close`, or when the connection ends after the server's `Done`, `Failed` or `Refused`.

        RendezvousError if no server could be reached at all within `connect_timeout`; AuthorizationError if one was, but
        does not take the token.
        """
        running = asyncio.ensure_future(self._keep_connected())
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([running, closing], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            self._closing.set()  # a cancellation alone may be lost where a connection comes at the same moment
            for task in (running, closing):
                task.cancel()
            await asyncio.gather(running, closing, return_exceptions=True)

    async def close(self) -> None:
        """Sends what still waits, if it goes quickly, and ends `run`."""
        if self.connected:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._nothing_waits.wait(), _FAREWELL)
        self._closing.set()

    async def _keep_connected(self) -> None:
        began = time.monotonic()
        pause = _FIRST_PAUSE
        while not self._over.is_set() and not self._closing.is_set():
            welcomed_before = self.last_heard
            outcome = await self._connect_once(self._time_left(began))
            if self._over.is_set() or self._closing.is_set():
                return
            if outcome is _Outcome.ELSEWHERE:
                continue
            longest = _ELECTION_PAUSE if outcome is _Outcome.FROZEN else _LONGEST_PAUSE
            pause = _FIRST_PAUSE if self.last_heard != welcomed_before else min(2 * pause, longest)
            jittered = pause * random.uniform(0.5, 1.5)
            left = self._time_left(began)
            await asyncio.sleep(max(0.0, min(jittered, left)))
            if not self._was_welcome and jittered >= left:
                raise RendezvousError(
                    f"no rendezvous server has answered at {self._shown} within {self._connect_timeout:g} s "
                    f"(last error: {self._last_error}). Check that elastic-rendezvous, or the agent that serves it, "
                    "runs there, that the address and the port are the ones it prints, and that no firewall is between"
                )

    def _time_left(self, began: float) -> float:
        return _ATTEMPT if self._was_welcome else began + self._connect_timeout - time.monotonic()

    async def _connect_once(self, time_left: float) -> _Outcome:
        limit = max(_SHORTEST_ATTEMPT, min(_ATTEMPT, time_left))
        began = time.monotonic()
        try:
            address = await self._finder.next_address()
            tcp = await asyncio.wait_for(reach(address.url, address.options), limit)
            if self._closing.is_set():
                tcp.close()
                return _Outcome.FAILED
            connection = await _Connect(
                address.url,
                sock=tcp,
                **self._credentials.options(address.url),
                compression=None,
                open_timeout=limit,
                ping_interval=None,
                close_timeout=_FAREWELL,
                max_size=_MAX_MESSAGE,
                proxy=None,
            )
        except InvalidStatus as error:
            return self._was_denied(error, began)
        except (OSError, asyncio.TimeoutError, WebSocketException) as error:
            self._note(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return _Outcome.FAILED
        try:
            await self._talk(connection, limit)
        except (OSError, WebSocketException) as error:
            self._note(str(error) or "timed out")
        finally:
            if self.connected:
                self.connected = False
                self.disconnected_since = time.monotonic()
                logger.warning("connection to the rendezvous server lost: %s", self._last_error)
            await connection.close()
        return _Outcome.FAILED

    def _was_denied(self, error: InvalidStatus, began: float) -> _Outcome:
        """A replica that does not lead says who does, or that nobody does."""
        headers = error.response.headers
        if error.response.status_code == 307 and self._finder.follow(headers.get("location", "")):
            self._note(f"another server leads: {headers['location']}")
            return _Outcome.ELSEWHERE
        self._note(str(error))
        self._credentials.answered(error.response.status_code, self._shown)
        if error.response.status_code == 503 and headers.get(STATE) in ("frozen", "electing"):
            self._note(f"decisions are frozen ({headers[STATE]})")
            self._on_lease(began + self._lease)
            return _Outcome.FROZEN
        return _Outcome.FAILED

    def _note(self, error: str) -> None:
        self._last_error = error
        logger.debug("rendezvous server at %s: %s", self._shown, error)

    async def _talk(self, connection: ClientConnection, limit: float) -> None:
        said_hello = time.monotonic()
        await connection.send(encode(self._hello()), text=True)
        try:
            lease = await asyncio.wait_for(self._read_until_welcome(connection), limit)
        except asyncio.TimeoutError:
            raise OSError(f"connected, but not welcomed within {limit:.0f} s") from None
        if lease is None or self._closing.is_set():
            return
        _give_up_on_a_silent_host(connection, lease)
        self._lease = lease
        self._on_lease(said_hello + lease)
        tasks = [
            asyncio.ensure_future(self._read(connection)),
            asyncio.ensure_future(self._write(connection)),
            asyncio.ensure_future(self._beat(connection, lease / _BEATS)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_until_welcome(self, connection: ClientConnection) -> float | None:
        """The lease; None if the server ended this agent's part instead."""
        while True:
            message = await self._next_message(connection)
            if isinstance(message, Welcome):
                if message.term < self._term:
                    raise OSError("this server led once, and does no more")
                self._term = message.term
                self._finder.found()
                self.connected = True
                self._was_welcome = True
                self.disconnected_since = None
                self._credentials.let_in()
            self._deliver(message)
            if isinstance(message, Welcome):
                return message.lease
            if self._over.is_set():
                return None

    async def _read(self, connection: ClientConnection) -> None:
        while True:
            self._deliver(await self._next_message(connection))

    async def _next_message(self, connection: ClientConnection) -> ToAgent:
        while True:
            received = await connection.recv()
            self.last_heard = time.monotonic()
            try:
                message: ToAgent = decode_to_agent(received)
            except msgspec.MsgspecError as error:
                logger.error("not understood from the rendezvous server, ignored: %s: %.200r", error, received)
                continue
            return message

    def _deliver(self, message: ToAgent) -> None:
        if isinstance(message, (Done, Failed, Refused)):
            self._over.set()
        self._on_message(message)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            while self._waiting:
                await connection.send(encode(self._waiting[0]), text=True)
                self._waiting.popleft()
            self._nothing_waits.set()
            self._something_waits.clear()
            await self._something_waits.wait()

    async def _beat(self, connection: ClientConnection, period: float) -> None:
        """Raises OSError when the server has said nothing for a lease, in which this process itself was awake."""
        silent = 0
        while silent < _BEATS + 1:
            heard = self.last_heard
            await asyncio.sleep(period)
            silent = silent + 1 if self.last_heard == heard else 0
            beaten = time.monotonic()
            await connection.send(encode(self._beat_now()), text=True)
            pong = asyncio.ensure_future(await connection.ping())
            pong.add_done_callback(partial(self._heard, beaten))
        raise OSError(f"the server has been silent for {silent * period:.1f} s")

    def _heard(self, beaten: float, pong: asyncio.Future[float]) -> None:
        if not pong.cancelled() and pong.exception() is None:
            self.last_heard = time.monotonic()
            self._on_lease(beaten + self._lease)


def agent_url(url: str, job: str) -> str:
    """The WebSocket address of a job's agents on the server `url`. UsageError if it is not http://HOST:PORT."""
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is not the URL of a rendezvous server: give http://HOST:PORT")
    scheme = "ws" if parts.scheme == "http" else "wss"
    return f"{scheme}://{parts.netloc}/v1/jobs/{quote(check_job_name(job))}/agent"


class _Outcome(Enum):
    """How an attempt to be connected ended."""

    FAILED = auto()
    ELSEWHERE = auto()
    FROZEN = auto()


class _Connect(connect):
    """Redirections are followed by the client itself: it remembers where they led, and comes back to its own list."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _give_up_on_a_silent_host(connection: ClientConnection, lease: float) -> None:
    """The host of a slow server still acknowledges what is sent; one that is gone does not: TCP waits 15 minutes."""
    peer = connection.transport.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lease * 1000))
