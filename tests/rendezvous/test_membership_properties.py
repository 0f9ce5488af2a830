"""Membership under random orders of events. What must hold at all times is checked inside `SimulatedJob`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elastic_launch.rendezvous.messages import JobSpec

from .simulated_job import SimulatedAgent, SimulatedJob, SimulatedWorker

WAITS = (0.01, 0.06, 0.11, 0.5, 1.1, 2.5, 4.0)
PAUSES = (2.0, 5.0, 30.0)


class RandomJob(RuleBasedStateMachine):
    """Everything can happen at any time; when it stops, the job must come to where its rules want it."""

    patient = False

    @initialize(
        least=st.integers(1, 3),
        room=st.integers(0, 3),
        slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        instant_store=st.booleans(),
    )
    def begin(self, least: int, room: int, slots: list[int], instant_store: bool) -> None:
        spec = JobSpec(least, least + room, max_restarts=1000)
        self.job = SimulatedJob(spec, instant_store=instant_store, patient=self.patient)
        for count in slots:
            self.job.add_agent(count)
        self.job.run(0.2)

    @rule(event=st.deferred(lambda: EVENTS), which=st.integers(0, 63))
    def happens(self, event: str, which: int) -> None:
        act: Callable[[int], None] = getattr(self, event)
        act(which)

    @invariant()
    def agents_and_workers_agree(self) -> None:
        if not hasattr(self, "job"):
            return
        roster = self.job.machine._books.roster
        for agent in roster.agents.values():
            assert agent.workers == {nonce: w for nonce, w in roster.workers.items() if w.agent == agent.name}

    def agent(self, which: int) -> SimulatedAgent | None:
        agents = [agent for agent in self.job.agents.values() if not agent.dead]
        return agents[which % len(agents)] if agents else None

    def worker(self, which: int) -> SimulatedWorker | None:
        workers = [worker for worker in self.job.workers.values() if worker.alive]
        return workers[which % len(workers)] if workers else None

    # --- progress ------------------------------------------------------------------------------------------------

    def all_is_well_for_a_moment(self, which: int) -> None:
        self.job.run(0.15)

    def the_server_hears_a_message(self, which: int) -> None:
        if agent := self.agent(which):
            self.job.deliver_to_server(agent)

    def the_server_hears_many_messages_at_once(self, which: int) -> None:
        """Of some or all agents, one after the other or all in turns; store answers come in between."""
        agents = [agent for index, agent in enumerate(self.job.agents.values()) if which >> (index % 5) & 1]
        self.job.deliver_together(agents or list(self.job.agents.values()), 1 + which % 4)

    def much_happens_before_the_server_decides(self, which: int) -> None:
        """Connections break, workers die and are heard of, and the store answers: all of it lies in one queue."""
        agents = [agent for agent in self.job.agents.values() if not agent.dead]
        with self.job.machine.hearing_only():
            for index, agent in enumerate(agents):
                turn = (which >> index % 3) % 4
                if turn == 1:
                    self.job.disconnect(agent)
                    self.job.connect(agent)
                if turn == 2 and agent.living:
                    self.job.kill(agent.living[0])
                while turn and self.job.deliver_to_server(agent):
                    pass
            self.the_store_answers(which)
        self.job.carry_out(self.job.machine.decide(self.job.now))

    def an_agent_hears_a_message(self, which: int) -> None:
        if agent := self.agent(which):
            self.job.deliver_to_agent(agent)

    def everything_arrives(self, which: int) -> None:
        self.job.deliver_everything()

    def everybody_acts(self, which: int) -> None:
        self.job.act(restart=which % 2 == 0)

    def a_worker_acts(self, which: int) -> None:
        worker, job = self.worker(which), self.job
        if worker is not None:
            job.prepare(worker)
            for act in (
                job.come_back,
                job.arrive,
                job.report_formed,
                job.report_broken,
                job.report_stalled,
                job.finish_training,
            ):
                if act(worker):
                    return

    def the_newest_generation_is_completed(self, which: int) -> None:
        if self.job.newest:
            self.job.complete(self.job.newest)

    def the_store_answers(self, which: int) -> None:
        self.job.answer_from_store()

    def an_answer_of_the_store_comes_twice(self, which: int) -> None:
        job = self.job
        if job.history and not job.answers:
            job.carry_out(job.machine.persisted(job.history[-1 - which % len(job.history)].generation, job.now))

    def time_passes(self, which: int) -> None:
        self.job.advance(WAITS[which % len(WAITS)])

    # --- faults --------------------------------------------------------------------------------------------------

    def the_server_pauses(self, which: int) -> None:
        self.job.pause(PAUSES[which % len(PAUSES)])

    def a_worker_dies(self, which: int) -> None:
        if worker := self.worker(which):
            self.job.kill(worker)

    def a_worker_hangs(self, which: int) -> None:
        if worker := self.worker(which):
            worker.hung = True

    def a_worker_wakes(self, which: int) -> None:
        if worker := self.worker(which):
            worker.hung = False

    def a_worker_is_to_leave(self, which: int) -> None:
        if worker := self.worker(which):
            self.job.leave(worker)

    def a_worker_is_drained(self, which: int) -> None:
        worker = self.worker(which)
        if worker is not None and self.job.phase(worker) != "unknown":
            self.job.drain(worker)

    def a_host_is_drained(self, which: int) -> None:
        agent = self.agent(which)
        if agent is not None and agent.name in self.job.machine._books.roster.agents:
            self.job.drain_host(agent.name.replace("agent", "host"))

    def the_job_is_resized(self, which: int) -> None:
        least = 1 + which % 3
        self.job.resize(least, least + which // 3 % 5)

    def a_connection_breaks(self, which: int) -> None:
        if agent := self.agent(which):
            self.job.disconnect(agent)

    def an_agent_reconnects(self, which: int) -> None:
        agent = self.agent(which)
        if agent is not None and not agent.told_end:
            self.job.connect(agent)

    def a_host_freezes(self, which: int) -> None:
        if agent := self.agent(which):
            agent.silent = True

    def a_host_thaws(self, which: int) -> None:
        if agent := self.agent(which):
            agent.silent = False

    def an_agent_arrives(self, which: int) -> None:
        if len(self.job.agents) < 9:
            self.job.add_agent(1 + which % 2, ready=which % 4 < 2)

    def a_script_crashes(self, which: int) -> None:
        if worker := self.worker(which):
            self.job.crash_script(worker)

    def a_host_dies(self, which: int) -> None:
        if agent := self.agent(which):
            self.job.kill_agent(agent)

    def a_pod_is_gone(self, which: int) -> None:
        if agent := self.agent(which):
            self.job.report_gone(agent.name)

    def all_but_one_die(self, which: int) -> None:
        survivor = self.worker(which)
        for worker in self.job.workers.values():
            if worker is not survivor:
                self.job.kill(worker)

    def everybody_is_to_leave(self, which: int) -> None:
        for worker in list(self.job.workers.values()):
            if worker.alive:
                self.job.leave(worker)

    def a_checkpoint_is_written(self, which: int) -> None:
        for worker in self.job.workers.values():
            worker.checkpoint = which

    def the_training_comes_to_its_end(self, which: int) -> None:
        self.job.training_is_over = True

    # --- the end -------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """No more faults: the job comes to rest where its rules want it."""
        if not hasattr(self, "job"):
            return
        job = self.job
        for worker in job.workers.values():
            worker.hung = False
        for agent in job.agents.values():
            agent.silent = False
            if not agent.dead and not agent.told_end and not agent.connected:
                job.connect(agent)
        job.run(70.0)
        if job.machine.over:
            assert all(agent.told_end for agent in job.agents.values() if not agent.dead and agent.connected)
            return
        assert not job.training_is_over or job.state != "running", "the end of the training was not noticed"
        alive = [worker for worker in job.workers.values() if worker.alive and not worker.agent.dead]
        least, most = job.size
        wanted = min(most, len(alive))
        if job.state in ("running", "parked"):
            assert not any(worker.leaving for worker in alive), "a leaver was not let go"
            assert len(job.running) == wanted, "not everybody who could is in the ring"
            assert job.state == ("running" if wanted >= least else "parked")
        elif job.state == "starting":
            assert not job.history and len(alive) < least
        else:
            assert job.state == "lost", "the job stands still"
            assert not job.holders(), "the job waits though somebody holds its state"


WEIGHTS: dict[str, int] = {
    "all_is_well_for_a_moment": 24,
    "the_server_hears_a_message": 32,
    "the_server_hears_many_messages_at_once": 16,
    "much_happens_before_the_server_decides": 4,
    "an_agent_hears_a_message": 32,
    "everything_arrives": 16,
    "everybody_acts": 32,
    "a_worker_acts": 32,
    "the_newest_generation_is_completed": 8,
    "the_store_answers": 16,
    "an_answer_of_the_store_comes_twice": 3,
    "time_passes": 20,
    "the_server_pauses": 2,
    "a_worker_dies": 10,
    "a_script_crashes": 4,
    "a_worker_hangs": 6,
    "a_worker_wakes": 8,
    "a_worker_is_to_leave": 4,
    "a_worker_is_drained": 2,
    "a_host_is_drained": 1,
    "the_job_is_resized": 4,
    "a_connection_breaks": 4,
    "an_agent_reconnects": 8,
    "a_host_freezes": 4,
    "a_host_thaws": 6,
    "an_agent_arrives": 6,
    "a_host_dies": 2,
    "a_pod_is_gone": 1,
    "all_but_one_die": 1,
    "everybody_is_to_leave": 1,
    "a_checkpoint_is_written": 2,
    "the_training_comes_to_its_end": 1,
}
EVENTS = st.sampled_from([event for event, weight in WEIGHTS.items() for _ in range(weight)])

BRIEF = settings(
    max_examples=400,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
THOROUGH = settings(BRIEF, max_examples=20_000, derandomize=False)
SHRINKS = pytest.mark.timeout(400)  # a failure takes minutes until it is short enough to be read


class ManyRandomJobs(RandomJob):
    pass


RandomJob.TestCase.settings = BRIEF
ManyRandomJobs.TestCase.settings = THOROUGH
test_random_jobs = SHRINKS(RandomJob.TestCase)
test_many_random_jobs = pytest.mark.soak(ManyRandomJobs.TestCase)
