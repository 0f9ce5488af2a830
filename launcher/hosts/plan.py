"""What is to be started, changed and let go of, from the hosts that are wanted and the agents that are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .listing import Host


@dataclass(frozen=True)
class Present:
    """An agent that runs on a host, or is being started there."""

    slots: int
    leaving: bool = False


@dataclass(frozen=True)
class Start:
    host: str
    slots: int


@dataclass(frozen=True)
class Resize:
    host: str
    slots: int


@dataclass(frozen=True)
class Leave:
    host: str


Action = Start | Resize | Leave


def plan(listed: Sequence[Host], barred: Collection[str], present: Mapping[str, Present], most: int) -> list[Action]:
    """`listed` are the hosts that there are, `barred` those of them that may not be used, `most` the workers of the job.

    `present` is in the order of the starts: who has been there longest keeps its slots. A host that is leaving is
    started afresh when it has left, if it is listed then.
    """
    wanted = allot([host for host in listed if host.name not in barred], present, most)
    actions: list[Action] = []
    for name, agent in present.items():
        slots = wanted.pop(name, 0)
        if agent.leaving or slots == agent.slots:
            continue
        actions.append(Resize(name, slots) if slots else Leave(name))
    actions += [Start(name, slots) for name, slots in wanted.items() if slots]
    return actions


def allot(hosts: Sequence[Host], present: Mapping[str, Present], most: int) -> dict[str, int]:
    """How many workers each host gets, `most` of them in all."""
    age = {name: number for number, name in enumerate(present)}
    allotted: dict[str, int] = {}
    for host in sorted(hosts, key=lambda host: age.get(host.name, len(age))):
        allotted[host.name] = min(host.slots, most)
        most -= allotted[host.name]
    return allotted


def room(listed: Sequence[Host], barred: Collection[str]) -> int:
    """The slots that can be used."""
    return sum(host.slots for host in listed if host.name not in barred)


def in_words(action: Action) -> str:
    if isinstance(action, Start):
        return f"starting an agent with {action.slots} slots on {action.host}"
    if isinstance(action, Resize):
        return f"{action.host} has {action.slots} slots from here on"
    return f"letting go of {action.host}"
