"""The command `elastic-rendezvous` as a process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time

import pytest
from websockets.exceptions import ConnectionClosed

from .conftest import LIMIT, Dial, Run


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-m", "elastic_launch.rendezvous.main"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_url_and_ends_cleanly_on_a_signal(
    run: Run, dial: Dial, command: list[str], number: signal.Signals
) -> None:
    async def scenario() -> None:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--lease", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                assert process.stdout is not None and process.stderr is not None
                line = await asyncio.to_thread(process.stdout.readline)
                url = line.split()[2]
                async with dial(url) as agent:
                    process.send_signal(number)
                    with pytest.raises(ConnectionClosed, match=r"1001 .* the rendezvous server stops"):
                        await agent.heard()
                began = time.monotonic()
                assert await asyncio.to_thread(process.wait, LIMIT) == 0
                assert time.monotonic() - began < 5
                assert "Traceback" not in process.stderr.read()
            finally:
                process.kill()

    run(scenario())


def test_the_command_says_when_its_port_is_in_use(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [*command, "--host", "127.0.0.1", "--port", str(port)], capture_output=True, text=True, timeout=30
        )
    assert result.returncode == 1
    assert result.stderr.startswith("elastic-rendezvous: cannot serve the rendezvous on 127.0.0.1 port")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("bad", [["--port", "70000"], ["--port", "x"], ["--lease", "0"], ["--lease", "nan"], ["more"]])
def test_the_command_refuses_bad_options_as_usage_errors(command: list[str], bad: list[str]) -> None:
    result = subprocess.run([*command, *bad], capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    assert bad[-1] in result.stderr
