"""Whether the rendezvous server can be reached, lets this host in, and has the same time."""

from __future__ import annotations

import email.utils
import importlib.util
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from ...errors import UsageError
from ..access import Access
from ..address import address_towards
from .finding import Finding

_LIMIT = 5.0  # seconds
_APART = 5.0  # seconds


def look_at_the_server(urls: Sequence[str], job: str, access: Access, in_a_lone_pod: bool = False) -> list[Finding]:
    if in_a_lone_pod:
        advice = (
            "give --rendezvous http://SERVICE:PORT (or ELASTIC_RENDEZVOUS), or --standalone if that is what you want"
        )
        return [
            Finding(
                "rendezvous", "none was given, in a pod: it would train on its own, beside its peers", "fails", advice
            )
        ]
    if not urls:
        return [Finding("rendezvous", "none was given: this agent would serve the job itself")]
    return [finding for url in urls for finding in _look_at_one(url, job, access)]


def _look_at_one(url: str, job: str, access: Access) -> list[Finding]:
    try:
        way = address_towards(url)
    except OSError as error:
        advice = "check the name and the network; in Kubernetes, the name of the service"
        return [Finding("rendezvous", f"no way to {url}: {error.strerror or error}", "fails", advice)]
    try:
        answer, headers = _get(f"{url}/readyz", access)
    except urllib.error.HTTPError as error:
        return [
            Finding(
                "rendezvous", f"{url} answers, but is not ready: {_detail(error)}", "fails", "see the server's own log"
            )
        ]
    except (OSError, UsageError, ValueError) as error:
        advice = "is elastic-rendezvous running there, is it that port, and is no firewall between?"
        return [Finding("rendezvous", f"{url} does not answer: {_reason(error)}", "fails", advice)]
    found = [Finding("rendezvous", f"{url} is {answer.get('status')}, reached from {way}"), _job(url, job, access)]
    return [*found, *_time_of(headers.get("date", ""))]


def look_at_the_store() -> Finding:
    """Only for those who serve with `--store etcd://…`."""
    missing = [name for name in ("aetcd", "grpc") if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "etcd", f"{' and '.join(missing)} not installed: only needed to serve with --store etcd://HOST:PORT"
        )
    return Finding("etcd", "what elastic-rendezvous --store etcd://HOST:PORT needs is installed")


def _job(url: str, job: str, access: Access) -> Finding:
    try:
        answer, _ = _get(f"{url}/v1/jobs/{job}", access)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return Finding("job", "the server wants another token", "fails", "give the right one with --token-file")
        if error.code == 404:
            return Finding("job", f"{job!r} is not known there yet: its first agent describes it")
        return Finding(
            "job", f"the server does not show it: {_detail(error)}", "look", "another replica may lead, or none yet"
        )
    except (OSError, ValueError) as error:
        return Finding("job", f"the server does not show it: {_reason(error)}", "look", "see the server's own log")
    text = f"{job!r} is {answer.get('state')}, with {answer.get('world_size', 0)} workers"
    if answer.get("state") in ("done", "failed"):
        return Finding("job", text, "look", "it is over: choose another --job, or remove it (DELETE /v1/jobs/NAME)")
    return Finding("job", text)


def _time_of(date: str) -> list[Finding]:
    if not date:
        return []
    apart = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(apart) > _APART:
        advice = "synchronise both: logs cannot be compared, and certificates may seem expired"
        return [
            Finding(
                "server's clock",
                f"{abs(apart):.0f} s {'behind' if apart > 0 else 'ahead of'} this host's",
                "look",
                advice,
            )
        ]
    return [Finding("server's clock", "the same as this host's")]


def _get(url: str, access: Access) -> tuple[dict[str, Any], Any]:
    tokens = access.tokens()
    headers = {"Authorization": f"Bearer {tokens.token()}"} if tokens is not None else {}
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    context = access.tls([url])
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(urllib.request.Request(url, headers=headers), timeout=_LIMIT) as response:
        answer = json.load(response)
        return (answer if isinstance(answer, dict) else {}), response.headers


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return f"{error.code}, {json.load(error)['detail']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason if reason else error) or type(error).__name__
