"""What is trained on, and what comes out of it, does not depend on how many workers there happened to be."""

from __future__ import annotations

import psutil
import pytest

from .conftest import Undisturbed
from .launching import Lab, wait_until_gone

MANY = ("--max-restarts", "1000")


def churn(lab: Lab, world_size: int = 3, **options: object) -> None:
    """A run with two losses and a join, ended in order."""
    agent = lab.launch("--min", "1", "--max", str(world_size), *MANY, **{"open_ended": True, "pause": 0.02, **options})
    lab.wait_for_world(world_size)
    lab.wait_for_steps(3)
    lab.kill_rank(0)
    lab.wait_for_world(world_size - 1)
    lab.wait_for_steps(3)
    lab.wait_for_world(world_size)
    lab.kill_rank(world_size - 1)
    lab.wait_for_world(world_size - 1)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0


@pytest.mark.soak
def test_losses_in_float32_follow_those_of_one_undisturbed_worker(lab: Lab, undisturbed: Undisturbed) -> None:
    churn(lab, dtype="float32", optimizer="adamw")
    lab.assert_exact()
    lab.assert_follows(undisturbed("--epochs", "300", "--dtype", "float32", "--optimizer", "adamw"), 1e-3)


def test_a_global_batch_smaller_than_the_ring_and_a_short_last_one_are_exact(
    lab: Lab, undisturbed: Undisturbed
) -> None:
    """Three workers share batches of two samples, of which the last has one."""
    churn(lab, samples=15, global_batch=2)
    lab.assert_exact(samples=15)
    lab.assert_follows(undisturbed("--epochs", "300", "--samples", "15", "--global-batch", "2"))


def test_loader_processes_serve_each_sample_once_under_kills_and_none_of_them_is_left(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, open_ended=True, pause=0.02, num_workers=2)
    lab.wait_for_world(3)
    seen = agent.descendants()
    for _ in range(2):
        victim = psutil.Process(lab.pid_of_rank(1))
        children = victim.children(recursive=True)
        assert len(children) >= 2
        lab.kill_rank(1)
        wait_until_gone([victim, *children])
        lab.wait_for_world(2)
        lab.wait_for_world(3)
        seen += agent.descendants()
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)
    wait_until_gone(seen)


def test_a_batch_per_worker_makes_the_global_batch_follow_the_ring(lab: Lab) -> None:
    churn(lab, batch_per_worker=10)
    lab.assert_exact()
    ends = lab.journal("end")
    assert ends[0]["steps"] < ends[0]["epochs"] * 20, "20 steps make an epoch of one worker"


def test_batch_norm_statistics_are_the_same_everywhere_after_each_change(lab: Lab) -> None:
    churn(lab, norm="batch", evaluate=True)
    lab.assert_exact()
    for epoch in {entry["epoch"] for entry in lab.journal("evaluated")}:
        assert len({entry["loss"] for entry in lab.journal("evaluated", epoch=epoch)}) == 1
