"""Processes that stand still: stopped workers, agents and servers, a held GIL; and the orders to stop."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .launching import Command, Lab

MANY = ("--max-restarts", "1000")


def test_a_stopped_worker_is_evicted_after_the_hang_limit_and_comes_back_as_a_joiner(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--hang-timeout", "3", epochs=1, samples=24_000, pause=0.02)
    lab.wait_for_world(3)
    stopped = lab.signal_rank(0, signal.SIGSTOP)
    lab.wait_for_world(2, 20)
    lab.wait_for_text(agent, "hangs")
    lab.wait_for_steps(5)
    os.kill(stopped, signal.SIGCONT)
    back = lab.wait_for_entry("change", pid=stopped, world_size=3, cause="joined")
    assert back["rank"] == 2
    assert agent.wait() == 0
    lab.assert_exact(members=3, samples=24_000)
    assert len(lab.journal("ready")) == 3, "a process was started anew"


def test_a_stopped_worker_whose_epoch_is_over_comes_back_as_a_fresh_process(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--hang-timeout", "3", open_ended=True, pause=0.02)
    lab.wait_for_world(3)
    stopped = lab.signal_rank(0, signal.SIGSTOP)
    lab.wait_for_world(2, 20)
    lab.wait_for_steps(10)
    os.kill(stopped, signal.SIGCONT)
    lab.wait(lambda: len(lab.journal("ready")) == 4, 60, "a fresh process")
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    assert "started afresh" in agent.output
    lab.assert_exact(members=3)


@pytest.mark.parametrize("seconds", [8.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_a_worker_whose_main_thread_holds_the_gil_for_longer_than_the_lease_is_not_declared_dead(
    lab: Lab, seconds: float
) -> None:
    agent = lab.launch("--min", "2", "--max", "2", hold_gil_at=5, hold_gil_for=seconds, epochs=2)
    assert agent.wait(90 + seconds) == 0
    lab.assert_exact(epochs=2, members=2)
    lab.assert_nothing_redone()
    assert lab.generation() == 1
    times = [entry["time"] for entry in lab.journal("step", step=5)]
    assert max(times) - lab.journal("holding")[0]["time"] > seconds - 1


@pytest.fixture
def two_agents(lab: Lab) -> tuple[Command, Command, Command]:
    """A server of its own, and two agents with a worker each, in training."""
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1", *MANY)
    options = {"open_ended": True, "pause": 0.02}
    first, second = lab.launch(*flags, **options), lab.launch(*flags, **options)
    lab.wait_for_world(2)
    return server, first, second


def pids(agent: Command) -> set[int]:
    return {worker.pid for worker in agent.workers()}


def test_the_workers_of_a_stopped_agent_are_given_up_after_the_lease_and_come_back_with_it(
    lab: Lab, two_agents: tuple[Command, Command, Command]
) -> None:
    _, first, second = two_agents
    second.signal(signal.SIGSTOP)
    lab.wait_for_world(1, 20)
    lab.wait_for_steps(5)
    second.signal(signal.SIGCONT)
    lab.wait_for_world(2)
    lab.finish()
    assert [first.wait(), second.wait()] == [0, 0]
    lab.assert_exact(members=2)


def test_a_server_stopped_for_longer_than_the_lease_costs_nothing(
    lab: Lab, two_agents: tuple[Command, Command, Command]
) -> None:
    server, first, second = two_agents
    mine, generation = pids(first) | pids(second), lab.generation()
    server.signal(signal.SIGSTOP)
    before = lab.step()
    time.sleep(4.5)
    lab.wait_for_step(before + 20)  # an intact ring goes on without a server
    server.signal(signal.SIGCONT)
    lab.wait_for_steps(50)
    assert pids(first) | pids(second) == mine
    assert lab.generation() == generation
    lab.kill_rank(0)
    lab.wait_for_world(1)
    lab.wait_for_world(2)
    lab.finish()
    assert [first.wait(), second.wait()] == [0, 0]
    lab.assert_exact(members=2)


def test_a_loss_while_the_server_is_stopped_is_dealt_with_when_it_goes_on(
    lab: Lab, two_agents: tuple[Command, Command, Command]
) -> None:
    server, first, second = two_agents
    generation = lab.generation()
    server.signal(signal.SIGSTOP)
    lab.kill_rank(0)
    time.sleep(4)
    assert lab.generation() == generation
    server.signal(signal.SIGCONT)
    lab.wait_for_world(1)
    lab.wait_for_world(2)
    lab.finish()
    assert [first.wait(), second.wait()] == [0, 0]
    lab.assert_exact(members=2)


def test_an_interrupt_stops_the_job_in_order_and_a_second_one_at_once(lab: Lab) -> None:
    agent = lab.launch("--max", "2", open_ended=True, pause=0.02)
    lab.wait_for_world(2)
    agent.signal(signal.SIGINT)
    assert agent.wait(20) == 130
    assert "was stopped" in agent.output
    lab.assert_agreed()
    again = lab.launch("--max", "2", open_ended=True, pause=0.02)
    seen = len(lab.journal("step"))
    lab.wait(lambda: len(lab.journal("step")) > seen, 60, "steps of the second job")
    with lab.held("step"):
        again.signal(signal.SIGINT)
        lab.wait_for_text(again, "SIGINT")
        again.signal(signal.SIGINT)
        assert again.wait(20) == 130


def test_an_early_stop_is_agreed_by_all_at_the_same_step(lab: Lab) -> None:
    agent = lab.launch("--max", "3", "--min", "3", stop_at=10, epochs=20)
    assert agent.wait() == 0
    ends = lab.journal("end")
    assert len(ends) == 3
    assert {end["steps"] for end in ends} <= {11, 12}
    assert len({end["steps"] for end in ends}) == 1
