"""One disturbance as the timelines show it: what the survivors were doing before, through and after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from .jobs import Program, wait_for
from .timeline import ChangeNote, Event, Note, Recorded, Recordings

LIMIT = 120.0  # seconds
MILESTONES = ("broken", "heard", "stopped", "announced", "exchanged", "connected", "copied", "released")


@dataclass
class Observation:
    """Milliseconds throughout. `milestones` are by survivor: since the disturbance, or for a planned change since the
    announcement was heard, whichever the field's maker says."""

    step_ms: float
    first_ms: float
    all_ms: float
    gap_ms: float
    redone: int
    milestones: list[dict[str, float]] = field(default_factory=list)


def calm_members(recordings: Recordings, world_size: int, steps: int, *programs: Program) -> list[Recorded]:
    """The members, once a ring of `world_size` has made so many steps after its last change."""

    def calm() -> list[Recorded]:
        members = recordings.members()
        if len(members) != world_size or any(len(_of_newest(member)) < steps for member in members):
            return []
        last = members[0].commits[-1]
        return members if time.monotonic_ns() - last.time < 1e9 and last.world_size == world_size else []

    return wait_for(calm, LIMIT, f"{steps} steps in a ring of {world_size}", *programs)


def undisturbed_step_ms(members: Sequence[Recorded], steps: int) -> float:
    """The median time between two commits over the newest steps of the present ring."""
    gaps = [(b.time - a.time) / 1e6 for member in members for a, b in pairwise(_of_newest(member)[-steps - 1 :])]
    return median(gaps)


def wait_for_generation(survivors: Sequence[Recorded], after: int, steps: int, *programs: Program) -> int:
    """The generation behind `after` in which all survivors have committed so many steps."""

    def resumed() -> int:
        commits = [_of_newest(survivor) for survivor in survivors]
        generations = {each[-1].generation if each else 0 for each in commits}
        if len(generations) != 1 or min(generations) <= after or any(len(each) < steps for each in commits):
            return 0
        return generations.pop()

    return wait_for(resumed, LIMIT, "the survivors' next steps", *programs)


def wait_for_members_of(
    recordings: Recordings, generation: int, world_size: int, steps: int, *programs: Program
) -> list[Recorded]:
    """The members of `generation`, once all of them have committed so many steps in it."""

    def there() -> list[Recorded]:
        members = [each for each in recordings.all() if len(_of_newest(each)) >= steps]
        members = [each for each in members if each.commits[-1].generation == generation]
        return members if len(members) == world_size else []

    return wait_for(there, LIMIT, f"generation {generation}", *programs)


def observe(survivors: Sequence[Recorded], before: int, disturbed_at: int, step_ms: float) -> Observation:
    """After `wait_for_generation`: `before` is the generation that was left, `disturbed_at` when."""
    firsts = [next(note for note in each.commits if note.generation > before) for each in survivors]
    since = [(note.time - disturbed_at) / 1e6 for note in firsts]
    return Observation(
        step_ms=step_ms,
        first_ms=min(since),
        all_ms=max(since),
        gap_ms=max(_longest_gap(each.commits, before) for each in survivors),
        redone=max(_redone(each.notes, disturbed_at) for each in survivors),
        milestones=[_milestones(each, before, disturbed_at) for each in survivors],
    )


def _of_newest(member: Recorded) -> list[Note]:
    commits = member.commits
    return [note for note in commits if note.generation == commits[-1].generation] if commits else []


def _longest_gap(commits: Sequence[Note], before: int) -> float:
    """Of the intervals around the change: from two steps before it to three steps behind it."""
    index = next(i for i, note in enumerate(commits) if note.generation > before)
    around = commits[max(0, index - 3) : index + 3]
    return max((b.time - a.time) / 1e6 for a, b in pairwise(around))


def _redone(notes: Sequence[Note], since: int) -> int:
    attempts: dict[int, int] = {}
    for note in notes:
        if note.event is Event.BEGAN:
            attempts[note.step] = attempts.get(note.step, 0) + 1
    recent = {note.step for note in notes if note.event is Event.COMMITTED and note.time >= since}
    return sum(attempts[step] - 1 for step in recent if step in attempts)


def _milestones(member: Recorded, before: int, since: int) -> dict[str, float]:
    changes = [change for change in member.changes if change.generation > before]
    if not changes:
        return {}
    change: ChangeNote = changes[0]
    commits = [note for note in member.commits if note.generation > before][:2]
    times = {name: change.phases[name] for name in MILESTONES if name in change.phases}
    times["first step"] = commits[0].time
    if len(commits) > 1:
        times["second step"] = commits[1].time
    return {name: (value - since) / 1e6 for name, value in times.items()}
