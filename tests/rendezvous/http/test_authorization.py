"""Who may talk to the server: tokens, and certificates."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import httpx
import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from elastic_launch.errors import AuthorizationError, RendezvousError, UsageError
from elastic_launch.rendezvous import credentials
from elastic_launch.rendezvous.bearer import TokenFile
from elastic_launch.rendezvous.http.face import Face
from elastic_launch.rendezvous.replicas import ReplicaFinder
from elastic_launch.rendezvous.tls import client_context, server_context

from ..agents import Agent, run_together
from ..conftest import Run, Until
from .conftest import RunJob

ADDRESSES = [
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/digits"),
    ("GET", "/v1/jobs/digits/events?follow=1"),
    ("POST", "/v1/jobs/digits/drain"),
    ("PATCH", "/v1/jobs/digits"),
    ("DELETE", "/v1/jobs/digits"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("GET", "//healthz"),
    ("GET", "/healthz/"),
]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    return file


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"Authorization": "Bearer"},
        {"Authorization": "open-sesame"},
        {"Authorization": "Basic b3BlbjpzZXM="},
    ],
)
def test_nothing_is_told_to_who_does_not_show_the_token(
    run: Run, run_job: RunJob, token_file: Path, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with run_job(0, Face(tokens=TokenFile(token_file))) as running:
            for method, path in ADDRESSES:
                answer = await running.http.request(method, path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "token" in answer.json()["detail"]

    run(scenario())


def test_the_probes_are_open_and_the_metrics_if_they_are_to_be(run: Run, run_job: RunJob, token_file: Path) -> None:
    async def scenario() -> None:
        async with run_job(0, Face(tokens=TokenFile(token_file), open_metrics=True)) as running:
            for path in ("/healthz", "/readyz", "/metrics"):
                assert (await running.http.get(path)).status_code == 200
            assert (await running.http.get("/v1/jobs")).status_code == 401
            assert (await running.http.get("/v1/jobs", headers=bearer("open-sesame"))).status_code == 200

    run(scenario())


def test_an_agents_handshake_without_the_token_is_answered_with_401(
    run: Run, run_job: RunJob, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with run_job(0, Face(tokens=TokenFile(token_file))) as running:
            url = running.server.url.replace("http", "ws") + "/v1/jobs/digits/agent"
            for headers in ({}, bearer("wrong")):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(url, additional_headers=headers, proxy=None)
                assert refused.value.response.status_code == 401
            async with connect(url, additional_headers=bearer("open-sesame"), proxy=None):
                pass
        assert "Traceback" not in caplog.text and not [r for r in caplog.records if r.levelno >= logging.ERROR]

    run(scenario())


def test_agents_with_the_token_run_a_job_and_no_log_shows_it(
    run: Run, run_job: RunJob, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "elastic_launch")

    async def scenario() -> None:
        tokens = TokenFile(token_file)
        async with run_job(0, Face(tokens=tokens)) as running:
            agents = [Agent(running.server.url, name, token=tokens.token) for name in "ab"]
            await run_together(*agents)
            for agent in agents:
                await agent.leave()
        assert caplog.records and "open-sesame" not in caplog.text

    run(scenario())


def test_an_agent_that_is_not_let_in_gives_up_with_a_clear_error(
    run: Run, run_job: RunJob, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_AT_THE_DOOR", 0.3)

    async def scenario() -> None:
        async with run_job(0, Face(tokens=TokenFile(token_file))) as running:
            for token, words in ((None, "wants a token"), (lambda: "wrong", "does not take this agent's token")):
                agent = Agent(running.server.url, "a", token=token)
                began = time.monotonic()
                with pytest.raises(AuthorizationError, match=f"{words}.*--token-file") as error:
                    await agent._task
                assert time.monotonic() - began < 5
                assert "wrong" not in str(error.value)

    run(scenario())


def test_a_rotated_token_works_at_once_and_the_old_one_no_more(
    run: Run, run_job: RunJob, token_file: Path, until: Until
) -> None:
    async def scenario() -> None:
        tokens = TokenFile(token_file)
        async with run_job(0, Face(tokens=tokens)) as running:
            agent = Agent(running.server.url, "a", token=TokenFile(token_file).token)
            await run_together(agent)
            _replace(token_file, "next\n")
            assert (await running.http.get("/v1/jobs", headers=bearer("open-sesame"))).status_code == 401
            assert (await running.http.get("/v1/jobs", headers=bearer("next"))).status_code == 200
            for connection in [*running.server._uvicorn.server_state.connections]:
                connection.transport.abort()
            await until(lambda: not agent.client.connected)
            await until(lambda: agent.client.connected)
            await agent.leave()

    run(scenario())


def _replace(file: Path, text: str) -> None:
    """As a mounted secret changes: another file takes its place."""
    other = file.with_name("next")
    other.write_text(text)
    os.replace(other, file)


def test_every_line_of_a_token_file_is_accepted_and_the_first_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  first \n\nsecond\n")
    tokens = TokenFile(file)
    assert tokens.token() == "first"
    assert [tokens.accepts(shown) for shown in (b"first", b"second", b"", b"third", b"first\nsecond")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_while_a_token_file_is_missing_or_empty_its_last_content_counts(token_file: Path) -> None:
    tokens = TokenFile(token_file)
    token_file.unlink()
    assert tokens.accepts(b"open-sesame") and tokens.token() == "open-sesame"
    token_file.write_text("")
    assert tokens.accepts(b"open-sesame") and not tokens.accepts(b"")
    token_file.write_text("another")
    assert tokens.accepts(b"another") and not tokens.accepts(b"open-sesame")


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "ünicode", "a\x00b"])
def test_a_token_file_that_cannot_be_one_is_refused_at_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="token file"):
        TokenFile(file)


class Certificates:
    """Files of an authority, of a server on this machine, and of a client."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority, self.stranger = folder / "ca.pem", folder / "stranger.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        trustme.CA().cert_pem.write_to_path(str(self.stranger))
        self.server, self.client = folder / "server.pem", folder / "client.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(self.server))
        authority.issue_cert("agent@example.org").private_key_and_cert_chain_pem.write_to_path(str(self.client))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_job_runs_over_tls(run: Run, run_job: RunJob, certificates: Certificates) -> None:
    async def scenario() -> None:
        async with run_job(0, Face(tls=server_context(certificates.server, certificates.server))) as running:
            assert running.server.url.startswith("https://127.0.0.1:")
            trusting = client_context(certificates.authority)
            agents = [Agent(running.server.url, name, ssl=trusting) for name in "ab"]
            await run_together(*agents)
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as http:
                assert len((await http.get(f"{running.server.url}/v1/jobs")).json()["jobs"]) == 1
            for agent in agents:
                await agent.leave()

    run(scenario())


