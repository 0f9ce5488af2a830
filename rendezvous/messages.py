"""The messages between worker, agent and server, and their JSON form.

One vocabulary for both hops: a worker says a message to its agent over an inherited socketpair, and the agent passes it
to the server over its WebSocket, and back. `worker` is always the worker's nonce. Durations are seconds, generations
and steps are counted from 1; 0 stands for none.

A message to an agent costs O(its own workers): it never lists the job.
"""

from __future__ import annotations

import msgspec

from .bounds import Code, Count, MaybeName, MaybeSlot, Name, Patience, Samples, Seconds, Size, Slot


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    """Base of all messages; `type` on the wire is the class's name in lower case."""


# --- worker -> agent -> server -------------------------------------------------------------------------------------


class Registered(Message, frozen=True):
    """The script has called `elastic.join`; the worker still prepares (imports, model, optimizer)."""

    worker: Name


class Ready(Message, frozen=True):
    """The worker waits to be a member. `lineage` is the last formed generation whose state it holds, 0 for none.

    `checkpoint` is the step of the newest intact last-resort checkpoint that it can read, 0 for none.
    """

    worker: Name
    lineage: Count = 0
    checkpoint: Count = 0


class Broken(Message, frozen=True):
    """The worker's ring of `generation`, running or forming, failed under it.

    `awaited` are the ranks, of that generation, that it waited for in vain (forming only).
    """

    worker: Name
    generation: Count
    reason: str = ""
    awaited: list[Slot] = []


class Stalled(Message, frozen=True):
    """The worker waits for its peers longer than the hang limit. Members that do not say so too are the ones that hang."""

    worker: Name
    generation: Count
    waited: Seconds = 0.0


class Formed(Message, frozen=True):
    """The worker has built the ring of `generation` and agrees with its members on the state, at `step` committed steps."""

    worker: Name
    generation: Count
    step: Count = 0


class Finished(Message, frozen=True):
    """The worker's script has come to its end without an error; the worker stays reachable until `Done`."""

    worker: Name


# --- agent -> server -----------------------------------------------------------------------------------------------


class WorkerClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent says of one of its live workers when it connects (again).

    `phase` is one of "preparing", "ready", "member", "finished". `lineage` as in `Ready`; `formed` is the newest
    generation that it has reported as formed (its lineage if that one turns out to be durable), `broken` the newest one
    that it has reported as broken.
    """

    worker: Name
    local_rank: Slot
    phase: str = "preparing"
    lineage: Count = 0
    formed: Count = 0
    broken: Count = 0
    checkpoint: Count = 0
    leaving: bool = False


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the job is; the first agent's counts, later agents' must not contradict it."""

    min: Size = 1
    max: Size = 1
    max_restarts: Size = 3
    min_timeout: Patience = 600.0
    hang_timeout: Seconds = 300.0
    shutdown_timeout: Seconds = 30.0


class Hello(Message, frozen=True):
    """First message on every connection of an agent, also after a reconnect: everything that the server must know of it.

    `agent` is unique to the agent's process. `announced` is the newest generation that was announced to it. `pod` is the
    unique id of the Kubernetes pod that it runs in, empty outside of one. `restarts`: at each change it starts its workers'
    scripts again, which know nothing of the job. After it the agent says again each `Exited` that is still unanswered (a
    crash is answered with `Restart`, `Failed` or `Done`).
    """

    agent: Name
    host: Name
    meeting: Name
    spec: JobSpec | None = None
    workers: list[WorkerClaim] = []
    announced: Count = 0
    pod: MaybeName = ""
    restarts: bool = False


class Beat(Message, frozen=True):
    """The agent lives. Sent every third of the lease.

    `progress` says of its own workers that are members [worker, step, samples]: the number of the step that it is in, and
    the samples that the whole job has applied.
    """

    progress: list[tuple[Name, Count, Samples]] = []


class Started(Message, frozen=True):
    """The agent has started a worker process in the slot `local_rank`."""

    worker: Name
    local_rank: Slot


class Dying(Message, frozen=True):
    """The kernel has begun to take the worker's process apart; `Exited` follows when it is gone.

    `code` as in `Exited`, None if it is not known yet.
    """

    worker: Name
    code: Code | None = None


