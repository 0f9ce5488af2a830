"""Membership under random orders of events. What must hold at all times is checked inside `SimulatedJob`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from elastic_launch.rendezvous.messages import JobSpec

from .simulated_job import SimulatedAgent, SimulatedJob, SimulatedWorker

NOISE = settings(
    max_examples=120,
    stateful_step_count=70,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

pick = st.integers(0, 63)


class RandomJob(RuleBasedStateMachine):
    """Everything can happen at any time; when it stops, the job must come to where its rules want it."""

    @initialize(
        least=st.integers(1, 3),
        room=st.integers(0, 3),
        slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        instant=st.booleans(),
    )
    def begin(self, least: int, room: int, slots: list[int], instant: bool) -> None:
        self.rare = 0
        self.job = SimulatedJob(JobSpec(least, least + room, max_restarts=1000), instant_store=instant)
        for count in slots:
            self.job.add_agent(count)
        self.job.run(0.2)

    def agents(self) -> list[SimulatedAgent]:
        return [agent for agent in self.job.agents.values() if not agent.dead]

    def agent(self, index: int) -> SimulatedAgent | None:
        agents = self.agents()
        return agents[index % len(agents)] if agents else None

    def worker(self, index: int) -> SimulatedWorker | None:
        workers = [worker for worker in self.job.workers.values() if worker.alive]
        return workers[index % len(workers)] if workers else None

    # --- progress

    @rule(index=pick)
    def the_server_hears_one_message(self, index: int) -> None:
        if agent := self.agent(index):
            self.job.deliver_to_server(agent)

    @rule(index=pick)
    def an_agent_hears_one_message(self, index: int) -> None:
        if agent := self.agent(index):
            self.job.deliver_to_agent(agent)

    @rule()
    def everything_arrives(self) -> None:
        self.job.deliver_everything()

    @rule()
    def everybody_acts(self) -> None:
        self.job.act(restart=False)

    @rule()
    def everything_arrives_and_everybody_acts(self) -> None:
        self.job.deliver_everything()
        self.job.act()
        self.job.deliver_everything()

    @rule(index=pick)
    def a_worker_acts(self, index: int) -> None:
        if worker := self.worker(index):
            job = self.job
            job.prepare(worker)
            for act in (job.arrive, job.report_formed, job.report_broken, job.report_stalled, job.finish_training):
                if act(worker):
                    return

    @rule()
    def the_newest_generation_is_completed(self) -> None:
        if self.job.newest:
            self.job.complete(self.job.newest)

    @rule()
    def the_store_answers(self) -> None:
        self.job.answer_from_store()

    @rule(back=st.integers(0, 3))
    def an_answer_of_the_store_comes_twice(self, back: int) -> None:
        job = self.job
        if len(job.history) > back and not job.answers:
            job.carry_out(job.machine.persisted(job.history[-1 - back].generation, job.now))

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.11, 0.5, 1.1, 2.5, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.advance(seconds)

    @rule(seconds=st.sampled_from([2.0, 5.0, 30.0]))
    def the_server_pauses(self, seconds: float) -> None:
        self.job.pause(seconds)

    @rule()
    def all_is_well_for_a_moment(self) -> None:
        self.job.run(0.15)

    # --- faults

    @rule(index=pick, fault=st.sampled_from(["dies", "dies", "hangs", "wakes", "wakes", "leaves", "is drained"]))
    def a_worker(self, index: int, fault: str) -> None:
        job, worker = self.job, self.worker(index)
        if worker is None:
            return
        if fault == "dies":
            job.kill(worker)
        elif fault in ("hangs", "wakes"):
            worker.hung = fault == "hangs"
        elif fault == "leaves":
            job.leave(worker)
        elif worker.nonce in job.machine._books.roster.workers:
            job.drain(worker)

    @rule(index=pick, fault=st.sampled_from(["breaks", "reconnects", "reconnects", "freezes", "thaws", "thaws"]))
    def a_connection(self, index: int, fault: str) -> None:
        job, agent = self.job, self.agent(index)
        if agent is None:
            return
        if fault == "breaks":
            job.disconnect(agent)
        elif fault == "reconnects" and not agent.told_end:
            job.connect(agent)
        else:
            agent.silent = fault == "freezes"

    @precondition(lambda self: len(self.job.agents) < 9)
    @rule(slots=st.integers(1, 2), ready=st.booleans())
    def an_agent_arrives(self, slots: int, ready: bool) -> None:
        self.job.add_agent(slots, ready=ready)

    @rule(
        index=pick,
        event=st.sampled_from(
            ["host dies", "pod is gone", "everybody leaves", "all but one die", "checkpoint", "the end"]
        ),
        step=st.integers(1, 9),
    )
    def rarely(self, index: int, event: str, step: int) -> None:
        job, agent, worker = self.job, self.agent(index), self.worker(index)
        self.rare += 1
        if agent is None or worker is None or self.rare % 4:
            return
        if event == "host dies":
            job.kill_agent(agent)
        elif event == "pod is gone":
            job.report_gone(agent.name)
        elif event == "everybody leaves":
            for other in [worker for worker in job.workers.values() if worker.alive]:
                job.leave(other)
        elif event == "all but one die":
            for other in [other for other in job.workers.values() if other.alive and other is not worker]:
                job.kill(other)
        elif event == "checkpoint":
            for other in job.workers.values():
                other.checkpoint = step
        else:
            job.training_is_over = True

    # --- the end

    def teardown(self) -> None:
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
        alive = [w for w in job.workers.values() if w.alive and not w.agent.dead]
        holders = [w for w in alive if w.lineage == job.formed.generation and w.nonce in job.formed.members]
        wanted = min(job.spec.max, len(alive))
        if job.state in ("running", "parked"):
            assert not any(worker.leaving for worker in alive), "a leaver was not let go"
            assert len(job.running) == wanted, (job.running, alive)
            assert job.state == "running" if wanted >= job.spec.min else job.state == "parked"
        elif job.state == "starting":
            assert not job.history and len(alive) < job.spec.min
        else:
            assert job.state == "lost", job.state
            assert not holders, "the job waits though somebody holds its state"
        if job.state != "running":
            job.now += job.spec.min_timeout  # nobody comes
            job.run(1.0)


RandomJob.TestCase.settings = NOISE
test_random_jobs = RandomJob.TestCase
