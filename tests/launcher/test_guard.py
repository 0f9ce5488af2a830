from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from elastic_launch.launcher.guarding import Guard
from tests.launcher.running import lives, wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_what_is_written_down_dies_with_the_agent(sleeper: subprocess.Popen[bytes]) -> None:
    guard = Guard()
    guard.add(sleeper.pid)
    guard.close()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_what_was_crossed_out_lives_on(sleeper: subprocess.Popen[bytes]) -> None:
    guard = Guard()
    guard.add(sleeper.pid)
    guard.remove(sleeper.pid)
    guard.close()
    assert sleeper.poll() is None


def test_a_guard_that_dies_is_replaced_and_knows_what_the_first_one_knew(sleeper: subprocess.Popen[bytes]) -> None:
    async def kill_and_wait(guard: Guard) -> None:
        guard.watch(asyncio.get_running_loop())
        os.kill(first, signal.SIGKILL)
        while guard.pid == first:
            await asyncio.sleep(0.01)

    guard = Guard()
    first = guard.pid
    guard.add(sleeper.pid)
    asyncio.run(asyncio.wait_for(kill_and_wait(guard), 10))
    assert lives(guard.pid)
    assert sleeper.poll() is None
    guard._groups.clear()  # so that only the second guard can know
    guard.close()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_a_guard_that_died_unseen_is_replaced_when_it_is_told_something(sleeper: subprocess.Popen[bytes]) -> None:
    guard = Guard()
    first = guard.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not lives(first), "the guard is dead")
    guard.add(sleeper.pid)
    assert guard.pid != first
    guard.close()
    assert sleeper.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_guard_ignores_polite_signals(number: int) -> None:
    guard = Guard()
    for _ in range(20):  # from its first moment on
        os.kill(guard.pid, number)
        time.sleep(0.005)
    assert lives(guard.pid)
    guard.close()


def test_a_guard_has_a_name_and_holds_nothing_of_the_agent_s() -> None:
    guard = Guard()
    process = psutil.Process(guard.pid)
    wait_until(lambda: process.name() == "elastic-guard", "the guard has its name")
    assert process.num_fds() <= 3
    assert os.getsid(guard.pid) == guard.pid
    pid = guard.pid
    guard.close()
    assert not lives(pid)
