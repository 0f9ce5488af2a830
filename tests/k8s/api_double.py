"""A small HTTP server that answers as a Kubernetes API server in trouble: what each request gets is scripted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


def pod(name: str, version: int, **metadata: Any) -> Json:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "status": {"phase": "Running"},
    }


class Request:
    """One request, to be answered."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler
        self.query = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query).items()}

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("true", "True")

    def list(self, version: int, *pods: Json) -> None:
        self.answer(200, {"kind": "PodList", "metadata": {"resourceVersion": str(version)}, "items": [*pods]})

    def answer(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Content-Length", str(len(data)))
        self._handler.end_headers()
        self._handler.wfile.write(data)

    def error(self, status: int) -> None:
        self.answer(status, {"kind": "Status", "code": status, "message": f"trouble {status}"})

    def stream(self, *events: Json | bytes, silence: float = 0.0, broken: bool = False) -> None:
        """Events of a watch, then silence, then its end: in order, or not."""
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.send_header("Connection", "close")  # or the next request may meet the end of this connection
        self._handler.end_headers()
        for event in events:
            data = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
            self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self._handler.wfile.flush()
        time.sleep(silence)
        if not broken:
            self._handler.wfile.write(b"0\r\n\r\n")
        self._handler.close_connection = True


Answer = Callable[[Request], None]


class ApiDouble:
    """Every request takes the next answer; when there is none left, watches are quiet and lists repeat the last one."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers)
        self._last_list: Answer = lambda request: request.list(1)
        self._lock = threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    double._answer(Request(self))
                except OSError:
                    self.close_connection = True

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="api-double", daemon=True).start()

    def script(self, *answers: Answer) -> None:
        """What the next requests get."""
        with self._lock:
            self._answers += answers

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            if self._answers:
                answer = self._answers.pop(0)
            elif request.is_watch:
                answer = lambda request: request.stream(silence=0.3)  # noqa: E731
            else:
                answer = self._last_list
            if not request.is_watch:
                self._last_list = answer
        answer(request)
