"""The server's own duties, over real sockets: order, isolation, time, store and end. The decisions are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from elastic_launch.errors import RendezvousError
from elastic_launch.rendezvous import agent_connection, job
from elastic_launch.rendezvous.membership.effects import Effect, Event, Finish, Persist, PersistDone, Tell
from elastic_launch.rendezvous.membership.members import FormedGeneration, Timing
from elastic_launch.rendezvous.messages import (
    Beat,
    Failed,
    Finished,
    Formed,
    Hello,
    JobSpec,
    Leaving,
    Ready,
    Refused,
    Stop,
    ToServer,
    encode,
)
from elastic_launch.rendezvous.server import Server
from elastic_launch.rendezvous.stores.memory import MemoryStore
from elastic_launch.rendezvous.stores.store import Held, StoreUnavailable

from .conftest import LIMIT, Agent, Dial, Run, Serve, Until


def http(url: str, body: object = None) -> Any:
    """Status and JSON of a request; a POST if it has a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def closing_of(agent: Agent) -> tuple[int, str]:
    """The close code and reason, after the messages that are still to be read."""
    try:
        while True:
            await agent.heard()
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return closed.rcvd.code, closed.rcvd.reason


def test_messages_reach_the_machine_in_order(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            sent: list[ToServer] = [Formed("w", generation) for generation in range(500)]
            for message in sent:
                await agent.say(message)
            await until(lambda: len(served.machine.messages("a")) == 501)
            assert served.machine.messages("a")[1:] == sent

    run(scenario())


def test_effects_are_carried_out_in_order(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as a, dial(served.url, agent="b") as b:
            served.machine.on_message = lambda agent, message, now: [
                *(Tell(to, Failed(code)) for code in range(100) for to in ("a", "nobody", "b"))
            ]
            await a.say(Beat())
            for listener in (a, b):
                assert [await listener.heard() for _ in range(100)] == [Failed(code) for code in range(100)]

    run(scenario())


def test_jobs_do_not_mix(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, "one", "a", JobSpec(1, 2)):
            first = served.machine
            async with dial(served.url, "two", "a", JobSpec(3, 4)) as other:
                second = served.machine
                second.on_message = lambda agent, message, now: [Tell("a", Failed(2))]
                await other.say(Beat())
                assert await other.heard() == Failed(2)
            assert (first.spec, second.spec) == (JobSpec(1, 2), JobSpec(3, 4))
            assert len(first.happened) == 1

    run(scenario())


def test_an_agent_that_vanishes_is_reported_at_once(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve(timing=Timing(lease=60)) as served, dial(served.url, agent="a") as agent:
            agent.connection.transport.abort()
            began = time.monotonic()
            await until(lambda: ("closed", "a") in served.machine.happened)
            assert time.monotonic() - began < 8

    run(scenario())


def test_a_connection_that_was_replaced_says_nothing_any_more(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as old, dial(served.url, agent="a") as new:
            assert await closing_of(old) == (1001, "the agent has come back on another connection")
            await new.say(Leaving("w"))
            await until(lambda: Leaving("w") in served.machine.messages("a"))
            assert ("closed", "a") not in served.machine.happened

    run(scenario())


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("no json", "malformed"),
        ('{"type":"unknown"}', "unknown"),
        ('{"type":"formed","worker":"w"}', "generation"),
        ('{"type":"formed","worker":"w","generation":"two"}', "int"),
        (encode(Hello("a", "h", "127.0.0.1:1", JobSpec(1, 2))).decode(), "Hello comes once"),
        (b"\x00\xff", "not bytes"),
    ],
)
def test_a_malformed_message_ends_its_connection_with_a_reason_and_harms_nobody(
    run: Run, serve: Serve, dial: Dial, until: Until, says: str | bytes, reason: str
) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as bad, dial(served.url, agent="b") as good:
            await bad.connection.send(says)
            refused = await bad.heard()
            assert isinstance(refused, Refused) and reason in refused.reason
            assert (await closing_of(bad))[0] == 1008
            await until(lambda: ("closed", "a") in served.machine.happened)
            await good.say(Leaving("w"))
            await until(lambda: Leaving("w") in served.machine.messages("b"))
            assert ("closed", "b") not in served.machine.happened

    run(scenario())


@pytest.mark.parametrize(
    ("job_name", "first", "reason"),
    [
        ("digits", Beat(), "the first message must be Hello, not Beat"),
        ("digits", Hello("a", "h", "m"), "does not say what it is"),
        ("digits", Hello("a", "h", "m", JobSpec(3, 2)), "1 <= min <= max, not min=3 max=2"),
        ("digits", Hello("a", "h", "m", JobSpec(0, 2)), "1 <= min <= max"),
        ("digits", Hello("a", "h", "m", JobSpec(1, 2, max_restarts=-1)), "max_restarts=-1"),
        ("-digits", Hello("a", "h", "m", JobSpec(1, 2)), "cannot be a job's name"),
        ("d" * 64, Hello("a", "h", "m", JobSpec(1, 2)), "cannot be a job's name"),
        ("a%20b", Hello("a", "h", "m", JobSpec(1, 2)), "cannot be a job's name"),
    ],
)
def test_a_first_message_that_makes_no_job_is_refused(
    run: Run, serve: Serve, dial: Dial, job_name: str, first: ToServer, reason: str
) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, job_name) as agent:
            try:
                await agent.say(first)
            except ConnectionClosed:
                pass  # a name is refused before anything is said
            refused = await agent.heard()
            assert isinstance(refused, Refused) and reason in refused.reason
            assert (await closing_of(agent))[0] == 1008
            assert served.made == 0

    run(scenario())


def test_who_says_no_hello_is_sent_away(run: Run, serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_connection, "HELLO_WITHIN", 0.1)

    async def scenario() -> None:
        async with serve() as served, dial(served.url) as agent:
            assert isinstance(await agent.heard(), Refused)

    run(scenario())


def test_a_message_that_is_too_long_ends_its_connection(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            await agent.connection.send("x" * (2 * 1024 * 1024))
            assert (await closing_of(agent))[0] == 1009
            await until(lambda: ("closed", "a") in served.machine.happened)

    run(scenario())


def test_a_slow_agent_is_disconnected_and_delays_nobody(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="slow") as slow, dial(served.url, agent="b") as b:
            slow.connection.transport.pause_reading()
            served.machine.on_message = lambda agent, message, now: [
                Tell("slow", Failed(1, "x" * 200_000)),
                Tell("b", Failed(2)),
            ]
            began = time.monotonic()
            sent = 0
            while ("closed", "slow") not in served.machine.happened:
                await b.say(Beat())
                assert await b.heard() == Failed(2)
                sent += 1
                assert sent < 10 * agent_connection.OUTGOING
            assert sent > agent_connection.OUTGOING
            assert time.monotonic() - began < LIMIT
            assert ("closed", "b") not in served.machine.happened

    run(scenario())


def test_a_failure_of_the_machine_costs_one_connection(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as a, dial(served.url, agent="b") as b:

            def fail(agent: str, message: ToServer, now: float) -> list[Effect]:
                if agent == "a":
                    raise ZeroDivisionError
                return [Tell("b", Failed(3))]

            served.machine.on_message = fail
            await a.say(Beat())
            assert await closing_of(a) == (1001, "internal error of the rendezvous server")
            await b.say(Beat())
            assert await b.heard() == Failed(3)

    run(scenario())


def test_what_many_agents_say_at_once_is_decided_about_together(
    run: Run, serve: Serve, dial: Dial, until: Until
) -> None:
    async def scenario() -> None:
        async with serve() as served, contextlib.AsyncExitStack() as stack:
            agents = [await stack.enter_async_context(dial(served.url, agent=f"agent-{n}")) for n in range(20)]
            heard: list[str] = []

            def take(agent: str, message: ToServer, now: float) -> list[Effect]:
                heard.append(agent)
                return []

            served.machine.on_message = take
            before = served.machine.decisions
            await asyncio.gather(*[agent.say(Ready("w")) for agent in agents])
            await until(lambda: len(heard) == 20)
            assert 1 <= served.machine.decisions - before <= 10

    run(scenario())


def test_a_decision_that_fails_is_tried_again_and_costs_no_connection(
    run: Run, serve: Serve, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_AFTER_A_FAULT", 0.05)

    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            failures = 3

            def decide() -> list[Effect]:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise ZeroDivisionError
                return [Tell("a", Failed(3))]

            served.machine.on_decision = decide
            await agent.say(Ready("w"))
            assert await agent.heard() == Failed(3)

    run(scenario())


def test_a_formed_generation_is_made_durable_and_then_reported(
    run: Run, serve: Serve, dial: Dial, until: Until
) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with serve(store=store) as served, dial(served.url, agent="a") as agent:
            persist: dict[type, Effect] = {
                Ready: Persist(1, ("w", "v"), 0),
                Formed: Persist(3, ("v",), 2),
                Finished: PersistDone(),
            }
            served.machine.on_message = lambda agent, message, now: [persist[type(message)]]
            await agent.say(Ready("w"))
            await until(lambda: ("persisted", 1) in served.machine.happened)
            await agent.say(Formed("w", 3))
            refused = ("persist_refused", 3, FormedGeneration(1, ("w", "v")))
            await until(lambda: refused in served.machine.happened)
            await agent.say(Finished("w"))
            await until(lambda: ("persisted_done",) in served.machine.happened)
        async with serve(store=store) as served, dial(served.url, agent="a"):
            assert served.machine.formed == FormedGeneration(1, ("w", "v"))
            assert served.machine.was_done

    run(scenario())


class _Frozen(MemoryStore):
    frozen = False

    async def get(self, key: str) -> Held | None:
        if self.frozen:
            raise StoreUnavailable("frozen")
        return await super().get(key)

    async def compare_and_set(self, key: str, value: bytes, version: int, **options: Any) -> int | None:
        if self.frozen:
            raise StoreUnavailable("frozen")
        return await super().compare_and_set(key, value, version, **options)


def test_messages_are_handled_while_the_store_does_not_answer(
    run: Run, serve: Serve, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_STORE_PAUSE", 0.01)

    async def scenario() -> None:
        store = _Frozen()
        async with serve(store=store) as served, dial(served.url, agent="a") as agent:
            served.machine.on_message = lambda agent, message, now: (
                [Persist(1, ("w",), 0)] if isinstance(message, Formed) else [Tell("a", Failed(1))]
            )
            store.frozen = True
            await agent.say(Formed("w", 1))
            await agent.say(Beat())
            assert await agent.heard() == Failed(1)
            assert ("persisted", 1) not in served.machine.happened
            store.frozen = False
            await until(lambda: ("persisted", 1) in served.machine.happened)

    run(scenario())


def test_agents_wait_for_a_store_that_does_not_answer_yet(
    run: Run, serve: Serve, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_STORE_PAUSE", 0.01)

    async def scenario() -> None:
        store = _Frozen()
        store.frozen = True
        async with serve(store=store) as served, dial(served.url) as agent:
            await agent.say(Hello("a", "h", "m", JobSpec(1, 2)))
            jobs_url = f"{served.url}/v1/jobs/digits"
            await until(lambda: served.server._app.state.jobs.get("digits"))
            status, shown = await asyncio.to_thread(http, jobs_url)
            assert (status, shown["state"], shown["workers"]) == (200, "loading", [])
            store.frozen = False
            assert (await agent.heard()).__class__.__name__ == "Welcome"

    run(scenario())


def test_an_unreadable_record_sends_agents_away_without_ending_the_server(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.compare_and_set("jobs/digits", b"{", 0)
        async with serve(store=store) as served, dial(served.url) as agent, dial(served.url, "other", "b"):
            await agent.say(Hello("a", "h", "m", JobSpec(1, 2)))
            assert (await closing_of(agent))[0] == 1001

    run(scenario())


def test_a_deadline_is_a_tick(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:

            def set_deadline(agent: str, message: ToServer, now: float) -> list[Effect]:
                served.machine.deadline = now + 0.05
                return []

            served.machine.on_message = set_deadline
            served.machine.effects_of_a_tick = [Tell("a", Failed(7))]
            began = time.monotonic()
            await agent.say(Beat())
            assert await agent.heard() == Failed(7)
            assert 0.04 < time.monotonic() - began < 5

    run(scenario())


def test_a_server_that_was_paused_reads_what_has_arrived_before_it_judges_a_lease(
    run: Run, serve: Serve, dial: Dial, until: Until
) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            lease = 0.4

            def renew(agent: str, message: ToServer, now: float) -> list[Effect]:
                served.machine.deadline = now + lease
                return []

            served.machine.on_message = renew
            await agent.say(Beat())
            await until(lambda: served.machine.messages("a")[1:])
            await agent.say(Leaving("w"))  # lies in the socket while the server does not run
            time.sleep(3 * lease)
            await until(lambda: ("tick",) in served.machine.happened)
            kinds = [event[0] if event[0] == "tick" else type(event[2]) for event in served.machine.happened]
            assert kinds == [Hello, Beat, Leaving, "tick"]

    run(scenario())


def test_the_state_of_jobs_is_shown_over_http(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served:
            assert await asyncio.to_thread(http, f"{served.url}/v1/jobs") == (200, {"jobs": []})
            status, body = await asyncio.to_thread(http, f"{served.url}/healthz")
            assert (status, body["status"]) == (200, "ok")
            async with dial(served.url, agent="a") as agent:
                served.machine.on_message = lambda agent, message, now: [Event("joined", "w has come", {"rank": 3})]
                await agent.say(Beat())
                await until(lambda: len(served.machine.happened) == 2)
                status, body = await asyncio.to_thread(http, f"{served.url}/v1/jobs")
                assert [(job["job"], job["state"], job["generation"]) for job in body["jobs"]] == [
                    ("digits", "running", 2)
                ]
                status, body = await asyncio.to_thread(http, f"{served.url}/v1/jobs/digits")
                assert (status, body["job"], body["generation"]) == (200, "digits", 2)
                status, body = await asyncio.to_thread(http, f"{served.url}/v1/jobs/digits/events")
                (event,) = body["events"]
                assert abs(event.pop("time") - time.time()) < LIMIT
                assert event.pop("id")
                assert event == {"kind": "joined", "text": "w has come", "rank": 3}
            for path in ("", "/events"):
                status, body = await asyncio.to_thread(http, f"{served.url}/v1/jobs/none{path}")
                assert (status, body["detail"]) == (404, "job 'none' is not known here")

    run(scenario())


def test_the_history_is_bounded(run: Run, serve: Serve, dial: Dial, until: Until) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            served.machine.on_message = lambda agent, message, now: [
                Event("tick", str(i)) for i in range(job.HISTORY + 5)
            ]
            await agent.say(Beat())
            await until(lambda: len(served.machine.happened) == 2)
            _, body = await asyncio.to_thread(http, f"{served.url}/v1/jobs/digits/events")
            assert [event["text"] for event in body["events"]] == [str(i) for i in range(5, job.HISTORY + 5)]

    run(scenario())


def test_a_worker_is_drained_over_http(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a"):
            url = f"{served.url}/v1/jobs/digits/drain"
            assert await asyncio.to_thread(http, url, {"worker": "known"}) == (202, {"draining": "known"})
            assert ("drain", "known") in served.machine.happened
            status, body = await asyncio.to_thread(http, url, {"worker": "other"})
            assert (status, body["detail"]) == (404, "job 'digits' has no worker 'other'")
            assert (await asyncio.to_thread(http, url, {"workers": 1}))[0] == 422
            assert (await asyncio.to_thread(http, f"{served.url}/v1/jobs/no/drain", {"worker": "known"}))[0] == 404

    run(scenario())


def test_an_ended_job_is_forgotten_once_its_agents_are_gone(
    run: Run, serve: Serve, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serve() as served:
            served.server._app.state.jobs._keep = 0.2
            async with dial(served.url, agent="a") as agent:
                served.machine.on_message = lambda agent, message, now: [Finish("failed", 3, "because")]
                await agent.say(Stop(130))
                await until(lambda: len(served.machine.happened) == 2)
                await asyncio.sleep(0.4)
                assert served.server._app.state.jobs.names() == ["digits"]
            await until(lambda: not served.server._app.state.jobs.names())
            async with dial(served.url, agent="b"):
                assert served.made == 2

    run(scenario())


def test_who_serves_can_wait_for_the_others_to_leave(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve() as served:
            async with dial(served.url, agent="a"), dial(served.url, agent="b"):
                assert not await served.server.wait_until_deserted("digits", 0.05)
            assert await served.server.wait_until_deserted("digits", LIMIT)
            assert await served.server.wait_until_deserted("unknown", 0)

    run(scenario())


def test_the_last_words_of_an_agent_are_read_while_it_is_written_to(
    run: Run, serve: Serve, dial: Dial, until: Until
) -> None:
    async def scenario() -> None:
        async with serve() as served, dial(served.url, agent="a") as agent:
            served.machine.on_message = lambda agent, message, now: [Tell("a", Failed(1, "x" * 1000))] * 20
            for generation in range(200):
                await agent.say(Formed("w", generation))
            agent.connection.transport.close()
            await until(lambda: ("closed", "a") in served.machine.happened)
            assert served.machine.messages("a")[-1] == Formed("w", 199)

    run(scenario())


def test_a_stop_takes_less_than_a_second_with_agents_connected_and_frees_the_port(
    run: Run, serve: Serve, dial: Dial
) -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        async with serve() as served, dial(served.url, agent="a") as polite, dial(served.url, agent="b") as stuck:
            stuck.connection.transport.pause_reading()
            reading = asyncio.ensure_future(closing_of(polite))
            began = time.monotonic()
            await served.server.stop()
            assert time.monotonic() - began < 1
            assert await reading == (1001, "the rendezvous server stops")
            await served.server.stop()
            port = int(served.url.rsplit(":", 1)[1])
            async with serve(port=port) as again, dial(again.url, agent="a"):
                assert again.url == served.url
        assert asyncio.all_tasks() == before

    run(scenario())


def test_a_port_in_use_is_a_clear_error(run: Run, serve: Serve) -> None:
    async def scenario() -> None:
        async with serve() as served:
            port = int(served.url.rsplit(":", 1)[1])
            with pytest.raises(RendezvousError, match=rf"on 127\.0\.0\.1 port {port}: Address already in use.*another"):
                await Server.start("127.0.0.1", port)

    run(scenario())


def test_signal_handlers_are_left_alone(run: Run, serve: Serve) -> None:
    def handler(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, handler)
    try:

        async def scenario() -> None:
            async with serve() as served:
                await asyncio.to_thread(http, f"{served.url}/healthz")
                assert signal.getsignal(signal.SIGTERM) is handler

        run(scenario())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ipv6_is_served_alone_and_beside_ipv4(run: Run, serve: Serve, dial: Dial) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")

    async def scenario() -> None:
        async with serve("::1") as served, dial(served.url, agent="a"):
            assert served.url.startswith("http://[::1]:")
        async with serve("::") as served, dial(served.url, agent="a"):
            port = served.url.rsplit(":", 1)[1]
            async with dial(f"http://127.0.0.1:{port}", agent="b"):
                pass
        async with serve("0.0.0.0") as served, dial(served.url, agent="a"):
            assert served.url.startswith("http://127.0.0.1:")

    run(scenario())


def test_timing_is_the_machines(run: Run, serve: Serve, dial: Dial) -> None:
    async def scenario() -> None:
        async with serve(timing=Timing(lease=9.0)) as served, dial(served.url, agent="a"):
            assert served.machine.timing.lease == 9.0

    run(scenario())
