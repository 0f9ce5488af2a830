"""How workers come to an end with all that they have started, also those that do not want to, and those that cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_launch.rendezvous.messages import Exited, Failed, Registered
from tests.launcher.running import RunningAgent, lives, wait_for_pid, wait_until
from tests.launcher.scripted_server import ScriptedServer

StartAgent = Callable[..., RunningAgent]


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes the kernel does not let run: not even SIGKILL ends them (version 1 of the freezer)."""
    group = Path(f"/sys/fs/cgroup/freezer/elastic-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of version 1 here: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: (group / "cgroup.procs").read_text() == "", "the group is empty")
    group.rmdir()


def freeze(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (group / "freezer.state").read_text().strip() == "FROZEN", "it is frozen")


@pytest.mark.parametrize("ending", ["kill=9", "exit=3", "raise=oops"])
def test_what_a_failed_worker_has_started_ends_with_it_also_in_a_session_of_its_own(
    ending: str, server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"child={tmp_path / 'child'}", f"escape={tmp_path / 'escaped'}", ending, urls=[server.url])
    server.wait_for(Exited)
    pids = [wait_for_pid(tmp_path / name) for name in ("child", "escaped")]
    wait_until(lambda: not any(lives(pid) for pid in pids), "all that it has started has ended", within=20)
    server.say(Failed(1, "enough"))
    agent.wait()


def test_what_a_worker_that_was_killed_for_its_deafness_has_started_ends_with_it(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    steps = ("deaf", f"escape={tmp_path / 'escaped'}", "register", "sleep")
    agent = start_agent(*steps, urls=[server.url], shutdown_timeout=0.3)
    server.wait_for(Registered)
    escaped = wait_for_pid(tmp_path / "escaped")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert not lives(escaped)


def test_what_has_left_a_worker_s_group_does_not_outlive_a_killed_agent(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(f"escape={tmp_path / 'escaped'}", "register", "sleep", urls=[server.url])
    server.wait_for(Registered)
    escaped = wait_for_pid(tmp_path / "escaped")
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_until(lambda: not lives(escaped), "the escaped process has ended", within=20)


def test_a_worker_that_cannot_be_killed_does_not_hold_the_agent(
    freezer: Path, server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent("print=up", "register", "sleep", urls=[server.url], shutdown_timeout=0.5)
    server.wait_for(Registered)
    (worker,) = [process for process in agent.descendants() if "scripted_worker" in " ".join(process.cmdline())]
    freeze(freezer, worker.pid)
    began = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert agent.wait(30) == 0, agent.text()
    assert time.monotonic() - began < 20
    assert lives(worker.pid), "the test has not shown anything"
    assert f"warning: pid {worker.pid} does not end on SIGKILL: it is stuck in the kernel (state D" in agent.text()


def test_a_worker_that_cannot_be_killed_does_not_hold_the_other_one(
    freezer: Path, server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent("register", "sleep", urls=[server.url], shutdown_timeout=0.5, nproc=2, max=2)
    server.wait_for(Registered, count=2)
    stuck, other = [process for process in agent.descendants() if "scripted_worker" in " ".join(process.cmdline())]
    freeze(freezer, stuck.pid)
    server.say(Failed(5, "enough"))
    wait_until(lambda: not lives(other.pid), "the other worker has ended", within=20)
    assert agent.wait(30) == 5, agent.text()
    assert "stuck in the kernel" in agent.text()


def test_a_worker_reads_an_empty_standard_input(server: ScriptedServer, start_agent: StartAgent) -> None:
    """Many workers cannot share one keyboard."""
    command = ["sh", "-c", "cat; readlink /proc/self/fd/0"]
    agent = start_agent(urls=[server.url], command=command)
    agent.wait_for_text("/dev/null")
    server.wait_for(Exited)
    server.say(Failed(1, "enough"))
    agent.wait()


LOADING = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, number):
        time.sleep(0.05)
        return torch.zeros(1)

for batch in DataLoader(Slow(), batch_size=1, num_workers=2):
    print("a batch", flush=True)
"""


def test_data_loaders_die_with_their_worker(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "load.py"
    script.write_text(LOADING)
    agent = start_agent(urls=[server.url], command=[sys.executable, str(script)])
    agent.wait_for_text("a batch", within=60)
    worker, *loaders = [process for process in agent.descendants() if str(script) in process.cmdline()]
    assert len(loaders) == 2
    worker.kill()
    wait_until(lambda: not any(lives(loader.pid) for loader in loaders), "the data loaders have ended", within=20)
    assert server.wait_for(Exited)[0].code == 137
    server.say(Failed(137, "enough"))
    agent.wait()
