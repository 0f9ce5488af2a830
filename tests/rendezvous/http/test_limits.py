"""What one agent may ask of the server."""

from __future__ import annotations

import time

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.http.limits import Limits, TokenBucket, within
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.messages import (
    Beat,
    Broken,
    Exited,
    Hello,
    JobSpec,
    Leaving,
    Refused,
    Started,
    Stop,
    WorkerClaim,
    decode_to_server,
    encode,
)
from elastic_launch.rendezvous.server import Server

from ..conftest import Dial, Run, Serve, Until
from ..test_server import closing_of

SPEC = JobSpec(1, 2)


def test_an_agent_that_says_too_much_loses_its_connection_and_the_others_do_not(
    run: Run, serve: Serve, dial: Dial, until: Until
) -> None:
    async def scenario() -> None:
        face = Face(Limits(rate=10, burst=50))
        async with serve(face=face) as served, dial(served.url, agent="a") as loud, dial(served.url, agent="b") as b:
            for _ in range(100):
                await loud.say(Beat())
            code, reason = await closing_of(loud)
            assert code == 1008 and "more than 10 messages a second (after 50 at once)" in reason
            await until(lambda: ("closed", "a") in served.machine.happened)
            assert len(served.machine.messages("a")) <= 60
            await b.say(Leaving("w"))
            await until(lambda: Leaving("w") in served.machine.messages("b"))
            async with dial(served.url, agent="a"):
                pass

    run(scenario())


def test_a_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    bucket = TokenBucket(2.0, 3, 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.5), bucket.take(0.6), bucket.take(1.0)] == [True, False, True]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_a_job_takes_so_many_agents_and_a_server_so_many_jobs(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve(face=Face(Limits(agents=2, jobs=1))) as served:
            async with dial(served.url, agent="a"), dial(served.url, agent="b"):
                for job, reason in (("digits", "2 agents"), ("other", "1 jobs")):
                    async with dial(served.url, job) as third:
                        await third.say(Hello("c", "h", "m", SPEC))
                        refused = await third.heard()
                        assert isinstance(refused, Refused) and reason in refused.reason
                        assert (await closing_of(third))[0] == 1008
                async with dial(served.url, agent="a"):
                    pass
            async with dial(served.url, agent="c"):
                pass

    run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        Hello("a", "h", "m", SPEC, [WorkerClaim(f"w{n}", n) for n in range(5)]),
        Hello("a", "h", "m", SPEC, [WorkerClaim("w", 4)]),
        Beat([(f"w{n}", 1, 1.0) for n in range(5)]),
        Started("w", 4),
        Exited("w", 1, local_rank=4),
    ],
)
def test_an_agent_has_so_many_workers(message: Hello | Beat | Started | Exited) -> None:
    with pytest.raises(UsageError, match="4"):
        within(message, Limits(workers=4))
    assert within(message, Limits(workers=5)) is message


def test_long_texts_are_cut_and_reasons_are_one_line() -> None:
    limits = Limits(reason=5, tail=4)
    assert within(Exited("w", 1, reason="123456789", tail="the tail"), limits) == Exited(
        "w", 1, reason="12345", tail="tail"
    )
    assert within(Broken("w", 1, "a\nb\x1b[1m"), limits).reason == "a b ["  # type: ignore[union-attr]
    assert within(Stop(1, "x" * 10), limits) == Stop(1, "xxxxx")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ('{"type":"hello","agent":"a","host":"' + "h" * 300 + '","meeting":"m"}', "256"),
        ('{"type":"hello","agent":"a","host":"two\\nlines","meeting":"m"}', "host"),
        ('{"type":"hello","agent":"","host":"h","meeting":"m"}', "agent"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","announced":-1}', "announced"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","announced":1e400}', "announced"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","announced":' + "9" * 400 + "}", "announced"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","spec":{"min":2,"max":1}}', "min <= max"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","spec":{"max":4294967296}}', "max"),
        ('{"type":"hello","agent":"a","host":"h","meeting":"m","spec":{"shutdown_timeout":-1}}', "shutdown_timeout"),
        ('{"type":"beat"}', "first message must be Hello"),
        ('{"type":"beat","more":' + "[" * 100_000, "deep"),
    ],
)
def test_a_first_word_that_cannot_be_is_refused_with_a_reason(
    run: Run, serve: Serve, dial: Dial, says: str, reason: str
) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url) as agent:
            await agent.connection.send(says)
            refused = await agent.heard()
            assert isinstance(refused, Refused) and reason in refused.reason
            assert (await closing_of(agent))[0] == 1008
            assert not served.server._app.state.jobs.names()

    run(scenario())


def test_a_generation_that_nobody_announced_is_not_believed(run: Run, dial: Dial) -> None:
    async def scenario() -> None:
        server = await Server.start()
        try:
            async with dial(server.url) as agent:
                await agent.say(Hello("a", "h", "m", SPEC, [], 1 << 40))
                refused = await agent.heard()
                assert isinstance(refused, Refused) and "cannot have been announced" in refused.reason
        finally:
            await server.stop()

    run(scenario())


def test_heartbeats_of_many_workers_cost_little() -> None:
    machine = Membership(JobSpec(1, 10_000))
    for agent in range(250):
        claims = [WorkerClaim(f"{agent}.{n}", n) for n in range(8)]
        machine.said(f"agent-{agent}", Hello(f"agent-{agent}", "h", "m", JobSpec(1, 10_000), claims), 0.0)
    beats = [(f"agent-{agent}", encode(Beat([(f"{agent}.{n}", 5, 5.0) for n in range(8)]))) for agent in range(250)]
    began = time.process_time()
    for agent, beat in beats:
        machine.said(agent, within(decode_to_server(beat), Limits()), 1.0)
    assert time.process_time() - began < 0.25, "the heartbeats of 2000 workers of one second"
