"""The summary at the end: from what was seen, with an invented clock; then of a whole job, with its protocol shown."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from elastic_launch.launcher.ending import Ending
from elastic_launch.launcher.logs import in_one_line
from elastic_launch.launcher.summary import Summary, in_words
from elastic_launch.launcher.witness import Witness
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Broken,
    Done,
    Exited,
    Failed,
    Formed,
    Place,
    Release,
    ToAgent,
    ToServer,
)
from tests.launcher.running import RunningAgent
from tests.launcher.test_job_of_agents import JOIN, MEMBER, url_of

StartAgent = Callable[..., RunningAgent]


class Story:
    """What an agent hears and says, and when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.progress: list[tuple[str, int, float]] = []
        self.witness = Witness("digits", lambda: self.progress, lambda: self.now)

    def heard(self, at: float, message: ToAgent) -> Story:
        self.now = at
        self.witness.heard(message)
        return self

    def said(self, at: float, message: ToServer) -> Story:
        self.now = at
        self.witness.said(message)
        return self

    def lines(self, at: float) -> list[str]:
        self.now = at
        return self.witness.summary().splitlines()


def announce(generation: int, world_size: int, cause: str, reason: str = "", abort: bool = False) -> Announce:
    places = [Place("w", 0)]
    return Announce(generation, world_size, places, "here:1", "secret", abort=abort, cause=cause, reason=reason)


def trained(story: Story, at: float, generation: int, until: float) -> None:
    story.said(at, Formed("w", generation)).heard(at, Release(generation))
    story.now = until


def test_a_job_with_a_loss_and_a_join_is_told_in_few_lines() -> None:
    story = Story()
    story.heard(9.0, announce(1, 4, "start", "the first workers are ready"))
    trained(story, 10.0, 1, until=40.0)
    story.said(40.0, Broken("w", 1))
    story.said(40.1, Exited("w2", 137, "crash", 63, "", ""))
    story.heard(40.2, announce(2, 3, "lost", "worker 2 on b was killed by SIGKILL", abort=True))
    trained(story, 41.0, 2, until=60.0)
    story.heard(60.0, announce(3, 4, "joined", "a worker joined from b"))
    story.progress = [("w", 3202, 819200.0)]
    trained(story, 70.0, 3, until=100.0)
    story.heard(100.0, Done())
    assert story.lines(101.0) == [
        "summary of job 'digits', as seen from here:",
        "  duration     1 min 41 s, 3,201 steps, 819,200 samples (9,204 a second)",
        "  generations  3 (1 start, 1 lost, 1 joined)",
        "    2 after 40 s, 3 workers: lost: worker 2 on b was killed by SIGKILL",
        "    3 after 1 min 0 s, 4 workers: joined: a worker joined from b",
        "  crashes      1 here: SIGKILL (killed) in step 63",
        "  goodput      88.1 % of the time in a ring that trains; 10 s until the first one, 2.0 s in changes and at the end",
    ]


def test_a_ring_that_breaks_is_no_good_until_the_next_is_released() -> None:
    story = Story()
    story.heard(0.0, announce(1, 2, "start"))
    trained(story, 0.0, 1, until=10.0)
    story.said(10.0, Broken("w", 1)).heard(19.0, announce(2, 1, "broken", abort=True))
    trained(story, 20.0, 2, until=40.0)
    assert "goodput      75.0 %" in story.lines(40.0)[-1]


def test_a_planned_change_costs_only_from_the_boundary_on() -> None:
    story = Story()
    story.heard(0.0, announce(1, 2, "start"))
    trained(story, 0.0, 1, until=10.0)
    story.heard(10.0, announce(2, 3, "joined")).said(19.0, Formed("w", 2)).heard(20.0, Release(2))
    assert "goodput      97.5 %" in story.lines(40.0)[-1]


def test_workers_that_wait_for_more_do_not_train() -> None:
    story = Story()
    story.heard(0.0, announce(1, 2, "start"))
    trained(story, 0.0, 1, until=10.0)
    story.said(10.0, Broken("w", 1)).heard(10.0, announce(2, 1, "lost", abort=True))
    story.said(10.0, Formed("w", 2)).heard(10.0, Release(2, parked=True))
    assert "goodput      50.0 %" in story.lines(20.0)[-1]


