"""A rendezvous server's HTTP face, as a watcher of pods uses it: one of several replicas, asked in turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3

from ..errors import RendezvousError, UsageError
from ..rendezvous.bearer import TokenFile
from ..rendezvous.tls import client_context
from .peer_news import Worker

_TIMEOUT = urllib3.Timeout(connect=2.0, read=12.0)  # a command takes the server up to 10 s
_REDIRECTS = 3


class NotThere(RendezvousError):
    """The server knows no such job, host or agent."""


class Over(RendezvousError):
    """The job is changed no more."""


class ServerFace:
    """One job of a server. Every method blocks, and raises a RendezvousError where it does not succeed."""

    def __init__(
        self,
        urls: Sequence[str],
        job: str,
        token_file: Path | None = None,
        authority: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """UsageError for files that cannot be used."""
        self.job = job
        self._urls = [url.strip().rstrip("/") for url in urls]
        if not all(url.startswith(("http://", "https://")) for url in self._urls):
            raise UsageError(f"--rendezvous is {','.join(urls)!r}: give http://HOST:PORT")
        self._token = TokenFile(token_file) if token_file is not None else None
        context = client_context(authority, certificate, key) if self._urls[0].startswith("https:") else None
        self._http = urllib3.PoolManager(timeout=_TIMEOUT, retries=False, ssl_context=context)

    def workers(self) -> list[Worker]:
        shown = self._ask("GET", "")["workers"]
        return [
            Worker(item["agent"], item["host"], item.get("pod", ""), not (item["leaving"] or item["released"]))
            for item in shown
        ]

    def drain(self, host: str) -> None:
        self._ask("POST", "/drain", {"host": host})

    def gone(self, agent: str, reason: str) -> None:
        self._ask("POST", "/gone", {"agent": agent, "reason": reason[:256]})

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        trouble: RendezvousError | None = None
        for url in self._urls:
            try:
                return self._ask_one(method, f"{url}/v1/jobs/{quote(self.job, safe='')}{path}", body)
            except (NotThere, Over):
                raise
            except RendezvousError as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    def _ask_one(self, method: str, address: str, body: dict[str, str] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.token()}"
        data = None if body is None else json.dumps(body).encode()
        try:
            for _ in range(_REDIRECTS):
                answer = self._http.request(method, address, body=data, headers=headers, redirect=False)
                if answer.status != 307:
                    break
                address = answer.headers["location"]
            content = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError) as error:
            raise RendezvousError(f"{address} does not answer: {error}") from error
        if answer.status < 300:
            return content
        error_type = {404: NotThere, 409: Over}.get(answer.status, RendezvousError)
        raise error_type(
            f"{address} answers {answer.status}: {content.get('detail') if isinstance(content, dict) else ''}"
        )
