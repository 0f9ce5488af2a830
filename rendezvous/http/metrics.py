"""The server's metrics for Prometheus, made from what there is when they are asked for.

So nothing has to be kept up to date, and the metrics of a job end with the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..jobs import Jobs
from ..membership.tally import FORMING_LIMITS, Tally
from .events import Streams

_STATES = (
    "loading", "starting", "forming", "running", "parked", "lost", "stopping", "finishing", "done", "failed",
)  # fmt: skip
_GAUGES = {
    "world_size": ("elastic_job_members", "Members of the job's newest generation."),
    "standby": ("elastic_job_standby_workers", "Workers that wait to be members."),
    "agents": ("elastic_job_agents", "Agents of the job that are connected."),
    "generation": ("elastic_job_generation", "Number of the newest announced generation."),
    "step": ("elastic_job_step", "Number of the step that the job is in."),
    "steps_per_second": ("elastic_job_steps_per_second", "Steps a second, smoothed."),
    "samples_per_second": ("elastic_job_samples_per_second", "Samples a second of the whole job, smoothed."),
}
_COUNTERS = {
    "lost": ("elastic_workers_lost", "Workers that were lost."),
    "left": ("elastic_workers_left", "Workers that have left by plan."),
    "leaving": ("elastic_workers_drained", "Workers that were asked to leave by plan."),
    "crash": ("elastic_workers_crashed", "Crashes that count against the job's budget."),
    "evicted": ("elastic_workers_evicted", "Evictions of workers that hung or could not be reached."),
    "rejected": ("elastic_workers_rejected", "Workers whose model does not fit the job."),
    "broken": ("elastic_rings_broken_reports", "Reports of members that their ring broke."),
    "stalled": ("elastic_rings_stalled_reports", "Reports of members that they wait for their peers for too long."),
    "disconnected": ("elastic_agents_disconnected", "Connections of agents that closed."),
    "refused": ("elastic_agents_refused", "Agents that were refused."),
}


class Metrics:
    """`exposition` answers a scrape."""

    def __init__(self, jobs: Jobs, streams: Streams) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_JobsCollector(jobs, streams))
        ProcessCollector(registry=self._registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type, in the format that the header `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _JobsCollector(Collector):
    def __init__(self, jobs: Jobs, streams: Streams) -> None:
        self._jobs = jobs
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        jobs = [job for name in self._jobs.names() if (job := self._jobs.get(name)) is not None]
        snapshots = [job.snapshot() for job in jobs]
        yield from self._of_the_server(snapshots)
        yield from _of_jobs(snapshots)
        yield from _counted([(job.name, job.tally) for job in jobs])

    def _of_the_server(self, snapshots: list[dict[str, Any]]) -> Iterator[Metric]:
        states = GaugeMetricFamily("elastic_jobs", "Jobs of this server by state.", labels=["state"])
        counts = Counter(str(snapshot["state"]) for snapshot in snapshots)
        for state in _STATES:
            states.add_metric([state], counts[state])
        yield states
        yield GaugeMetricFamily(
            "elastic_agent_connections", "Connections of agents.", value=len(self._jobs.connections)
        )
        yield GaugeMetricFamily("elastic_event_streams", "Readers that follow events.", value=self._streams.count)
        yield CounterMetricFamily(
            "elastic_event_loop_paused_seconds",
            "Seconds for which the server's event loop did not run and its clock stood still.",
            value=self._jobs.clock.paused,
        )


def _of_jobs(snapshots: list[dict[str, Any]]) -> Iterator[Metric]:
    for field, (name, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["job"])
        for snapshot in snapshots:
            gauge.add_metric([snapshot["job"]], snapshot.get(field, 0))
        yield gauge
    for bound, text in (("min", "Fewest workers that train."), ("max", "Most workers.")):
        gauge = GaugeMetricFamily(f"elastic_job_{bound}_workers", text, labels=["job"])
        for snapshot in snapshots:
            gauge.add_metric([snapshot["job"]], snapshot.get("spec", {}).get(bound, 0))
        yield gauge


def _counted(tallies: list[tuple[str, Tally]]) -> Iterator[Metric]:
    for kind, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["job"])
        for job, tally in tallies:
            counter.add_metric([job], tally.events[kind])
        yield counter
    joined = CounterMetricFamily("elastic_workers_joined", "Workers that have joined a running job.", labels=["job"])
    errors = CounterMetricFamily("elastic_store_errors", "Attempts at a store that did not answer.", labels=["job"])
    announced = CounterMetricFamily(
        "elastic_generations_announced", "Generations that were announced.", labels=["job", "cause"]
    )
    formed = CounterMetricFamily("elastic_generations_formed", "Generations that have formed.", labels=["job", "cause"])
    forming = HistogramMetricFamily(
        "elastic_generation_forming_seconds", "From a generation's announcement to its durability.", labels=["job"]
    )
    for job, tally in tallies:
        joined.add_metric([job], tally.joined)
        errors.add_metric([job], tally.store_errors)
        for cause, count in sorted(tally.announced.items()):
            announced.add_metric([job, cause], count)
        for cause, count in sorted(tally.formed.items()):
            formed.add_metric([job, cause], count)
        forming.add_metric([job], _buckets(tally.forming), tally.forming_seconds)
    yield from (joined, errors, announced, formed, forming)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    limits = [*(str(limit) for limit in FORMING_LIMITS), "+Inf"]
    return [(limit, float(sum(counts[: place + 1]))) for place, limit in enumerate(limits)]
