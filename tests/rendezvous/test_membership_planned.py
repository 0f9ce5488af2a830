"""Where all that happens was planned, nothing is redone: whatever the order, no ring is ever broken off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from elastic_launch.rendezvous.messages import Broken

from .test_membership_properties import BRIEF, SHRINKS, THOROUGH, RandomJob

WAITS = (0.01, 0.06, 0.11, 0.5)
WEIGHTS: dict[str, int] = {
    "a_moment_passes": 24,
    "all_is_well_for_a_moment": 8,
    "the_server_hears_a_message": 24,
    "the_server_hears_many_messages_at_once": 12,
    "an_agent_hears_a_message": 16,
    "everything_arrives": 24,
    "everybody_acts": 24,
    "a_worker_is_late": 8,
    "a_late_worker_catches_up": 4,
    "the_last_one_out_finds_its_ring_closed": 12,
    "a_worker_acts": 24,
    "the_newest_generation_is_completed": 4,
    "the_store_answers": 12,
    "an_answer_of_the_store_comes_twice": 2,
    "a_worker_is_to_leave": 8,
    "a_worker_is_drained": 6,
    "a_host_is_drained": 3,
    "the_job_is_resized": 8,
    "an_agent_arrives": 10,
}
EVENTS = st.sampled_from([event for event, weight in WEIGHTS.items() for _ in range(weight)])


class PlannedJob(RandomJob):
    """Workers come, are asked to leave, and the job is resized; nobody dies, hangs or falls silent."""

    patient = True
    happens = None

    @rule(event=EVENTS, which=st.integers(0, 63))
    def happens_by_plan(self, event: str, which: int) -> None:
        act: Callable[[int], None] = getattr(self, event)
        act(which)

    def a_moment_passes(self, which: int) -> None:
        self.job.advance(WAITS[which % len(WAITS)])

    def a_worker_is_late(self, which: int) -> None:
        if worker := self.worker(which):
            worker.late = True

    def a_late_worker_catches_up(self, which: int) -> None:
        if late := [worker for worker in self.job.workers.values() if worker.late]:
            late[which % len(late)].late = False

    def the_last_one_out_finds_its_ring_closed(self, which: int) -> None:
        """The server hears that before it hears of the ring that the others have formed, but not long before."""
        job = self.job
        job.act()
        for worker in job.workers.values():
            others_are_out = worker.target == job.newest != worker.ring and job.rings[job.newest].complete
            if worker.well and worker.ring > worker.broken and others_are_out:
                worker.broken = worker.ring
                job.send(worker.agent, Broken(worker.nonce, worker.ring, "connection closed by peer"))
        job.deliver_everything()

    @invariant()
    def no_ring_is_broken_off(self) -> None:
        if hasattr(self, "job"):
            aborting = [announcement for announcement in self.job.announcements if announcement.abort]
            assert not aborting, aborting

    def teardown(self) -> None:
        if hasattr(self, "job"):
            for worker in self.job.workers.values():
                worker.late = False
        super().teardown()
        self.no_ring_is_broken_off()


class ManyPlannedJobs(PlannedJob):
    pass


PlannedJob.TestCase.settings = settings(BRIEF, max_examples=150)
ManyPlannedJobs.TestCase.settings = settings(THOROUGH, max_examples=5000)
test_planned_changes = SHRINKS(PlannedJob.TestCase)
test_many_planned_changes = pytest.mark.soak(ManyPlannedJobs.TestCase)
