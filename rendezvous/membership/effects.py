"""What the membership machine wants done: plain data that the server carries out in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..messages import ToAgent


@dataclass(frozen=True)
class Tell:
    """Send `message` to the agent, if its connection is open (the machine repeats what matters after a `Hello`)."""

    agent: str
    message: ToAgent


@dataclass(frozen=True)
class Persist:
    """Make `generation` durable as the last formed one, if the last one is still `previous` (0 for none).

    `members` are worker nonces in rank order. Answer with `persisted` or `persist_refused`; when the outcome is
    unknown, find it out first. At most one is under way at a time.
    """

    generation: int
    members: tuple[str, ...]
    previous: int


@dataclass(frozen=True)
class Confirm:
    """A planned change is about to be announced: make sure that the store answers. Answer with `confirmed`."""


@dataclass(frozen=True)
class PersistDone:
    """Make the job's success durable. Answer with `persisted_done`."""


@dataclass(frozen=True)
class Finish:
    """The job is over: `state` is "done" or "failed". Keep it for a while: whoever arrives late must be told."""

    state: str
    code: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """Something worth a line in the log and in the job's history. `text` is for people, `fields` for programs."""

    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


Effect = Tell | Persist | Confirm | PersistDone | Finish | Event
