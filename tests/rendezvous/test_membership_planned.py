"""Where all that happens was planned, nothing is redone: whatever the order, no ring is ever broken off."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from .test_membership_properties import WEIGHTS, RandomJob

WAITS = (0.01, 0.06, 0.11, 0.5)
HAPPENS = (
    *("all_is_well_for_a_moment", "the_server_hears_a_message", "the_server_hears_many_messages_at_once"),
    *("an_agent_hears_a_message", "everything_arrives", "everybody_acts", "a_worker_acts"),
    *("the_newest_generation_is_completed", "the_store_answers", "an_answer_of_the_store_comes_twice"),
    *("a_worker_is_to_leave", "a_worker_is_drained", "a_host_is_drained", "the_job_is_resized", "an_agent_arrives"),
)
EVENTS = st.sampled_from([event for event in HAPPENS for _ in range(WEIGHTS[event])])


class PlannedJob(RandomJob):
    """Workers come, are asked to leave, and the job is resized; nobody dies, hangs or falls silent."""

    patient = True
    happens = None

    @rule(event=EVENTS, which=st.integers(0, 63))
    def happens_by_plan(self, event: str, which: int) -> None:
        act: Callable[[int], None] = getattr(self, event)
        act(which)

    @rule(wait=st.sampled_from(WAITS))
    def a_moment_passes(self, wait: float) -> None:
        self.job.advance(wait)

    @invariant()
    def no_ring_is_broken_off(self) -> None:
        if hasattr(self, "job"):
            aborting = [announcement for announcement in self.job.announcements if announcement.abort]
            assert not aborting, aborting

    def teardown(self) -> None:
        super().teardown()
        self.no_ring_is_broken_off()


PlannedJob.TestCase.settings = settings(RandomJob.TestCase.settings, max_examples=150)
test_planned_changes = PlannedJob.TestCase
