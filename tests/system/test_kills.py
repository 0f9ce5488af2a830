"""Workers are killed while the job trains: no sample is lost, none is seen twice, nobody goes back."""

from __future__ import annotations

import random

import pytest

from .conftest import Undisturbed
from .launching import Lab

MANY = ("--max-restarts", "1000")
on_each_backend = pytest.mark.parametrize("backend", ["gloo", "tcp"])
often_on_gloo = pytest.mark.parametrize("backend", ["gloo", pytest.param("tcp", marks=pytest.mark.soak)])


@on_each_backend
def test_each_rank_in_turn_may_be_killed(lab: Lab, undisturbed: Undisturbed, backend: str) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--backend", backend, *MANY, pause=0.03, open_ended=True)
    for rank in range(3):
        lab.wait_for_world(3)
        lab.wait_for_steps(3)
        lab.kill_rank(rank)
        lab.wait_for_world(2)
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)
    lab.assert_follows(undisturbed("--epochs", str(lab.journal("end")[0]["epochs"])))
    assert "was killed by SIGKILL" in agent.output


@often_on_gloo
def test_two_of_three_may_be_killed_at_once_and_rank_0_twice_in_a_row(lab: Lab, backend: str) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--backend", backend, *MANY, pause=0.03, open_ended=True)
    lab.wait_for_world(3)
    lab.kill_rank(1, 2)
    lab.wait_for_world(1)
    lab.wait_for_world(3)
    lab.kill_rank(0)
    lab.wait_for_world(2)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()


def test_survivors_keep_their_processes_and_order_and_the_last_of_four_goes_on_alone(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "4", *MANY, pause=0.05, open_ended=True)
    lab.wait_for_world(4)
    pids = [lab.pid_of_rank(rank) for rank in range(4)]
    lab.kill_rank(1)
    lab.wait_for_world(3)
    assert [lab.pid_of_rank(rank) for rank in range(3)] == [pids[0], pids[2], pids[3]]
    lab.kill_rank(0, 2)
    lab.wait_for_world(1)
    assert lab.journal("step")[-1]["pid"] == pids[2]
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()


def kill_at_random(lab: Lab, kills: int, seed: int) -> None:
    """Kills, in short succession, random members of rings of two or more."""
    source = random.Random(seed)
    for _ in range(kills):
        lab.wait(lambda: lab.world_size() >= 2, 60, "a ring of two or more")
        lab.wait_for_steps(source.randrange(1, 6))
        world_size = lab.world_size()
        if world_size >= 2:
            lab.kill_rank(source.randrange(world_size))
        generation = lab.generation()
        lab.wait(lambda generation=generation: lab.generation() > generation, 60, "the next generation")


@often_on_gloo
def test_8_kills_in_one_run_cost_no_sample(lab: Lab, undisturbed: Undisturbed, backend: str) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--backend", backend, *MANY, pause=0.02, open_ended=True)
    kill_at_random(lab, 8, seed=1)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    lab.assert_follows(undisturbed("--epochs", str(lab.journal("end")[0]["epochs"])))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
@on_each_backend
def test_30_kills_in_one_run_cost_no_sample(lab: Lab, undisturbed: Undisturbed, seed: int, backend: str) -> None:
    flags = ("--min", "1", "--max", "4", "--backend", backend, *MANY)
    agent = lab.launch(*flags, pause=0.01, open_ended=True, evaluate=True)
    kill_at_random(lab, 30, seed)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    lab.assert_follows(undisturbed("--epochs", str(lab.journal("end")[0]["epochs"])))
