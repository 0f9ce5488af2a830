"""`--event-log-handler console`: the ends of workers and agent as JSON, one object a line, for programs that read logs.

In the form of `torch.distributed.elastic.events.Event`, whose `deserialize` reads a line of it. Pure: it is told what
happens, and when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..rendezvous.messages import Announce, Crashed, Exited, ToAgent, ToServer
from . import exits

_NAME = "torchelastic.worker.status"
_STATES = {"done": "SUCCEEDED", "left": "TERMINATED"}  # by `Exited.kind`; else FAILED


class Events:
    """`write` is called with each line."""

    def __init__(
        self, job: str, host: str, role: str, write: Callable[[str], None], now: Callable[[], float] = time.time
    ) -> None:
        """`now` is the time of day, in seconds."""
        self._job = job
        self._host = host
        self._role = role
        self._write = write
        self._now = now
        self._began = now()
        self._ranks: dict[str, int] = {}  # by worker, in the newest generation that it has a rank in
        self._world_size = 0
        self._crashes = 0
        self._ended: set[str] = set()  # an end may be told to several servers

    def heard(self, message: ToAgent) -> None:
        """From the server."""
        if isinstance(message, Announce):
            self._ranks.update({place.worker: place.rank for place in message.places if place.rank >= 0})
            self._world_size = message.world_size

    def said(self, message: ToServer) -> None:
        """To the server."""
        if isinstance(message, Crashed):
            self._crashes += 1
            self._worker(message, "FAILED", {})
        elif isinstance(message, Exited) and message.worker not in self._ended:
            self._ended.add(message.worker)
            self._crashes += message.kind == "crash"
            state = _STATES.get(message.kind, "FAILED")
            if state == "TERMINATED" and message.code == exits.SUCCESS:
                state = "SUCCEEDED"
            self._worker(message, state, {"local_rank": message.local_rank, "step": message.step})

    def agent_ended(self, code: int, why: str) -> None:
        succeeded = code == exits.SUCCESS
        state = "SUCCEEDED" if succeeded else "FAILED"
        self._record("AGENT", state, {"exit_code": code}, error="" if succeeded else why)

    def _worker(self, message: Exited | Crashed, state: str, more: dict[str, Any]) -> None:
        error = (message.reason or exits.in_words(message.code)) if state == "FAILED" else ""
        self._record("WORKER", state, {**more, "exit_code": message.code}, error, message.worker)

    def _record(self, source: str, state: str, more: dict[str, Any], error: str, worker: str | None = None) -> None:
        now = self._now()
        metadata = {
            "run_id": self._job,
            "global_rank": None if worker is None else self._ranks.get(worker),
            "worker_id": worker,
            "role": self._role,
            "hostname": self._host,
            "state": state,
            "total_run_time": int(now - self._began),
            "raw_error": error or None,
            "agent_restarts": self._crashes,
            "metadata": json.dumps({"world_size": self._world_size, **more}),  # text within the text, as torch has it
        }
        event = {"name": f"{_NAME}.{state}", "source": source, "timestamp": int(now * 1000), "metadata": metadata}
        self._write(json.dumps(event))
