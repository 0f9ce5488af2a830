"""Workers come and go by plan: at a boundary that all agree on, with nothing redone, wherever in the script that finds them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .conftest import Undisturbed
from .launching import Command, Lab

MANY = ("--max-restarts", "1000")


def serve_one(lab: Lab, *flags: str, **options: object) -> Command:
    """An agent with one worker, which serves the job for up to three."""
    return lab.launch("--min", "1", "--max", "3", "--nproc-per-node", "1", *flags, **{"open_ended": True, **options})


def join_one(lab: Lab, first: Command, *flags: str, **options: object) -> Command:
    """Another agent with one worker."""
    return lab.launch("--rendezvous", first.url, "--nproc-per-node", "1", *flags, **{"open_ended": True, **options})


def wait_until_announced(lab: Lab, first: Command, world_size: int, cause: str) -> None:
    lab.wait_for_text(first, f": {world_size} workers ({cause}")


@pytest.mark.parametrize("backend", ["gloo", pytest.param("tcp", marks=pytest.mark.soak)])
def test_agents_join_anywhere_in_the_script_and_leave_again_with_nothing_redone(
    lab: Lab, undisturbed: Undisturbed, backend: str
) -> None:
    options = {"pause": 0.03, "evaluate": True}
    first = serve_one(lab, "--backend", backend, **options)
    others = []
    for number, place in enumerate(["epoch start", "epoch end"], 2):
        with lab.held(place):
            others.append(join_one(lab, first, "--backend", backend, **options))
            wait_until_announced(lab, first, number, "a worker joined")
        lab.wait_for_world(number)
    for number, (agent, place) in enumerate(zip(others, ["evaluation", "step"], strict=True)):
        with lab.held(place):
            agent.signal(signal.SIGTERM)
            lab.wait_for_text(agent, "leave the job")
        assert agent.wait(30) == 0
        lab.wait_for_world(2 - number)
    lab.finish()
    assert first.wait() == 0
    lab.assert_exact(members=1)
    lab.assert_nothing_redone()
    lab.assert_follows(undisturbed("--epochs", "300"))
    assert len({entry["loss"] for entry in lab.journal("evaluated", epoch=0)}) == 1


def test_a_loss_overtakes_a_planned_change_which_comes_after_it(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, open_ended=True, pause=0.02)
    lab.wait_for_world(3)
    lab.kill_rank(2)
    lab.wait_for_world(2)
    with lab.held("step"):
        wait_until_announced(lab, agent, 3, "a worker joined")
        announced = lab.generation() + 1
        lab.kill_rank(1)
        lab.wait_for_text(agent, f"generation {announced + 1}: 1 worker")
    lab.wait_for_world(3)
    assert not lab.journal("change", generation=announced)
    assert {entry["rank"] for entry in lab.journal("change", generation=announced + 1)} == {0}
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)


def test_a_standby_that_dies_after_it_was_announced_costs_the_others_no_step_back(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, open_ended=True, pause=0.02)
    lab.wait_for_world(3)
    lab.kill_rank(2)
    lab.wait_for_world(2)
    with lab.held("step"):
        wait_until_announced(lab, agent, 3, "a worker joined")
        os.kill(lab.journal("ready")[-1]["pid"], signal.SIGKILL)
        lab.wait_for_text(agent, f"generation {lab.generation() + 2}: 2 workers")
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)


def test_a_member_that_leaves_while_another_arrives_is_replaced_by_it(lab: Lab) -> None:
    first = serve_one(lab, "--min", "2", pause=0.02)
    second = join_one(lab, first, pause=0.02)
    lab.wait_for_world(2)
    third = join_one(lab, first, pause=0.02)
    with lab.held("joining"):
        second.signal(signal.SIGTERM)
    assert second.wait(30) == 0
    lab.wait(lambda: len({e["pid"] for e in lab.journal("step", world_size=2)}) == 3, 60, "a step of the third")
    lab.finish()
    assert [first.wait(), third.wait()] == [0, 0]
    lab.assert_exact(members=2)
    lab.assert_nothing_redone()


def test_below_min_the_members_hold_their_state_until_somebody_comes(lab: Lab) -> None:
    first = serve_one(lab, "--min", "2", pause=0.02)
    second = join_one(lab, first, pause=0.02)
    lab.wait_for_world(2)
    lab.kill_rank(1)
    lab.wait_for_entry("change", world_size=1)
    lab.wait_for_entry("change", world_size=2, cause="joined")
    lab.wait_for_steps(2)
    lab.finish()
    assert [first.wait(), second.wait()] == [0, 0]
    lab.assert_exact(members=2)
    below = {entry["step"] for entry in lab.journal("step", world_size=1)}
    assert below <= lab.finished_without_a_voter(), "a step was taken below --min"


def test_the_drained_last_holder_leaves_a_checkpoint_from_which_the_job_goes_on(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    options = {"checkpoint": folder, "checkpoint_every": 1000, "epochs": 30, "pause": 0.02}
    drained = lab.launch("--max", "2", **options)
    lab.wait_for_world(2)
    lab.wait_for_step(9)
    drained.signal(signal.SIGTERM)
    assert drained.wait(30) == 0
    step = lab.step()
    assert not lab.journal("end")
    again = lab.launch("--max", "2", **{**options, "pause": 0})
    assert again.wait() == 0
    lab.assert_exact(epochs=30, members=2)
    assert {entry["step"] for entry in lab.journal("change", generation=1)} == {0, step}
    assert len(lab.journal("step", step=step + 1)) == 2, "a step was taken twice"


def test_the_drained_last_holder_without_a_checkpoint_leaves_all_the_same(lab: Lab) -> None:
    agent = lab.launch("--max", "2", open_ended=True, pause=0.02)
    lab.wait_for_world(2)
    agent.signal(signal.SIGTERM)
    assert agent.wait(30) == 0
    assert not lab.journal("end")
    assert "drained" in agent.output
