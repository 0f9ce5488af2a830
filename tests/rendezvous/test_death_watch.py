"""A worker's death is noticed before its memory is freed, and its planned exit is not taken for one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from elastic_launch.rendezvous.death_watch import exit_status
from elastic_launch.rendezvous.progress import ProgressPage

WORKER = """
import os, sys, time
from elastic_launch.rendezvous.progress import ProgressPage
page = ProgressPage(int(sys.argv[1]))
page.death_watch.hold()
ballast = bytearray(os.urandom(1)) * int(float(sys.argv[2]) * 1e6)
print("holding", flush=True)
how = sys.stdin.readline().strip()
if how == "let go":
    page.death_watch.let_go()
if how == "raise":
    raise SystemExit(3)
"""


class Watched:
    """A process that holds the watch, and when its death was noticed."""

    def __init__(self, megabytes: float) -> None:
        descriptor = ProgressPage.create()
        self.page = ProgressPage(os.dup(descriptor))
        assert self.page.death_watch.create()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(descriptor), str(megabytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(descriptor,), text=True,
        )  # fmt: skip
        os.close(descriptor)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holding\n"
        self.died: bool | None = None
        self.status: int | None = None
        self.noticed_at = 0.0
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        died = self.page.death_watch.wait()
        self.noticed_at = time.monotonic()
        self.status = exit_status(self.process.pid)
        self.died = died

    def tell(self, how: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()
        self.thread.join(20)
        self.process.wait(20)


def test_a_kill_is_noticed_before_the_kernel_says_that_the_process_is_gone() -> None:
    watched = Watched(megabytes=800)
    pidfd = os.pidfd_open(watched.process.pid)
    os.kill(watched.process.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20)[0]
    gone_at = time.monotonic()
    os.close(pidfd)
    watched.thread.join(20)
    assert watched.died is True
    assert watched.noticed_at < gone_at
    assert watched.status in (None, 128 + signal.SIGKILL)
    watched.process.wait(20)


def test_an_exit_with_an_error_is_a_death() -> None:
    watched = Watched(megabytes=1)
    watched.tell("raise")
    assert watched.died is True


def test_a_planned_exit_is_none() -> None:
    watched = Watched(megabytes=1)
    watched.tell("let go")
    assert watched.died is False


def test_a_process_that_is_not_there_has_no_exit_status() -> None:
    assert exit_status(2**22 + 1) is None


@pytest.mark.parametrize("close_first", [True, False])
def test_the_page_may_be_closed_while_somebody_waits(close_first: bool) -> None:
    watched = Watched(megabytes=1)
    if close_first:
        watched.page.close()
    watched.tell("raise")
    assert watched.died is True
