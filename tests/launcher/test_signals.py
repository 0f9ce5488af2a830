"""Signals to an agent, and to what stands before and behind it: shells, the first process of a container, nohup."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from elastic_launch.rendezvous.messages import Exited, Leaving, Registered, Released
from tests.launcher.running import RunningAgent, lives, wait_for_pid, wait_until
from tests.launcher.scripted_server import ScriptedServer
from tests.launcher.test_agent import JOIN, let_it_form

StartAgent = Callable[..., RunningAgent]
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def own_pids() -> tuple[str, ...]:
    """A command that runs another one as the first process of its own world, as a container does."""
    if subprocess.run([*OWN_PIDS, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespace for process ids can be made here")
    return OWN_PIDS


def release_leavers(server: ScriptedServer) -> None:
    server.answers.append(lambda message: Released(message.worker) if isinstance(message, Leaving) else None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_each_signal_that_asks_for_an_end_drains(number: int, server: ScriptedServer, start_agent: StartAgent) -> None:
    release_leavers(server)
    agent = start_agent(*JOIN, "await-released", urls=[server.url])
    worker = let_it_form(server)
    agent.signal(number)
    assert agent.wait() == 0, agent.text()
    assert server.wait_for(Leaving) == [Leaving(worker)]
    assert f"{signal.Signals(number).name}: this agent's workers leave the job" in agent.text()


def test_an_agent_under_nohup_takes_no_notice_of_a_hang_up(server: ScriptedServer, start_agent: StartAgent) -> None:
    release_leavers(server)
    agent = start_agent(*JOIN, "await-released", urls=[server.url], inside=["nohup"])
    let_it_form(server)
    agent.signal(signal.SIGHUP)
    agent.signal(signal.SIGQUIT)  # comes second, and is the one that is heard
    assert agent.wait() == 0, agent.text()
    assert "SIGHUP" not in agent.text()
    assert "SIGQUIT: this agent's workers leave the job" in agent.text()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_death_of_a_shell_that_waits_for_the_agent_reaches_it(
    number: int, shell: str, server: ScriptedServer, start_agent: StartAgent
) -> None:
    release_leavers(server)
    inside = [shell, "-c", '"$@"; exit $?', shell]
    agent = start_agent(*JOIN, "await-released", urls=[server.url], inside=inside)
    let_it_form(server)
    itself = agent.agent_itself()
    assert itself.pid != agent.pid
    workers = itself.children()
    agent.signal(number)
    wait_until(lambda: not lives(itself.pid), "the agent has ended")
    agent.wait()
    assert f"the shell that waited for this agent (pid {agent.pid}) was ended" in agent.text()
    assert server.wait_for(Exited)[0].kind == "left"
    assert not any(lives(worker.pid) for worker in workers)


@pytest.mark.parametrize("shell", SHELLS)
def test_an_agent_in_a_shell_s_background_outlives_it(
    shell: str, server: ScriptedServer, start_agent: StartAgent
) -> None:
    release_leavers(server)
    agent = start_agent(*JOIN, "await-released", urls=[server.url], inside=[shell, "-c", '"$@" & wait', shell])
    let_it_form(server)
    itself = agent.agent_itself()
    agent.signal(signal.SIGKILL)
    agent.process.wait(40)
    itself.send_signal(signal.SIGTERM)
    agent.wait_for_text("SIGTERM: this agent's workers leave the job")
    wait_until(lambda: not lives(itself.pid), "the agent has ended")
    assert "the shell that waited" not in agent.text()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_has_nothing_left_to_do_makes_room_for_the_agent(
    shell: str, server: ScriptedServer, start_agent: StartAgent
) -> None:
    """So that `sh -c "elastic-launch ..."` needs no care; with `exec`, any shell does it."""
    release_leavers(server)
    agent = start_agent(*JOIN, "await-released", urls=[server.url], inside=[shell, "-c", 'exec "$@"', shell])
    let_it_form(server)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_inside_a_worker_s_shell_gets_the_signal_too(
    shell: str, server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    program = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / 'heard')!r}).touch(), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "train.py").write_text(program)
    command = [shell, "-c", f"{sys.executable} {tmp_path / 'train.py'}; exit $?"]
    agent = start_agent(urls=[server.url], command=command)
    agent.wait_for_text("up")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    wait_until((tmp_path / "heard").exists, "the program has heard the signal")


def test_a_worker_that_ignores_termination_is_killed_with_its_group(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    steps = ("deaf", f"child={tmp_path / 'child'}", "register", "sleep")
    agent = start_agent(*steps, urls=[server.url], shutdown_timeout=0.5)
    server.wait_for(Registered)
    child = wait_for_pid(tmp_path / "child")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert "drained, but not in order within 0.5 s" in agent.text()
    wait_until(lambda: not lives(child), "the child has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_the_first_process_of_a_container_heeds_signals(
    number: int, own_pids: tuple[str, ...], server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent("print=up", "sleep", urls=[server.url], inside=own_pids, shutdown_timeout=1.0)
    agent.wait_for_text("up")
    itself = agent.agent_itself()
    assert first_in_its_world(itself)
    itself.send_signal(number)
    if number == signal.SIGINT:
        agent.wait_for_text("a second one ends this agent at once")
        itself.send_signal(number)
    assert agent.wait() == (130 if number == signal.SIGINT else 0), agent.text()


def test_a_signal_that_comes_before_the_agent_is_ready_is_not_lost(
    own_pids: tuple[str, ...], server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent("print=up", "sleep", urls=[server.url], inside=own_pids, shutdown_timeout=2.0)
    itself = agent.agent_itself()
    wait_until(lambda: holds_back_or_handles(itself, signal.SIGTERM), "it minds the signal")
    itself.send_signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert "SIGTERM: this agent's workers leave the job" in agent.text()


def test_the_first_process_of_a_container_reaps_zombies(
    own_pids: tuple[str, ...], server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"escape={tmp_path / 'pid'}", "exit=0", urls=[server.url], inside=own_pids)
    server.wait_for(Exited)
    itself = agent.agent_itself()
    assert first_in_its_world(itself)
    wait_until(lambda: len(orphans_of(itself)) == 1, "the orphan is adopted")
    (orphan,) = orphans_of(itself)
    orphan.kill()
    wait_until(lambda: not orphan.is_running(), "the orphan is reaped")
    itself.send_signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()


def test_a_shell_that_is_the_first_process_of_a_container_is_warned_of(
    own_pids: tuple[str, ...], server: ScriptedServer, start_agent: StartAgent
) -> None:
    inside = [*own_pids, "sh", "-c", '"$@"; exit $?', "sh"]
    agent = start_agent("print=up", "sleep", urls=[server.url], inside=inside)
    agent.wait_for_text("up")
    assert "the first process of this container is a shell" in agent.text()
    assert "exec elastic-launch" in agent.text()
    agent.agent_itself().send_signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()


def holds_back_or_handles(process: psutil.Process, number: int) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigCgt:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def first_in_its_world(process: psutil.Process) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NSpid:")).split()[-1] == "1"


def orphans_of(process: psutil.Process) -> list[psutil.Process]:
    """Children that only sleep, as the `escape` step's do."""
    return [child for child in process.children() if "time.sleep(600)" in " ".join(child.cmdline())]