def test_many_generations_and_crashes_stay_few_lines() -> None:
    story = Story()
    for generation in range(1, 41):
        story.heard(generation, announce(generation, 3, "lost" if generation % 2 else "joined", "why", abort=True))
        trained(story, generation + 0.1, generation, until=generation + 0.9)
        story.said(generation + 0.9, Exited("w", 1, "crash", generation, "", ""))
    lines = story.lines(50.0)
    assert len(lines) <= 10
    assert "40 (20 lost, 20 joined); the last 5:" in lines[2]
    assert lines[3].strip().startswith("36 after 36 s")
    assert "40 here: exit code 1 in step 1; exit code 1 in step 2; exit code 1 in step 3; and 37 more" in lines[-2]


def test_a_job_that_never_trained_has_no_summary() -> None:
    story = Story()
    story.said(1.0, Exited("w", 1, "crash", 0, "", ""))
    assert story.lines(2.0) == []
    assert Summary("digits", 0.0).lines(1.0) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.99, "10 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_a_message_is_one_line_without_secrets() -> None:
    assert in_one_line(announce(3, 4, "lost", "worker 2\nwas killed")) == (
        'announce generation=3 world_size=4 places=[{"worker":"w","rank":0}] meeting=here:1 secret=… cause=lost'
        ' reason="worker 2\\nwas killed"'
    )
    assert in_one_line(Done()) == "done"
    assert len(in_one_line(Failed(1, "x", "y " * 10000))) < 300
    assert in_one_line(Beat([("w", 3, 4.0)])) == 'beat progress=[["w",3,4.0]]'


def test_the_last_words_begin_with_the_traceback() -> None:
    tail = "step 3\nstep 4\nTraceback (most recent call last):\n  here\nValueError: x"
    words = Ending.failed("digits", Failed(1, "a worker crashed", tail)).last_words().splitlines()
    assert words[1:3] == ["last lines of the worker's output:", "  Traceback (most recent call last):"]
    assert words[-2:] == ["  ValueError: x", "exit code 1"]
    words = Ending.failed("digits", Failed(3, "a worker crashed", "no luck\nat all")).last_words().splitlines()
    assert words[2:4] == ["  no luck", "  at all"]


def test_an_agent_ends_with_a_summary_of_what_it_has_seen(start_agent: StartAgent) -> None:
    first = start_agent(*JOIN, "print=alone", "form", "form", "finish", "await-done", min=1, max=2, nproc=1)
    first.wait_for_text("g1 r0 here] alone")
    second = start_agent(*JOIN, "print=in", "await-released", urls=[url_of(first)], describes_job=False, host="there")
    second.wait_for_text("g2 r1 there] in")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.text()
    assert first.wait() == 0, first.text()
    told = first.stderr.decode()
    assert "generations  3 (1 start, 1 joined, 1 drained)" in told
    assert re.search(r"2 after [^,]+, 2 workers: joined: a worker joined from there", told)
    assert told.index("goodput") < told.index("job 'default' is done")
    assert "% of the time in a ring that trains" in second.stderr.decode()


def test_a_quiet_agent_has_no_summary(start_agent: StartAgent) -> None:
    agent = start_agent(*MEMBER, quiet=True)
    assert agent.wait() == 0, agent.text()
    assert "summary" not in agent.text()
    assert "job 'default' is done" in agent.text()


def test_a_verbose_agent_shows_every_message_in_one_line(start_agent: StartAgent) -> None:
    agent = start_agent(*MEMBER, verbose=True)
    assert agent.wait() == 0, agent.text()
    told = [line.removeprefix("[elastic-launch here] ") for line in agent.stderr.decode().splitlines()]
    shown = [line.partition(" worker=")[0].partition(" generation=")[0] for line in told if " -> " in line]
    order = [
        "agent -> server: started",
        "worker 0 -> agent: registered",
        "agent -> server: registered",
        "agent -> worker 0: announce",
        "worker 0 -> agent: formed",
        "server -> agent: release",
        "agent -> worker 0: release",
        "agent -> server: finished",
        "server -> agent: done",
    ]
    places = [shown.index(step) for step in order]
    assert places == sorted(places), shown
    (secret,) = {match for line in told for match in re.findall(r"secret=(\S+)", line)}
    assert secret == "…"
