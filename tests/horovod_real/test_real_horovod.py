"""Horovod's own elastic mode under this launcher: real processes of the real Horovod, real signals."""

from __future__ import annotations

import signal

import pytest

from ..system.launching import wait_until_gone
from .lab import HorovodLab

pytestmark = pytest.mark.timeout(200)


def test_survivors_go_on_in_their_processes_when_rank_0_is_killed_and_its_slot_comes_back(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "2", open_ended=True, pause=0.02)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    survivor = lab.pid_of_rank(1)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    assert lab.pid_of_rank(0) == survivor
    lab.wait_for_world(2, 90)
    assert lab.pid_of_rank(0) == survivor
    processes = agent.descendants()
    lab.finish()
    assert agent.wait() == 0
    wait_until_gone(processes)
    lab.check_the_end(2)


def test_a_second_agents_worker_joins_and_is_drained_and_both_agents_exit_0(lab: HorovodLab) -> None:
    first = lab.train("--min", "1", "--max", "2", "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(1, 90)
    founder = lab.pid_of_rank(0)
    second = lab.train("--rendezvous", first.url, "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    assert lab.pid_of_rank(0) == founder
    assert {entry["local_rank"] for entry in lab.journal("step")} == {0}, "two agents are two hosts to Horovod"
    second.signal(signal.SIGTERM)
    assert second.wait(60) == 0
    lab.wait_for_world(1)
    assert "has ended" not in second.output, "nothing crashed"
    lab.finish()
    assert first.wait() == 0
    lab.check_the_end(1)
