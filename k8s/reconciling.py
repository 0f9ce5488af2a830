"""What is to be done, from what is wanted, the pods that there are, and what the rendezvous server knows.

Level-triggered: nothing depends on which events came, or on whether some were missed; the same situation leads to the same
actions. So a controller that is started again just goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .pods import Pod, number_of

_PAST_GRACE = 10.0  # seconds after its grace period in which a pod's node removes it, if the node is there
_LONGEST_DELAY = 60.0
_KEPT = 10  # ended pods that are kept to be looked at


@dataclass(frozen=True)
class Wanted:
    """`min` and `max` pods of `nproc` workers; none while `exists` is false: the job's object is gone, or on its way."""

    job: str
    min: int
    max: int
    nproc: int = 1
    backoff_limit: int = 3
    exists: bool = True


@dataclass(frozen=True)
class Served:
    """The server's view. `ranks` are the members of each pod (by its id), `staying` the pods that have workers which are
    not about to leave; `min` and `max` count workers."""

    min: int
    max: int
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    staying: frozenset[str] = frozenset()
    crashes: int = 0


@dataclass(frozen=True)
class Create:
    number: int


@dataclass(frozen=True)
class Delete:
    pod: Pod
    reason: str


@dataclass(frozen=True)
class TellGone:
    pod: str
    name: str
    reason: str


@dataclass(frozen=True)
class TellDrain:
    pod: str
    name: str


@dataclass(frozen=True)
class Resize:
    """In workers."""

    min: int
    max: int


@dataclass(frozen=True)
class Fail:
    code: int
    reason: str


Action = Create | Delete | TellGone | TellDrain | Resize | Fail


def reconcile(
    wanted: Wanted, pods: list[Pod], vanished: dict[str, str], told: frozenset[str], served: Served, now: float
) -> list[Action]:
    """In the order in which they are to be done: the server hears of everything before anything is changed.

    `vanished` are pods that were seen once and are no more (id -> name), `told` those that the server has been told are
    gone. `now` is in seconds since the epoch.
    """
    actions: list[Action] = [*_losses(pods, vanished, told, now)]
    actions += [TellDrain(pod.uid, pod.name) for pod in pods if pod.is_leaving and pod.uid in served.staying]
    failure = _failure(wanted, pods, served)
    if failure is not None:
        return [*actions, failure]
    live = [pod for pod in pods if pod.is_live]
    surplus = _surplus(live, len(live) - wanted.max, served) if wanted.exists else []
    actions += [TellDrain(pod.uid, pod.name) for pod in surplus if pod.uid in served.staying]
    sizes = (wanted.min * wanted.nproc, wanted.max * wanted.nproc)
    if sizes != (served.min, served.max):
        actions.append(Resize(*sizes))
    actions += [Delete(pod, f"{wanted.max} pods are wanted") for pod in surplus]
    if wanted.exists:
        actions += _creations(wanted, pods, wanted.max - len(live), now)
        actions += _clearance(pods)
    return actions


def failures(pods: list[Pod]) -> list[Pod]:
    """The pods that failed by themselves, oldest first."""
    found = [pod for pod in pods if pod.state == "failed" and not pod.by_force]
    return sorted(found, key=lambda pod: (pod.ended, pod.name))


def _losses(pods: list[Pod], vanished: dict[str, str], told: frozenset[str], now: float) -> Iterator[TellGone]:
    for uid, name in vanished.items():
        if uid not in told:
            yield TellGone(uid, name, f"pod {name} was deleted")
    for pod in pods:
        if pod.uid in told:
            continue
        if pod.is_lost:
            how = pod.trouble or ("exit code 0" if pod.state == "succeeded" else "its node is silent")
            yield TellGone(pod.uid, pod.name, f"pod {pod.name} has ended: {how}")
        elif pod.is_leaving and now > pod.leaving_until + _PAST_GRACE:
            yield TellGone(pod.uid, pod.name, f"pod {pod.name} was deleted, and its node is silent")


def _failure(wanted: Wanted, pods: list[Pod], served: Served) -> Fail | None:
    failed = failures(pods)
    if not failed or len(failed) + served.crashes <= wanted.backoff_limit:
        return None
    last = failed[-1]
    return Fail(
        last.exit_code if 0 < last.exit_code < 256 else 1,
        f"pod {last.name} failed: {last.trouble} (BackoffLimitExceeded: {len(failed)} pods failed and {served.crashes}"
        f" workers crashed, {wanted.backoff_limit} are allowed by --backoff-limit)",
    )


def _surplus(live: list[Pod], count: int, served: Served) -> list[Pod]:
    """Of the live pods the `count` that are missed least: those that do not run, then those without members, then those of
    the highest ranks."""
    if count <= 0:
        return []

    def worth(pod: Pod) -> tuple[bool, bool, int, float, str]:
        ranks = served.ranks.get(pod.uid, ())
        return pod.state == "running", bool(ranks), -max(ranks, default=0), -pod.created, pod.name

    return sorted(live, key=worth)[:count]


def _creations(wanted: Wanted, pods: list[Pod], count: int, now: float) -> list[Create]:
    """Under the lowest names that are free. After failures in a row, only after a growing while."""
    failed = failures(pods)
    if len(failed) > 1 and now < failed[-1].ended + min(_LONGEST_DELAY, 2.0 ** (len(failed) - 2)):
        return []
    taken = {number_of(wanted.job, pod.name) for pod in pods}
    free = (number for number in range(len(pods) + max(0, count)) if number not in taken)
    return [Create(number) for _, number in zip(range(count), free, strict=False)]


def _clearance(pods: list[Pod]) -> list[Delete]:
    """Pods that have ended and tell nothing: of those that left or were removed, only the newest are kept."""
    counted = {pod.uid for pod in failures(pods)}
    ended = [pod for pod in pods if pod.has_ended and not pod.is_leaving and pod.uid not in counted]
    ended.sort(key=lambda pod: (pod.ended, pod.name))
    return [Delete(pod, "it ended long ago") for pod in ended[: max(0, len(ended) - _KEPT)]]
