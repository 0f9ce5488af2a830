"""However an agent dies, nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from elastic_launch.rendezvous.messages import Registered
from tests.launcher.running import RunningAgent, lives, wait_for_pid, wait_until
from tests.launcher.scripted_server import ScriptedServer

StartAgent = Callable[..., RunningAgent]


def family_of(agent: RunningAgent, *others: int) -> list[int]:
    return [agent.pid, *(process.pid for process in agent.descendants()), *others]


def guard_of(agent: RunningAgent) -> psutil.Process:
    return next(process for process in agent.descendants() if process.name() == "elastic-guard")


def wait_until_all_are_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(lives(pid) for pid in pids), f"{pids} are gone", within=20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_no_process_outlives_an_agent_that_is_killed(
    number: int, server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent("deaf", f"child={tmp_path / 'child'}", "register", "sleep", urls=[server.url], nproc=2, max=2)
    server.wait_for(Registered, count=2)
    pids = family_of(agent, wait_for_pid(tmp_path / "child"))
    assert len(pids) >= 6  # the agent, its guard, two workers with a child each
    agent.signal(number)
    agent.wait()
    wait_until_all_are_gone(pids)


def test_the_children_of_a_stopped_worker_end_with_the_agent(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"child={tmp_path / 'child'}", "register", "sleep", urls=[server.url])
    server.wait_for(Registered)
    pids = family_of(agent, wait_for_pid(tmp_path / "child"))
    for process in agent.descendants():
        if process.name() != "elastic-guard":
            process.suspend()
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_until_all_are_gone(pids)


def test_a_guard_that_was_killed_before_makes_no_difference(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"child={tmp_path / 'child'}", "register", "sleep", urls=[server.url])
    server.wait_for(Registered)
    first = guard_of(agent)
    first.kill()
    wait_until(lambda: any(p.name() == "elastic-guard" and p.pid != first.pid for p in agent.descendants()), "replaced")
    pids = family_of(agent, wait_for_pid(tmp_path / "child"))
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_until_all_are_gone(pids)


def test_workers_die_even_if_guard_and_agent_are_killed_together(
    server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent("deaf", "register", "sleep", urls=[server.url])
    server.wait_for(Registered)
    pids = family_of(agent)
    guard = guard_of(agent)
    os.kill(agent.pid, signal.SIGSTOP)
    guard.kill()
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait_until_all_are_gone(pids)


def test_the_ports_of_an_agent_that_is_killed_are_free(start_agent: StartAgent) -> None:
    agent = start_agent("deaf", "print=up", "sleep", nproc=1)
    agent.wait_for_text("serving job 'default'")
    agent.wait_for_text("up")
    ports = [
        connection.laddr.port
        for connection in psutil.Process(agent.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(ports) == 2  # the server, and the meeting point
    agent.signal(signal.SIGKILL)
    agent.wait()
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_an_agent_that_ends_by_itself_leaves_nothing(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"child={tmp_path / 'child'}", "print=up", "sleep", urls=[server.url], nproc=2, max=2)
    agent.wait_for_text("up")
    pids = family_of(agent, wait_for_pid(tmp_path / "child"))
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert not any(lives(pid) for pid in pids)
