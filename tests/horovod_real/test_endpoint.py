"""The endpoint over real sockets: what Horovod's client needs of it, and what it refuses."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from elastic_launch.launcher.horovod.script import Leading, Led
from elastic_launch.launcher.output.room import Output
from elastic_launch.launcher.output.settings import OutputSettings
from elastic_launch.launcher.reporter import Reporter
from elastic_launch.launcher.restarting.world import Entry, seat
from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.rendezvous.meeting.point import MeetingServer

JOB, SECRET = "digits", "open sesame"
LIMIT = 20.0


class Served:
    """One agent's endpoint, with two scripts of a generation."""

    def __init__(self) -> None:
        self._output = Output(OutputSettings(), {})
        self.meeting = MeetingServer("127.0.0.1")
        self.meeting.open(JOB, 1, SECRET)
        self.clients = [MeetingClient(self.meeting.address, JOB, 1, SECRET) for _ in range(2)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._leading = asyncio.run_coroutine_threadsafe(self._lead(), self._loop).result(LIMIT)
        entries = [Entry("a", 0), Entry("a", 1)]
        self.scripts: list[Led] = [
            self._leading.begin({}, seat(entries, place), self.clients[place]) for place in range(2)
        ]

    async def _lead(self) -> Leading:
        return Leading("host-a", "127.0.0.1", Reporter(self._output, "here"))

    def ask(self, script: int, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """As Horovod puts the address together: http://ADDR:PORT/SCOPE/KEY. The response has been read, into `body`."""
        environ = self.scripts[script].environ
        address, _, token = environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        return self.ask_at(address, method, f"/{token}:{environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}{path}", body)

    def ask_at(self, address: str, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(address, timeout=LIMIT)
        connection.request(method, path, body)
        return connection.getresponse()

    @property
    def address(self) -> str:
        return self.scripts[0].environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[0]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._leading.close(), self._loop).result(LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()
        for client in self.clients:
            client.close()
        self.meeting.close()
        self._output.close(LIMIT)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def test_what_one_process_puts_another_gets_until_its_rank_has_connected(served: Served) -> None:
    for scope in ("global", "local_host-a", "cross_0", "global_process_set_hash_7d48533536350577"):
        assert served.ask(0, "PUT", f"/{scope}/1", b"address").status == 200
        assert served.ask(1, "GET", f"/{scope}/1").read() == b"address"
        assert served.ask(0, "DELETE", f"/{scope}/1").status == 200
        assert served.ask(1, "GET", f"/{scope}/1").status == 404


def test_headers_are_written_as_horovods_client_looks_for_them(served: Served) -> None:
    served.ask(0, "PUT", "/global/1", b"address")
    host, _, port = served.address.rpartition(":")
    token = served.scripts[0].environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[2]
    with socket.create_connection((host, int(port)), LIMIT) as line:
        line.sendall(f"GET /{token}:{port}/global/1 HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"address"):
            answer += line.recv(4096)
    assert b"\r\nContent-Length: 7\r\n" in answer


def test_a_key_that_comes_within_a_moment_is_waited_for(served: Served) -> None:
    putting = threading.Timer(0.2, lambda: served.ask(0, "PUT", "/global/0", b"late"))
    putting.start()
    assert served.ask(1, "GET", "/global/0").read() == b"late"
    putting.join()


def test_a_process_is_known_by_its_token_alone(served: Served) -> None:
    for path in ("/global/1", "/", "/" + 32 * "0" + ":1/global/1", "/../global/1"):
        assert served.ask_at(served.address, "GET", path).status == 403
    path = "/" + served.scripts[0].environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[2] + ":1/global/1"
    served.scripts[0].end()
    assert served.ask_at(served.address, "PUT", path, b"x").status == 403


@pytest.mark.parametrize(
    "path",
    ["/place/1", "/global/../1", "/global/rank_", "/local_a b/1", "/global/1/2", "/global", "/worker_addresses/a:0"],
)
def test_a_key_that_horovod_does_not_have_is_refused(served: Served, path: str) -> None:
    assert served.ask(0, "PUT", path.replace(" ", "%20"), b"x").status == 400
    assert served.clients[0].num_keys() == 0


def test_a_body_that_is_too_long_is_refused_and_others_are_served(served: Served) -> None:
    try:
        assert served.ask(0, "PUT", "/global/1", bytes(8 << 20)).status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the rest of it was not read
    assert served.ask(0, "POST", "/global/1", b"x").status == 405
    assert served.ask(0, "PUT", "/global/1", b"x").status == 200


def test_nonsense_and_clients_that_say_nothing_keep_nobody_waiting(served: Served) -> None:
    host, _, port = served.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), LIMIT) for _ in range(50)]
    for number, line in enumerate(silent):
        line.sendall((b"", b"\x16\x03\x01", b"PUT /a/b/c HTTP/1.1\r\nContent-Length: 99\r\n\r\n")[number % 3])
    began = time.monotonic()
    assert served.ask(0, "PUT", "/global/1", b"x").status == 200
    assert time.monotonic() - began < 5
    for line in silent:
        line.close()
