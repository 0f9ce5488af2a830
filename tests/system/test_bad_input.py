"""Flags and addresses that cannot work: an exit code, and a message that says what to do, before anything is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from .launching import ROOT, SCRIPTS, Lab


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "elastic_launch.launcher.main", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.returncode, done.stdout.decode()


SCRIPT = str(SCRIPTS / "plain.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-script.py"], "script 'no-such-script.py' does not exist"),
        (["-m", "no_such_module"], "module 'no_such_module' cannot be found"),
        (["--min", "3", "--max", "2", SCRIPT], "--min 3 is above --max 2"),
        (["--min", "0", SCRIPT], "--min is '0': give a whole number of at least 1"),
        (["--max", "many", SCRIPT], "--max is 'many': give a whole number of at least 1"),
        (["--min-timeout", "soon", SCRIPT], "--min-timeout is 'soon': give a number of seconds above 0"),
        (["--rendezvous", "localhost", SCRIPT], "give it as http://HOST:PORT"),
        (["--job", "a/b", SCRIPT], "--job"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(arguments: list[str], message: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert message in output
    assert "Traceback" not in output


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = run("--port", str(port), SCRIPT, "--sleep", "30")
    assert code == 2
    assert f"--port {port}" in output
    assert "Traceback" not in output


def test_a_server_that_nothing_answers_is_looked_for_and_then_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    began = time.monotonic()
    code, output = run("--rendezvous", url, "--rendezvous-timeout", "2", SCRIPT)
    assert code == 69
    assert url in output
    assert time.monotonic() - began > 1, "it was looked for once only"
    assert "Traceback" not in output


def test_an_agent_whose_flags_contradict_the_job_is_refused(lab: Lab) -> None:
    first = lab.launch("--max", "2", "--nproc-per-node", "1", script="plain.py", sleep=60)
    second = lab.launch("--rendezvous", first.url, "--max", "3", script="plain.py")
    assert second.wait(30) == 78
    assert "the rendezvous server refused this agent" in second.output
    assert first.process.poll() is None
