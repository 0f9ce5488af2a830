"""Metrics for Prometheus."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from elastic_launch.rendezvous.membership.effects import Event
from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.membership.tally import FORMING_LIMITS, Tally
from elastic_launch.rendezvous.messages import Announce, Beat, Exited, Failed, Release

from ..conftest import Run, Until
from .conftest import RunJob, Running

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(running: Running) -> Samples:
    answer = await running.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of_job(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted({"job": "digits", **labels}.items()))]


def test_a_job_is_measured(run: Run, run_job: RunJob, until: Until) -> None:
    async def scenario() -> None:
        async with run_job(3, timing=Timing(suspicion=0.2)) as running:
            a, _b, c = running.agents
            a.client.send(Beat([(a.worker, 17, 1.0)]))
            await c.client.close()
            lost = await a.hears(Announce, lambda message: message.cause == "lost")
            await a.hears(Release, lambda message: message.generation == lost.generation)
            samples = await scrape(running)
            assert samples["elastic_jobs", (("state", "running"),)] == 1
            assert samples["elastic_jobs", (("state", "failed"),)] == 0
            assert samples["elastic_agent_connections", ()] == 2
            assert samples["elastic_event_loop_paused_seconds_total", ()] >= 0
            assert of_job(samples, "elastic_job_members") == 2
            assert of_job(samples, "elastic_job_agents") == 2
            assert of_job(samples, "elastic_job_max_workers") == 3
            assert of_job(samples, "elastic_job_step") == 17
            assert of_job(samples, "elastic_generations_formed_total", cause="start") == 1
            assert of_job(samples, "elastic_generations_formed_total", cause="lost") == 1
            assert of_job(samples, "elastic_generation_forming_seconds_count") >= 2
            assert of_job(samples, "elastic_generation_forming_seconds_bucket", le="300.0") >= 2
            assert of_job(samples, "elastic_store_errors_total") == 0
            assert of_job(samples, "elastic_agents_disconnected_total") == 1

    run(scenario())


def test_the_metrics_of_a_job_go_when_it_is_forgotten(run: Run, run_job: RunJob, until: Until) -> None:
    async def scenario() -> None:
        async with run_job(1) as running:
            (agent,) = running.agents
            assert any(("job", "digits") in labels for _, labels in await scrape(running))
            await running.http.delete("/v1/jobs/digits")
            agent.client.send(Exited(agent.worker, 0, "left"))
            await agent.hears(Failed)
            assert (await scrape(running))["elastic_jobs", (("state", "failed"),)] == 1
            assert (await running.http.delete("/v1/jobs/digits")).status_code == 200
            samples = await scrape(running)
            assert not any(("job", "digits") in labels for _, labels in samples)
            assert samples["elastic_jobs", (("state", "failed"),)] == 0

    run(scenario())


def test_two_servers_of_one_process_count_apart(run: Run, run_job: RunJob) -> None:
    async def scenario() -> None:
        async with run_job(1) as one, run_job(0) as other:
            assert (await scrape(one))["elastic_agent_connections", ()] == 1
            assert (await scrape(other))["elastic_agent_connections", ()] == 0

    run(scenario())


def test_forming_times_are_counted_by_their_length_and_generations_by_their_cause() -> None:
    tally = Tally()
    for cause, seconds in (("start", 0.05), ("joined", 0.2), ("joined", 1000.0)):
        tally.take(Event("announced", "", {"cause": cause, "joiners": 2}))
        tally.take(Event("formed", "", {"seconds": seconds}))
    tally.take(Event("announced", "", {"cause": "lost", "joiners": 0}))
    assert tally.announced == {"start": 1, "joined": 2, "lost": 1} and tally.formed == {"start": 1, "joined": 2}
    assert (tally.forming[0], tally.forming[FORMING_LIMITS.index(0.25)], tally.forming[-1]) == (1, 1, 1)
    assert (sum(tally.forming), tally.forming_seconds, tally.joined) == (3, 1000.25, 6)
