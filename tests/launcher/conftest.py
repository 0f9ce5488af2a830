from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.launcher.running import RunningAgent
from tests.launcher.scripted_server import ScriptedServer

StartAgent = Callable[..., RunningAgent]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def start_agent() -> Iterator[StartAgent]:
    """Starts agents whose workers do `steps`; they are gone at the end of the test."""
    agents: list[RunningAgent] = []

    def start(
        *steps: str, environ: dict[str, str] | None = None, inside: Sequence[str] = (), **options: Any
    ) -> RunningAgent:
        command = [sys.executable, "-u", "-m", "tests.launcher.scripted_worker", *steps]
        options = {"command": command, "host": "here", "address": "127.0.0.1", "rendezvous_timeout": 10.0, **options}
        agents.append(RunningAgent(options, environ, inside))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()
