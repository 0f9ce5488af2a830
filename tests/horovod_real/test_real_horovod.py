"""Horovod's own elastic mode under this launcher: real processes of the real Horovod, real signals."""

from __future__ import annotations

import base64
import http.client
import os
import pickle
import signal
from typing import Any

import psutil
import pytest

from ..system.launching import wait_until_gone
from .lab import HorovodLab

pytestmark = pytest.mark.timeout(200)


class Evil:
    def __reduce__(self) -> Any:
        return os.kill, (os.getpid(), signal.SIGKILL)


def evil_pickle() -> bytes:
    return base64.b64encode(pickle.dumps(({"lo": [("127.0.0.1", Evil())]}, bytes(32))))


def what_its_endpoint_answers(pid: int, path: str, body: bytes) -> int:
    """The status of a PUT by somebody who knows what that process knows."""
    address, _, token = psutil.Process(pid).environ()["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("PUT", f"/{token}:0{path}", body)
    return connection.getresponse().status


def test_survivors_go_on_in_their_processes_when_rank_0_is_killed_and_its_slot_comes_back(lab: HorovodLab) -> None:
    agent = lab.train("--min", "1", "--max", "2", open_ended=True, pause=0.02)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    survivor = lab.pid_of_rank(1)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    assert lab.pid_of_rank(0) == survivor
    lab.wait_for_world(2, 90)
    assert lab.pid_of_rank(0) == survivor
    processes = agent.descendants()
    lab.finish()
    assert agent.wait() == 0
    wait_until_gone(processes)
    lab.check_the_end(2)


def test_a_second_agents_worker_joins_and_is_drained_and_both_agents_exit_0(lab: HorovodLab) -> None:
    first = lab.train("--min", "1", "--max", "2", "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(1, 90)
    founder = lab.pid_of_rank(0)
    second = lab.train("--rendezvous", first.url, "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(2, 90)
    lab.wait_for_steps(5)
    assert lab.pid_of_rank(0) == founder
    assert {entry["local_rank"] for entry in lab.journal("step")} == {0}, "two agents are two hosts to Horovod"
    assert what_its_endpoint_answers(founder, "/worker_addresses/host:0", evil_pickle()) == 400
    assert what_its_endpoint_answers(founder, "/global/../../etc/passwd", b"") == 400
    lab.wait_for_steps(2)
    second.signal(signal.SIGTERM)
    assert second.wait(60) == 0
    lab.wait_for_world(1)
    assert "has ended" not in second.output, "nothing crashed"
    lab.finish()
    assert first.wait() == 0
    lab.check_the_end(1)
