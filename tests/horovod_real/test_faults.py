"""More of what may happen to the real Horovod's processes and agents. Long: each starts torch several times."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from ..system.launching import wait_until_gone
from .lab import HorovodLab

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]


def test_nobody_waits_for_gloos_timeout_when_one_of_four_is_killed(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "4", open_ended=True, pause=0.02, gloo_timeout=100)
    lab.wait_for_world(4, 120)
    lab.wait_for_steps(5)
    lab.kill_rank(2)
    began = time.monotonic()
    lab.wait_for_world(3)
    assert time.monotonic() - began < 20
    lab.wait_for_world(4, 120)
    lab.finish()
    assert agent.wait() == 0
    lab.check_the_end(4)


def test_five_kills_one_after_the_other_lose_no_committed_step(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "3", "--max-restarts", "9", open_ended=True, pause=0.02)
    chance = random.Random(5)
    for _ in range(5):
        lab.wait_for_world(3, 120)
        lab.wait_for_steps(chance.randint(1, 9))
        lab.kill_rank(chance.randrange(3))
        lab.wait_for_world(2)
    lab.wait_for_world(3, 120)
    processes = agent.descendants()
    lab.finish()
    assert agent.wait() == 0
    wait_until_gone(processes)
    lab.check_the_end(3)


def test_a_lost_host_takes_no_meeting_point_with_it(lab: HorovodLab) -> None:
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1")
    agents = [lab.train(*flags, open_ended=True, pause=0.02) for _ in range(2)]
    lab.wait_for_world(2, 90)
    founders = lab.newest_ring()
    first = next(agent for agent in agents if founders[0] in {process.pid for process in agent.descendants()})
    first.end()
    agents.remove(first)
    lab.wait_for_world(1)
    assert lab.newest_ring() == founders[1:]
    lab.finish()
    assert agents[0].wait() == 0
    lab.check_the_end(1)


def test_a_process_that_stands_still_is_killed_and_its_slot_comes_back(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "2", "--hang-timeout", "5", open_ended=True, pause=0.02, gloo_timeout=5)
    lab.wait_for_world(2, 90)
    lab.signal_rank(1, signal.SIGSTOP)
    lab.wait_for_world(1)
    assert "hung: its ring broke" in agent.output
    lab.wait_for_world(2, 90)
    lab.finish()
    assert agent.wait() == 0
    lab.check_the_end(2)


def test_fewer_than_min_wait_at_the_door_with_their_state(lab: HorovodLab) -> None:
    agent = lab.train("--min", "2", "--max", "2", open_ended=True, pause=0.02)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    survivor = lab.pid_of_rank(1)
    lab.kill_rank(0)
    lab.wait(lambda: lab.world_size() == 2 and lab.pid_of_rank(0) == survivor, 90, "a ring that the survivor leads")
    assert {entry["world_size"] for entry in lab.journal("step")} == {2}
    lab.finish()
    assert agent.wait() == 0
    lab.check_the_end(2)


def test_a_joiner_that_has_not_got_the_state_does_not_begin_anew_when_all_holders_are_gone(lab: HorovodLab) -> None:
    first = lab.train("--min", "1", "--max", "2", "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(1, 90)
    holder = lab.pid_of_rank(0)
    (lab.folder / "prepare").touch()
    second = lab.train("--rendezvous", first.url, "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_entry("preparing", 90)
    steps = len(lab.journal("step"))
    os.kill(holder, signal.SIGKILL)
    (lab.folder / "prepare").unlink()
    assert first.wait(120) == 76
    assert second.wait(60) == 76
    assert len(lab.journal("step")) == steps


def test_a_lone_agent_is_drained_after_a_commit(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(1, 90)
    agent.signal(signal.SIGTERM)
    assert agent.wait(60) == 0
    assert "Traceback" not in agent.output


def test_a_script_without_the_elastic_mode_is_started_again_with_a_place_of_its_own(lab: HorovodLab) -> None:
    agent = lab.train("--min", "2", "--max", "2", script="static.py", steps=150)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    killed = lab.kill_rank(1)
    assert agent.wait(120) == 0
    steps = lab.journal("step")
    assert {entry["total"] for entry in steps} == {3.0}
    assert len({entry["pid"] for entry in steps}) == 4
    assert killed[0] not in {entry["pid"] for entry in steps if entry["step"] == 150}
