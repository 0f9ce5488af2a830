"""What the members of a new generation tell each other, and what follows from it: a pure decision, the same on every member.

The invariant: an *agreement* (the vote of a step, or the result of a unit such as an evaluation) that any member has
passed is passed by every member, or by none. Agreements are counted; two members of one lineage are never more than one
apart, because the next one needs everybody. Who is one short holds what is needed to pass it on the spot: the reduced
gradients that it stands behind, or, for a unit, the result that the others hand over.

Only members of the newest lineage are sources. At the very start nobody has one: rank 0's initial state is the job's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from ..errors import ElasticError


class Report(msgspec.Struct, frozen=True):
    """One member's claim. `pending` is the agreement that failed under it: "", "vote" or "unit".

    `stands_behind`: every reduction of the pending step has succeeded here, so it holds that step's reduced gradients.
    `structure` and `digest` are digests of the state's shape and, at the start only, of its content.
    `ring` is what its ring is made of, in words.
    `result` is what the last passed agreement gave; `ballot` what this member said in the pending vote.
    `checkpoint` is the step of the newest checkpoint that it can restore.
    """

    worker: str
    lineage: int = 0
    agreed: int = 0
    pending: str = ""
    stands_behind: bool = False
    structure: str = ""
    digest: str = ""
    result: bytes = b""
    ballot: bytes = b""
    checkpoint: int = 0
    ring: str = ""


class Action(Enum):
    """What one member does with its pending agreement, or for its state."""

    GO_ON = "go on"  # nothing was pending
    APPLY = "apply"  # a vote was pending: it counts as passed, apply the reduced gradients
    REDO = "redo"  # undo what was pending and do it again, all together
    TAKE_RESULT = "take result"  # a unit was pending: the others have its result
    COPY = "copy"  # receive the state
    RESTORE = "restore"  # load the checkpoint, then be the source


@dataclass(frozen=True)
class Decision:
    """`actions` by rank; `sources` are the ranks whose state counts, the lead first.

    `result_from` is a rank whose `result` the members one short take, None if nobody has passed the pending agreement.
    `odd` are those who cannot be in a ring with the lead, or whose state has another shape. `is_start`: nobody has a state.
    """

    actions: list[Action]
    sources: list[int]
    result_from: int | None = None
    odd: list[int] = field(default_factory=list)
    is_start: bool = False

    @property
    def receivers(self) -> list[int]:
        return [rank for rank, action in enumerate(self.actions) if action is Action.COPY]


def decide(reports: list[Report]) -> Decision:
    """The decision that follows from the members' reports, in rank order.

    Raises `ElasticError` if the reports cannot come from members that keep the protocol.
    """
    newest = max(report.lineage for report in reports)
    if newest == 0:
        return _start(reports)
    holders = [rank for rank, report in enumerate(reports) if report.lineage == newest]
    top = max(reports[rank].agreed for rank in holders)
    actions = [Action.COPY] * len(reports)
    result_from = None
    for rank in holders:
        report = reports[rank]
        if report.agreed == top:
            actions[rank] = Action.REDO if report.pending else Action.GO_ON
            continue
        result_from = next(r for r in holders if reports[r].agreed == top)
        if report.agreed == top - 1 and report.pending == "vote" and report.stands_behind:
            actions[rank] = Action.APPLY
        elif report.agreed == top - 1 and report.pending == "unit":
            actions[rank] = Action.TAKE_RESULT
        else:
            raise ElasticError(f"rank {rank} cannot follow the others, which have passed agreement {top}: {report}")
    if all(reports[r].agreed == top and reports[r].pending == "vote" and reports[r].stands_behind for r in holders):
        for rank in holders:
            actions[rank] = Action.APPLY
    if len(holders) < len(reports) and any(reports[rank].pending for rank in holders):
        raise ElasticError("a worker was to join while the others were in the middle of a step")
    return Decision(actions, holders, result_from, _odd(reports, holders[0]))


def _start(reports: list[Report]) -> Decision:
    restorable = max(report.checkpoint for report in reports)
    if restorable:
        lead = next(rank for rank, report in enumerate(reports) if report.checkpoint == restorable)
        actions = [Action.COPY] * len(reports)
        actions[lead] = Action.RESTORE
        return Decision(actions, [lead], None, _odd(reports, lead), is_start=True)
    lead = 0
    odd = _odd(reports, lead)
    if len(odd) * 2 > len(reports) - 1 and len(reports) > 2:
        lead = odd[0]  # the majority is right about the ring and the model's shape, not whoever happens to be rank 0
        odd = _odd(reports, lead)
    actions = [Action.COPY] * len(reports)
    actions[lead] = Action.GO_ON
    for rank, report in enumerate(reports):
        if report.digest and report.digest == reports[lead].digest:
            actions[rank] = Action.GO_ON
    sources = [rank for rank, action in enumerate(actions) if action is Action.GO_ON]
    sources.remove(lead)
    return Decision(actions, [lead, *sources], None, odd, is_start=True)


def _odd(reports: list[Report], lead: int) -> list[int]:
    ours = reports[lead]
    return [
        rank for rank, report in enumerate(reports) if (report.ring, report.structure) != (ours.ring, ours.structure)
    ]
