"""Signals that reach every process of a batch job: a worker goes on, and what it has started ends as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

BEGINNING = """\
import multiprocessing, os, signal, subprocess, sys, time
from elastic_launch.trainer.shield import raise_shield
"""
GOES_ON = "raise_shield(); os.kill(os.getpid(), signal.{name}); print('alive')"
KEEPS_HANDLERS = """
signal.signal(signal.SIGTERM, lambda *_: print("the script's own"))
raise_shield()
os.kill(os.getpid(), signal.SIGTERM)
"""
CHILDREN_END = """
raise_shield()
started = subprocess.Popen(["sleep", "60"])
started.terminate()
print("program", started.wait(10))
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
forked.start()
forked.terminate()
forked.join(10)
print("process", forked.exitcode)
left = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
left.start()  # multiprocessing ends it when this process exits, and waits for that
"""


def run(script: str, signals: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ELASTIC_AGENT_ANSWERS": signals}
    command = [sys.executable, "-c", BEGINNING + script]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_worker_goes_on_where_its_agent_answers(name: str) -> None:
    assert run(GOES_ON.format(name=name), "SIGTERM,SIGUSR1").stdout == "alive\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_elsewhere_a_signal_ends_it(name: str) -> None:
    assert run(GOES_ON.format(name=name), "").returncode == -signal.Signals[name]


def test_a_handler_of_the_scripts_stays() -> None:
    assert run(KEEPS_HANDLERS, "SIGTERM").stdout == "the script's own\n"


def test_what_a_worker_has_started_ends_by_sigterm_as_ever() -> None:
    ended = run(CHILDREN_END, "SIGTERM")
    assert (ended.stdout, ended.returncode) == ("program -15\nprocess -15\n", 0), ended.stderr
