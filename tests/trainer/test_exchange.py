"""The decision that follows from the members' reports, by example and against random failures at every point."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launch.errors import ElasticError
from elastic_launch.trainer.exchange import Action, Report, decide


def report(lineage: int, agreed: int, pending: str = "", behind: bool = False, **more: object) -> Report:
    return Report(
        worker="w",
        lineage=lineage,
        agreed=agreed,
        pending=pending,
        stands_behind=behind,
        **more,  # type: ignore[arg-type]
    )


def test_who_is_one_vote_short_applies_the_gradients_that_it_holds() -> None:
    decision = decide([report(3, 7), report(3, 6, "vote", True, ballot=b"b")])
    assert decision.actions == [Action.GO_ON, Action.APPLY]
    assert decision.result_from == 0


def test_all_who_stand_behind_the_step_apply_it() -> None:
    decision = decide([report(3, 6, "vote", True), report(3, 6, "vote", True)])
    assert decision.actions == [Action.APPLY, Action.APPLY]
    assert decision.result_from is None


def test_one_who_lacks_the_gradients_makes_all_redo_the_step() -> None:
    decision = decide([report(3, 6, "vote", True), report(3, 6)])
    assert decision.actions == [Action.REDO, Action.GO_ON]


def test_a_unit_that_somebody_has_passed_is_handed_over() -> None:
    decision = decide([report(3, 6, "unit"), report(3, 7, result=b"42")])
    assert decision.actions == [Action.TAKE_RESULT, Action.GO_ON]
    assert decision.result_from == 1


def test_joiners_and_stale_workers_receive_the_state_from_the_newest_lineage() -> None:
    decision = decide([report(5, 9), report(5, 9), report(3, 20), report(0, 0)])
    assert decision.actions == [Action.GO_ON, Action.GO_ON, Action.COPY, Action.COPY]
    assert decision.sources == [0, 1]
    assert decision.receivers == [2, 3]


def test_nobody_receives_a_state_that_is_in_the_middle_of_a_step() -> None:
    with pytest.raises(ElasticError):
        decide([report(5, 9, "vote", True), report(0, 0)])


def test_at_the_start_rank_0_is_the_source_and_equal_states_need_no_copy() -> None:
    decision = decide([report(0, 0, digest="a"), report(0, 0, digest="b"), report(0, 0, digest="a")])
    assert decision.actions == [Action.GO_ON, Action.COPY, Action.GO_ON]
    assert decision.sources == [0, 2]


def test_at_the_start_the_majority_is_right_about_the_models_shape() -> None:
    decision = decide([report(0, 0, structure="odd"), report(0, 0, structure="x"), report(0, 0, structure="x")])
    assert decision.odd == [0]
    assert decision.sources[0] == 1


def test_who_has_another_kind_of_ring_does_not_fit() -> None:
    decision = decide([report(2, 5, ring="gloo"), report(0, 0, ring="tcp"), report(2, 5, ring="gloo")])
    assert decision.odd == [1]
    assert decide([report(0, 0, ring="tcp"), report(0, 0, ring="gloo"), report(0, 0, ring="gloo")]).odd == [0]


def test_the_newest_checkpoint_is_restored_by_one_and_received_by_all_others() -> None:
    decision = decide([report(0, 0, checkpoint=10), report(0, 0, checkpoint=20), report(0, 0)])
    assert decision.actions == [Action.COPY, Action.RESTORE, Action.COPY]


@dataclass
class Simulated:
    """One worker of the simulation. `applied` lists the steps whose gradients it has applied, with who reduced them."""

    name: int
    lineage: int = 1
    agreed: int = 0
    applied: list[int] = field(default_factory=list)
    pending: str = ""
    behind: bool = False
    alive: bool = True

    def claim(self) -> Report:
        return report(self.lineage, self.agreed, self.pending, self.behind)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_random_failure_makes_a_member_lose_repeat_or_skip_a_step(data: st.DataObject) -> None:
    """Members take steps; in each, a failure may strike some before their backward, behind it, or past the vote.

    The rules of the real thing: the vote can pass at a member only if every member stands behind the backward; some members
    may die at any point; a generation may fail to form, or form and be released to some only, before the next one.
    """
    members = [Simulated(name) for name in range(data.draw(st.integers(1, 5)))]
    generation = 1
    for step in range(1, data.draw(st.integers(1, 8)) + 1):
        everybody = [member for member in members if member.alive]
        all_behind = data.draw(st.booleans(), label="all pass backward")
        passed = []
        for member in everybody:
            if all_behind and data.draw(st.booleans(), label="vote passes here"):
                member.agreed, member.pending, member.behind = step, "", False
                member.applied.append(step)
                passed.append(member)
            else:
                behind = all_behind or data.draw(st.booleans(), label="behind")
                member.pending = "vote" if behind else ""
                member.behind = behind
        if not all_behind and all(member.behind for member in everybody):
            all_behind = True
        if len(passed) == len(everybody):
            continue
        for member in everybody:
            member.alive = data.draw(st.booleans(), label="survives")
        while any(member.alive and member.agreed < step for member in members):
            living = [member for member in members if member.alive]
            decision = decide([member.claim() for member in living])
            generation += 1
            fate = data.draw(st.sampled_from(["released", "failed", "released to some"]), label="forming")
            if fate == "failed":
                if len(living) > 1 and data.draw(st.booleans(), label="loses one"):
                    data.draw(st.sampled_from(living)).alive = False
                continue
            unheard = [living[0]] if fate == "released to some" and len(living) > 1 else []
            redo = Action.APPLY not in decision.actions and not any(m.agreed == step for m in living)
            for member, action in zip(living, decision.actions, strict=True):
                member.lineage = generation
                if member in unheard:
                    continue
                if action is Action.APPLY:
                    member.agreed = step
                    member.applied.append(step)
                    member.pending, member.behind = "", False
                elif redo:
                    member.pending, member.behind = "", False
            if unheard and data.draw(st.booleans(), label="loses one who heard"):
                living[-1].alive = False
            if redo and not unheard:  # the step is done again, undisturbed
                for member in living:
                    member.agreed = step
                    member.applied.append(step)
    for member in members:
        if member.alive:
            assert member.applied == list(range(1, member.agreed + 1))
    assert len({member.agreed for member in members if member.alive}) <= 1


def test_a_member_that_cannot_follow_is_a_violation_of_the_protocol() -> None:
    with pytest.raises(ElasticError, match="cannot follow"):
        decide([report(3, 8), report(3, 6, "vote", True)])
