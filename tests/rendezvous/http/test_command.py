"""The flags of `elastic-rendezvous` that are about who may talk to it, and its log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from elastic_launch.rendezvous.bearer import TokenFile
from elastic_launch.rendezvous.tls import client_context

from ..agents import Agent, run_together
from ..conftest import LIMIT, Run
from .test_authorization import Certificates

COMMAND = [sys.executable, "-m", "elastic_launch.rendezvous.main", "--host", "127.0.0.1", "--port", "0"]


@asynccontextmanager
async def serving(log: Path, *flags: str) -> AsyncIterator[str]:
    """The URL of a server with these flags, whose log is written to a file."""
    with log.open("w") as file:
        process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=file, text=True)
    with process:
        try:
            assert process.stdout is not None
            yield (await asyncio.to_thread(process.stdout.readline)).split()[2]
            process.terminate()
            assert await asyncio.to_thread(process.wait, LIMIT) == 0
        finally:
            process.kill()


def test_a_log_in_json_says_of_which_job_generation_and_agent_it_speaks(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "log", "--log-format", "json") as url:
            agent = Agent(url, "a")
            await run_together(agent)
            await agent.leave()
        records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert all({"time", "level", "message"} <= set(record) for record in records)
        formed = next(record for record in records if record.get("event") == "formed")
        assert (formed["job"], formed["generation"], formed["level"]) == ("digits", 1, "INFO")
        connected = next(record for record in records if record.get("event") == "connected")
        assert (connected["job"], connected["agent"]) == ("digits", "a")

    run(scenario())


def test_the_command_serves_https_to_who_has_the_token_and_a_certificate(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = Certificates(tmp_path)
        token = tmp_path / "token"
        token.write_text("open-sesame")
        flags = ["--tls-cert", files.server, "--tls-key", files.server, "--tls-client-ca", files.authority]
        async with serving(tmp_path / "log", *map(str, flags), "--token-file", str(token), "--open-metrics") as url:
            assert url.startswith("https://")
            tls = client_context(files.authority, files.client)
            agent = Agent(url, "a", token=TokenFile(token).token, ssl=tls)
            await run_together(agent)
            async with httpx.AsyncClient(base_url=url, verify=tls, trust_env=False) as http:
                assert (await http.get("/v1/jobs")).status_code == 401
                assert 'elastic_job_members{job="digits"} 1.0' in (await http.get("/metrics")).text
            await agent.leave()
        assert "open-sesame" not in (tmp_path / "log").read_text()

    run(scenario())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--token-file", "missing"], "the token file 'missing' cannot be used: No such file"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-client-ca", "ca.pem"], "--tls-client-ca is for a server with --tls-cert"),
        (["--tls-cert", "cert.pem", "--tls-key", "key.pem"], "the certificate 'cert.pem' and the key 'key.pem' cannot"),
        (["--max-jobs", "0"], "'0' is not a limit"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_flags_that_cannot_work_end_with_code_2(tmp_path: Path, flags: list[str], words: str) -> None:
    result = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr and "Traceback" not in result.stderr
