"""Workers die at each named point of a forming generation: after a loss, in a planned change, as survivor and as joiner."""

from __future__ import annotations

from pathlib import Path

import pytest

from .launching import Command, Lab

POINTS = ["announced", "connecting", "exchanging", "applying", "copying", "formed"]


@pytest.fixture
def agent(lab: Lab) -> Command:
    """Three workers; every death is answered with a fresh worker."""
    agent = lab.launch("--min", "1", "--max", "3", "--max-restarts", "1000", pause=0.02, open_ended=True)
    lab.wait_for_world(3)
    return agent


def slot_of(lab: Lab, pid: int) -> int:
    return int(lab.journal("ready", pid=pid)[-1]["local_rank"])


def wait_for_death(lab: Lab, note: Path, point: str) -> None:
    lab.wait(lambda: not note.exists(), 60, f"a death at {point}")


def lose_a_survivor_at(lab: Lab, point: str, ranks: tuple[int, int] = (0, 1)) -> None:
    """Kill one member of three; a second one dies at `point` of the generation that follows."""
    victim, witness = (lab.pid_of_rank(rank) for rank in ranks)
    note = lab.plan_death(point, slot_of(lab, witness))
    if point == "applying":
        lose_one_behind_its_backward(lab, victim, note)
    else:
        lab.kill_rank(ranks[0])
        wait_for_death(lab, note, point)


def lose_one_behind_its_backward(lab: Lab, victim: int, note: Path) -> None:
    """A member dies on its way into the vote, until the others apply the step. They do if its death has cut none of their
    reductions short, which is not for it to say: what it had sent may be lost with it."""
    others = {lab.pid_of_rank(rank) for rank in range(3)} - {victim}
    for _ in range(8):
        deaths = len(lab.journal("death", point="voting"))
        lab.plan_death("voting", slot_of(lab, victim))
        lab.wait(lambda before=deaths: len(lab.journal("death", point="voting")) > before, 60, "a death in the vote")
        lab.wait_for_steps(2)
        if not note.exists():
            return
        lab.wait_for_world(3)
        (victim,) = {lab.pid_of_rank(rank) for rank in range(3)} - others
    raise AssertionError("eight members have died behind their backward, and never was the step applied")


def lose_a_joiner_at(lab: Lab, point: str, slot: int) -> None:
    """The next worker of that slot dies at `point` of the generation that takes it in, and its successor comes through."""
    wait_for_death(lab, lab.plan_death(point, slot), point)


@pytest.mark.parametrize("point", ["announced", "connecting", "exchanging", "formed"])
def test_a_survivor_and_a_joiner_may_die_at(point: str, lab: Lab, agent: Command) -> None:
    survivor = lab.pid_of_rank(2)
    slot = slot_of(lab, lab.pid_of_rank(0))
    lose_a_survivor_at(lab, point)
    lose_a_joiner_at(lab, point, slot)
    lab.wait_for_world(3)
    assert lab.pid_of_rank(0) == survivor
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    assert len(lab.journal("death", point=point)) == 2


def test_a_survivor_may_die_while_it_applies_a_step_that_the_others_have_passed(lab: Lab, agent: Command) -> None:
    survivor = lab.pid_of_rank(2)
    lose_a_survivor_at(lab, "applying")
    lab.wait_for_steps(3)
    lab.wait_for_world(3)
    lose_a_survivor_at(lab, "applying", ranks=(2, 1))
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    assert lab.journal("end", pid=survivor)
    assert len(lab.journal("death", point="applying")) == 2


def test_source_and_receiver_may_die_in_the_middle_of_the_copy(lab: Lab, agent: Command) -> None:
    slots = [slot_of(lab, lab.pid_of_rank(rank)) for rank in range(3)]
    lab.kill_rank(0)
    lose_a_joiner_at(lab, "copying", slots[0])
    note = lab.plan_death("copying", slots[1])
    wait_for_death(lab, note, "copying")
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    lab.assert_agreed()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", POINTS)
def test_20_deaths_at(point: str, lab: Lab, agent: Command) -> None:
    for turn in range(10):
        lab.wait_for_world(3)
        lab.wait_for_steps(1 + turn % 3)
        victim, witness = turn % 3, (turn + 1) % 3
        slot = slot_of(lab, lab.pid_of_rank(victim))
        if point == "copying":
            other = slot_of(lab, lab.pid_of_rank(witness))
            lab.kill_rank(victim)
            lose_a_joiner_at(lab, point, slot)
            lose_a_joiner_at(lab, point, other)
        elif point == "applying":
            lose_a_survivor_at(lab, point, (victim, witness))
            lab.wait_for_steps(1)
            lab.wait_for_world(3)
            lose_a_survivor_at(lab, point, (witness, victim))
        else:
            lose_a_survivor_at(lab, point, (victim, witness))
            lose_a_joiner_at(lab, point, slot)
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    assert len(lab.journal("death", point=point)) == 20
