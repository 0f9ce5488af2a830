"""The ends of workers and agents as torch's events: for programs that read torchrun's."""

from __future__ import annotations

import json
from collections.abc import Callable

from torch.distributed.elastic.events import Event, EventSource

from elastic_launch.launcher.events import Events
from elastic_launch.rendezvous.messages import Announce, Crashed, Exited, Place
from tests.launcher.running import RunningAgent
from tests.launcher.test_job_of_agents import MEMBER

StartAgent = Callable[..., RunningAgent]

PREFIX = "[elastic-launch here] "


class Log:
    def __init__(self) -> None:
        self.time = 1000.0
        self.lines: list[str] = []
        self.events = Events("digits", "here", "trainer", self.lines.append, lambda: self.time)

    @property
    def read(self) -> list[Event]:
        return [Event.deserialize(line) for line in self.lines]


def states(read: list[Event]) -> list[tuple[EventSource, str]]:
    return [(event.source, str(event.metadata["state"])) for event in read]


def test_torch_reads_what_is_written() -> None:
    log = Log()
    log.events.heard(Announce(1, 2, [Place("a", 0), Place("b", 1)], "", ""))
    log.time += 7
    log.events.said(Exited("b", 137, "crash", 4, "the kernel killed it for memory", local_rank=1))
    (event,) = log.read
    assert (event.name, event.source, event.timestamp) == (
        "torchelastic.worker.status.FAILED",
        EventSource.WORKER,
        1_007_000,
    )
    assert event.metadata["global_rank"] == 1
    assert (event.metadata["run_id"], event.metadata["role"], event.metadata["hostname"]) == (
        "digits",
        "trainer",
        "here",
    )
    assert event.metadata["total_run_time"] == 7
    assert event.metadata["raw_error"] == "the kernel killed it for memory"
    assert json.loads(str(event.metadata["metadata"])) == {
        "world_size": 2,
        "local_rank": 1,
        "step": 4,
        "exit_code": 137,
    }


def test_an_end_is_told_once_and_by_how_it_came() -> None:
    log = Log()
    for exited in (Exited("a", 0, "done"), Exited("a", 0, "done"), Exited("b", 0, "left"), Exited("c", 143, "left")):
        log.events.said(exited)
    log.events.said(Crashed("d", 2, 1))
    log.events.said(Crashed("d", 3, 1))
    log.events.agent_ended(1, "too bad")
    worker = EventSource.WORKER
    assert states(log.read) == [
        (worker, "SUCCEEDED"),
        (worker, "SUCCEEDED"),
        (worker, "TERMINATED"),
        (worker, "FAILED"),
        (worker, "FAILED"),
        (EventSource.AGENT, "FAILED"),
    ]
    assert log.read[-1].metadata["raw_error"] == "too bad"
    assert log.read[-1].metadata["agent_restarts"] == 2


def events_of(text: str) -> list[Event]:
    lines = (line.removeprefix(PREFIX) for line in text.splitlines())
    return [Event.deserialize(line) for line in lines if line.startswith('{"name"')]


def test_an_agent_shows_its_events_if_it_is_asked_to(start_agent: StartAgent) -> None:
    agent = start_agent(*MEMBER, shows_events=True)
    assert agent.wait() == 0, agent.text()
    told = events_of(agent.stderr.decode())
    assert states(told) == [(EventSource.WORKER, "SUCCEEDED"), (EventSource.AGENT, "SUCCEEDED")]
    assert told[0].metadata["global_rank"] == 0
    unasked = start_agent(*MEMBER)
    assert unasked.wait() == 0, unasked.text()
    assert events_of(unasked.stderr.decode()) == []


def test_a_job_that_fails_is_told_with_its_reason(start_agent: StartAgent) -> None:
    agent = start_agent("exit=3", max_restarts=0, shows_events=True)
    assert agent.wait() == 3, agent.text()
    told = events_of(agent.stderr.decode())
    assert states(told) == [(EventSource.WORKER, "FAILED"), (EventSource.AGENT, "FAILED")]
    assert told[0].metadata["raw_error"] == "exit code 3"
    assert "job 'default' has failed" in str(told[1].metadata["raw_error"])
