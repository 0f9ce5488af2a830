"""Whole jobs: agents with the real server in one of them, workers that speak the protocol without training anything."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.running import ROOT, RunningAgent

StartAgent = Callable[..., RunningAgent]
JOIN = ("register", "ready", "form")
MEMBER = (*JOIN, "finish", "await-done")


def url_of(agent: RunningAgent) -> str:
    agent.wait_for_text("further agents join with")
    found = re.search(rb"--rendezvous (http://\S+)", agent.stderr)
    assert found is not None
    return found[1].decode()


def test_a_job_of_one_agent_ends_with_0(start_agent: StartAgent) -> None:
    agent = start_agent(*MEMBER, min=2, max=2, nproc=2)
    assert agent.wait() == 0, agent.text()
    assert b"job 'default' is done" in agent.stderr


def test_a_script_that_never_joins_is_done_when_all_of_it_are(start_agent: StartAgent) -> None:
    agent = start_agent("print=hello", max=2, nproc=2)
    assert agent.wait() == 0, agent.text()
    assert agent.stdout.count(b"hello") == 2


def test_crashes_beyond_the_budget_fail_the_job_with_the_worker_s_code(start_agent: StartAgent) -> None:
    agent = start_agent("error=no luck", "exit=3", max_restarts=1)
    assert agent.wait() == 3, agent.text()
    assert agent.stderr.count(b"[g0 w0 here] no luck") == 2
    assert agent.stderr.count(b"  no luck") == 1  # once in the last words


def test_a_crash_within_the_budget_costs_nothing(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(f"once={tmp_path / 'crashed'}:exit=3", *MEMBER)
    assert agent.wait() == 0, agent.text()


def test_an_agent_joins_another_one_s_job_and_hears_of_its_end(start_agent: StartAgent) -> None:
    first = start_agent(*MEMBER, min=2, max=2, nproc=1)
    second = start_agent(*MEMBER, urls=[url_of(first)], describes_job=False, host="there")
    assert first.wait() == 0, first.text()
    assert second.wait() == 0, second.text()


def test_a_failed_job_ends_all_its_agents_with_the_same_code(start_agent: StartAgent) -> None:
    first = start_agent(*JOIN, "sleep", min=2, max=2, nproc=1, max_restarts=0)
    second = start_agent(*JOIN, "exit=5", urls=[url_of(first)], describes_job=False, host="there")
    assert second.wait() == 5, second.text()
    assert first.wait() == 5, first.text()


def test_a_termination_takes_one_agent_out_of_the_job(start_agent: StartAgent) -> None:
    first = start_agent(*JOIN, "print=alone", "form", "form", "finish", "await-done", min=1, max=2, nproc=1)
    first.wait_for_text("g1 r0 here] alone")
    second = start_agent(*JOIN, "print=in", "await-released", urls=[url_of(first)], describes_job=False, host="there")
    second.wait_for_text("g2 r1 there] in")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.text()
    assert first.wait() == 0, first.text()
    assert b"generation 3: 1 worker (" in first.stderr


def test_an_interrupt_stops_the_job_with_130(start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "print=in", "await-released")
    agent.wait_for_text("r0 here] in")
    agent.signal(signal.SIGINT)
    assert agent.wait() == 130, agent.text()


def test_a_termination_of_the_only_agent_ends_it_with_0(start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "print=in", "await-released")
    agent.wait_for_text("r0 here] in")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()


def test_an_agent_that_serves_goes_on_for_a_while_after_its_drain(start_agent: StartAgent) -> None:
    first = start_agent(*JOIN, "form", "await-released", min=1, max=2, nproc=1, shutdown_timeout=2.0)
    first.wait_for_text("generation 1: 1 worker (")
    steps = (*JOIN, "print=in", "form", "sleep")
    second = start_agent(*steps, urls=[url_of(first)], describes_job=False, host="there")
    second.wait_for_text("g2 r1 there] in")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.text()
    assert b"1 other agents need the server in this agent" in first.stderr
    assert b"they have lost it" in first.stderr
    second.wait_for_text("the workers go on without it")
    assert second.process.poll() is None


def test_a_job_with_other_sizes_is_refused(start_agent: StartAgent) -> None:
    first = start_agent("sleep", min=1, max=2, nproc=1)
    second = start_agent("sleep", urls=[url_of(first)], min=1, max=3)
    assert second.wait() == 78, second.text()
    assert first.process.poll() is None


def test_a_port_in_use_is_an_error_that_says_what_to_do(start_agent: StartAgent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = start_agent("sleep", port=port)
        assert agent.wait() == 2, agent.text()
        assert f"--port {port}: ".encode() in agent.stderr
        assert b"Choose another port" in agent.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing.py"], 2, "script 'missing.py' does not exist"),
        (["--min", "3", "--max", "2", "train.py"], 2, "--min 3 is above --max 2"),
        (["--max", "1", "train.py"], 7, "exit code 7"),
        (["-m", "train"], 7, "exit code 7"),
        (["--version"], 0, ""),
    ],
)
def test_the_command_itself(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit(7)\n")
    command = [sys.executable, "-m", "elastic_launch.launcher.main", "--max-restarts", "0", *arguments]
    ended = subprocess.run(
        command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=30
    )
    assert ended.returncode == code, ended
    assert text in ended.stderr.decode()


def test_a_pod_without_a_server_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "elastic_launch.launcher.main", "train.py"]
    environ = {"PYTHONPATH": str(ROOT), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=30)
    assert ended.returncode == 2
    assert b"--standalone if that is what you want" in b" ".join(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--rendezvous", "http://127.0.0.1:9", "train.py"]])
def test_an_agent_that_does_not_serve_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    program = (
        "import sys\n"
        "from elastic_launch.launcher.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'fastapi', 'uvicorn', 'pydantic', 'rich', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environ = {"PYTHONPATH": str(ROOT), "ELASTIC_RENDEZVOUS_TIMEOUT": "0.2"}
    ended = subprocess.run([sys.executable, "-c", program, *arguments], cwd=tmp_path, env=environ, timeout=30)
    assert ended.returncode == 0
