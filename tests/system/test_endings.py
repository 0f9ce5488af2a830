"""The end of a job: some have finished, others have not, and somebody dies in between; the same around an evaluation."""

from __future__ import annotations

import math
import os
import signal

import pytest

from .conftest import Undisturbed
from .launching import Lab

MANY = ("--max-restarts", "1000")


def test_the_loss_of_a_finished_member_costs_nothing_while_others_still_end(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, epochs=2, linger="0:6")
    lab.wait(lambda: len(lab.journal("end")) == 2, 60, "two finished members")
    assert agent.process.poll() is None
    os.kill(lab.journal("end")[0]["pid"], signal.SIGKILL)
    assert agent.wait() == 0
    lab.assert_exact(epochs=2, members=3)
    lab.assert_nothing_redone()


def test_the_loss_of_the_last_member_that_has_not_finished_ends_the_job_with_success(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, epochs=2, linger="0:100")
    lab.wait(lambda: len(lab.journal("end")) == 2, 60, "two finished members")
    os.kill(lab.wait_for_entry("lingering")["pid"], signal.SIGKILL)
    assert agent.wait() == 0
    lab.assert_exact(epochs=2, members=2)


@pytest.mark.parametrize("point", ["voting", "voted"])
def test_a_loss_in_the_last_step_is_made_good_by_those_who_are_left(lab: Lab, point: str) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, samples=32, epochs=1)  # one step
    with lab.held("epoch start"):
        lab.wait(lambda: len(lab.journal("held")) == 3, 60, "three members")
        lab.plan_death(point, 1)
    assert agent.wait() == 0
    lab.assert_exact(epochs=1, samples=32)
    assert lab.journal("death")


def test_a_loss_in_an_evaluation_makes_the_others_do_it_again_and_the_result_stays_exact(
    lab: Lab, undisturbed: Undisturbed
) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, evaluate=True, open_ended=True, pause=0.02)
    lab.wait_for_world(3)
    with lab.held("evaluation"):
        epoch = lab.journal("evaluating")[-1]["epoch"]
        lab.kill_rank(1)
        lab.wait_for_text(agent, ": 2 workers")
    lab.wait_for_entry("evaluated", epoch=epoch, world_size=2)
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)
    lab.assert_nothing_redone()
    expected = {e["epoch"]: e["loss"] for e in undisturbed("--epochs", "300", "--evaluate").journal("evaluated")}
    for entry in lab.journal("evaluated"):
        assert math.isclose(entry["loss"], expected[entry["epoch"]], rel_tol=1e-9)
