"""The plain data of membership: time limits, agents, workers, generations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from .pace import Pace


@dataclass(frozen=True)
class Timing:
    """The limits that membership waits by, in seconds."""

    suspicion: float = 1.0  # a closed connection may come back within this
    lease: float = 3.0  # an agent silent for longer is absent
    return_pause: float = 2.0  # an agent that has lost its server looks for one again within this
    settle: float = 0.1  # a broken ring waits this long for the loss that explains it
    gather: float = 0.05  # changes that come within this are taken together
    start_window: float = 2.0  # the first generation waits this long, once `min` are ready, for those still preparing
    stall_grace: float = 2.0  # who has not reported this long after the first report of a stall is the one that hangs
    forming: float = 300.0  # a generation that has not formed by then is followed by another
    recall: float = 2.0  # a worker told to give up a generation is expected to be ready again within this
    lost_grace: float = 1.0  # with every holder dead and no checkpoint in sight, the job fails after this
    restore_grace: float = 30.0  # holders that are merely silent are given up for a checkpoint after this
    forget: float = 60.0  # a disconnected agent is dropped from the books after this


@dataclass(frozen=True)
class FormedGeneration:
    """The last durable generation, as the store has it. `members` are worker nonces in rank order."""

    generation: int
    members: tuple[str, ...]

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Rank of each member."""
        return {nonce: rank for rank, nonce in enumerate(self.members)}


@dataclass
class Agent:
    """One `elastic-launch` process. `since` is when it was last heard, or when its connection closed.

    `workers` are those of the roster that are its own.
    """

    name: str
    host: str
    meeting: str
    order: int
    since: float
    connected: bool = True
    absent: bool = False  # silent or disconnected for longer than is allowed; it may come back
    leaving: bool = False  # its host is drained, and whatever it starts is to leave again
    pod: str = ""  # the unique id of its pod
    restarts: bool = False  # its workers are scripts that are started again at each change
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def here(self) -> bool:
        return self.connected and not self.absent

    @property
    def suspected(self) -> bool:
        return not self.connected and not self.absent


@dataclass
class Worker:
    """One training process.

    `phase` is "preparing", "ready" (waits to be a member), "member" (of the newest announced generation, or leaving
    with it), "evicted" (was told to drop its ring, and will say `Ready`) or "finished". `released`: it may go, or has
    gone.
    """

    nonce: str
    agent: str
    local_rank: int
    started_at: float
    phase: str = "preparing"
    registered: bool = False
    lineage: int = 0
    checkpoint: int = 0
    leaving: bool = False
    released: bool = False
    last_holder: bool = False
    ready_at: float = 0.0
    evicted_at: float = 0.0
    not_before: float = 0.0  # quarantine: not taken in earlier than this
    evictions: int = 0
    strikes: int = 0  # generations running in which others waited for it in vain
    fate: str = ""  # why it is gone, or was evicted; for people
    surplus: bool = False  # leaves because `max` was lowered
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class ScriptCrash:
    """The first script of a generation that ended with an error, `at` when that was heard; `words` are for people."""

    worker: str
    slot: tuple[str, int]  # agent, local rank
    code: int
    words: str
    tail: str
    at: float


@dataclass
class Generation:
    """One announced generation and what has been reported of it.

    `fresh`: none of its members holds the formed state (the very first generation, or one restored from a checkpoint).
    `adopted`: it was found in the store, this server never announced it. `members` and `leavers` stay what they are.
    """

    number: int
    members: tuple[str, ...]
    leavers: tuple[str, ...]
    announced_at: float
    previous: int = 0
    abort: bool = False
    parked: bool = False
    joiners: int = 0  # of the members, the last ones, do not hold the state
    fresh: bool = False
    minimum: int = 0  # `min` as it was when `parked` was decided
    adopted: bool = False
    meeting: str = ""
    secret: str = ""
    cause: str = ""
    reason: str = ""
    state: str = "forming"  # then "persisting", "formed"
    outdated: bool = False  # an agent has seen a newer number, from a server before this one
    formed_by: dict[str, int] = field(default_factory=dict)
    first_formed_at: float | None = None
    broken: dict[str, tuple[str, ...]] = field(default_factory=dict)  # who reported it -> whom it awaited, as they came
    broken_at: float | None = None
    left_broken: dict[str, float] = field(default_factory=dict)  # who reported the ring before it -> when
    judged: bool = False  # its reports of awaited members have been counted
    stalled: dict[str, float] = field(default_factory=dict)
    crash: ScriptCrash | None = None
    charged: bool = False  # the crash has been counted

    @property
    def is_complete(self) -> bool:
        """Whether every member has reported it as formed."""
        return len(self.formed_by) == len(self.members)

    @property
    def reporters(self) -> dict[str, float]:
        """Who reported a broken ring that this generation cannot do without, and when: its own, or the one that its members
        have yet to leave. As soon as one has formed it, all have left that one, each behind the same step."""
        left = self.left_broken if self.state == "forming" and not self.formed_by else {}
        return {**left, **dict.fromkeys(self.broken, self.broken_at or 0.0)}

    @cached_property
    def everyone(self) -> tuple[str, ...]:
        return self.members + self.leavers

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Rank of each member, -1 of each leaver."""
        ranks = dict.fromkeys(self.leavers, -1)
        ranks.update((nonce, rank) for rank, nonce in enumerate(self.members))
        return ranks
