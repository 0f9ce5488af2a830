"""What a process asks of its agent's endpoint, beside what Horovod asks of it there."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any

from ..ring.connected import Address, normalised

_ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"


class AgentGone(RuntimeError):
    """The agent's endpoint does not answer as it should; the process cannot go on without it."""


def ask_for_place() -> dict[str, Any]:
    """Waits, for as long as there is none: {"leaves": whether this process is to end, "variables": of its place}."""
    answer: dict[str, Any] = json.loads(_ask("GET", "door"))
    return answer


def wait_for_cut() -> set[Address]:
    """Waits until this process's ring is broken: the listeners that it was built from."""
    return {normalised(host, port) for host, port in json.loads(_ask("GET", "cut"))}


def say_that_it_holds_the_state() -> None:
    _ask("PUT", "holds")


def _ask(method: str, key: str) -> bytes:
    place, _, token = os.environ[_ADDRESS].partition("/")
    connection = http.client.HTTPConnection(place)  # no limit: this process lives no longer than its agent
    try:
        connection.request(method, f"/{token}:{os.environ[_PORT]}/worker/{key}", headers={"Content-Length": "0"})
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise AgentGone(f"the agent of this process does not answer {method} {key}: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise AgentGone(f"the agent of this process answers {method} {key} with {response.status}: {body[:200]!r}")
    return body