def test_an_agent_does_not_talk_to_a_server_that_it_does_not_trust(
    run: Run, run_job: RunJob, certificates: Certificates
) -> None:
    async def scenario() -> None:
        async with run_job(0, Face(tls=server_context(certificates.server, certificates.server))) as running:
            agent = Agent(running.server.url, "a", ssl=client_context(certificates.stranger), connect_timeout=1.0)
            with pytest.raises(RendezvousError, match="certificate verify failed"):
                await agent._task

    run(scenario())


def test_a_server_that_wants_certificates_lets_in_only_who_has_one(
    run: Run, run_job: RunJob, certificates: Certificates
) -> None:
    async def scenario() -> None:
        tls = server_context(certificates.server, certificates.server, certificates.authority)
        async with run_job(0, Face(tls=tls)) as running:
            url = running.server.url
            bare = Agent(url, "bare", ssl=client_context(certificates.authority), connect_timeout=1.0)
            with pytest.raises(RendezvousError, match="no rendezvous server has answered"):
                await bare._task
            agent = Agent(url, "a", ssl=client_context(certificates.authority, certificates.client))
            await run_together(agent)
            await agent.leave()

    run(scenario())


def test_files_that_hold_no_certificate_are_named(tmp_path: Path, certificates: Certificates) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for make in (
        lambda: server_context(nonsense, nonsense),
        lambda: server_context(tmp_path / "missing.pem", certificates.server),
        lambda: server_context(certificates.server, certificates.server, nonsense),
        lambda: client_context(nonsense),
        lambda: client_context(certificates.authority, nonsense),
    ):
        with pytest.raises(UsageError, match=r"(nonsense|missing)\.pem"):
            make()


def test_a_token_is_not_taken_along_from_https_to_http() -> None:
    finder = ReplicaFinder(["wss://127.0.0.1:1/v1/jobs/digits/agent"])
    assert not finder.follow("http://127.0.0.1:2/v1/jobs/digits/agent")
    assert finder.follow("https://127.0.0.1:2/v1/jobs/digits/agent")