class Exited(Message, frozen=True):
    """A worker's process is gone.

    `code` is its exit code, 128 + n for signal n. `kind` says how to take it: "crash" (counts against the budget),
    "rejected" (its model or its ring does not fit the job: not restarted, harms nobody), "left" (it was released after a drain or
    the agent stopped it on purpose), "stale" (it cannot follow the others from where it is: started afresh at once, free of
    charge; exit code 66), "done" (exit 0 after `Done`, or of a script that never joined).
    `step` is the number of the step that it was in (its committed steps + 1). `tail` holds the last lines of its output.
    `local_rank` is its slot, so that a server that never saw it can still have the slot filled again.
    """

    worker: Name
    code: Code
    kind: str = "crash"
    step: Count = 0
    reason: str = ""
    tail: str = ""
    local_rank: MaybeSlot = -1


class Crashed(Message, frozen=True):
    """The script of a worker that restarts it ended with an error in `generation`: all of its scripts are to start again.

    The worker itself lives, and waits for the next generation. Fields as in `Exited`.
    """

    worker: Name
    generation: Count
    code: Code
    reason: str = ""
    tail: str = ""


class Leaving(Message, frozen=True):
    """The worker is to leave by plan (SIGTERM of its agent, a drain); it goes on until it is released."""

    worker: Name


class Stop(Message, frozen=True):
    """End the whole job in order (SIGINT): every worker is drained, then the job is `Failed` with `code`."""

    code: Code
    reason: str = ""


# --- server -> agent (-> worker) -----------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Answer to `Hello`: how often to beat, and the last formed generation.

    `term` grows from one deciding server to the next: an agent that has met a newer one does not follow an older.
    """

    lease: float
    formed: int = 0
    hang_timeout: float = 300.0
    term: int = 0


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker's place in a generation; `rank` -1 for a leaver, which stays in the old ring until the boundary."""

    worker: str
    rank: int


class Announce(Message, frozen=True):
    """A new generation, for this agent's workers in it (or leaving with it). It supersedes every earlier announcement.

    `formed` is the last durable generation: a member that has reported it as formed counts for it.
    `abort`: rings of earlier generations are broken, leave them at once; otherwise leave after an agreed step boundary.
    `parked`: form, agree, but take no step until a later generation (fewer members than `min`).
    `joiners` of the members, the last ranks, are not of the last formed generation: they receive the state.
    `meeting` is HOST:PORT of the meeting point, served by the agent of rank 0; `secret` opens it.
    `cause` is one of "start", "lost", "joined", "drained", "broken", "evicted", "restored", "resized"; `reason` says it in words.
    """

    generation: int
    world_size: int
    places: list[Place]
    meeting: str
    secret: str
    formed: int = 0
    abort: bool = False
    parked: bool = False
    joiners: int = 0
    cause: str = ""
    reason: str = ""


class Release(Message, frozen=True):
    """`generation` is durable as formed: its members may take their first step (or park)."""

    generation: int
    parked: bool = False


class Released(Message, frozen=True):
    """The leaver may go. `last_holder`: nobody else holds the state, so write the last-resort checkpoint first."""

    worker: str
    last_holder: bool = False


class Evicted(Message, frozen=True):
    """The worker is no longer a member (it hung, or could not be reached). If it lives, it says `Ready` with its lineage."""

    worker: str
    reason: str = ""


class Restart(Message, frozen=True):
    """Start a fresh worker in the slot `local_rank`, `delay` seconds from now."""

    local_rank: int
    delay: float = 0.0


class Drain(Message, frozen=True):
    """The worker is to leave by plan; it stays a member until the boundary and reachable until it is released."""

    worker: str


class Done(Message, frozen=True):
    """The job has succeeded, durably. Everybody exits 0."""


class Failed(Message, frozen=True):
    """The job has failed. The agents stop their workers and exit with `code`."""

    code: int
    reason: str = ""
    tail: str = ""


class Refused(Message, frozen=True):
    """The server does not take this agent (a spec that contradicts the job's, a bad message): exit with an error."""

    reason: str


ToServer = (
    Hello
    | Beat
    | Started
    | Dying
    | Exited
    | Crashed
    | Leaving
    | Stop
    | Registered
    | Ready
    | Broken
    | Stalled
    | Formed
    | Finished
)
ToAgent = Welcome | Announce | Release | Released | Evicted | Restart | Drain | Done | Failed | Refused
FromWorker = Registered | Ready | Broken | Stalled | Formed | Finished
ToWorker = Welcome | Announce | Release | Released | Evicted | Drain | Done

_encoder = msgspec.json.Encoder()
decode_to_server = msgspec.json.Decoder(ToServer).decode
decode_to_agent = msgspec.json.Decoder(ToAgent).decode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
decode_to_worker = msgspec.json.Decoder(ToWorker).decode


def encode(message: Message) -> bytes:
    """One JSON object, without a newline."""
    return _encoder.encode(message)
