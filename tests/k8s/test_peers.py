"""The watch on peers as a process: a scripted API server on one side, a real rendezvous server with agents on the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elastic_launch.rendezvous.membership.members import Timing
from elastic_launch.rendezvous.messages import Announce, Drain
from elastic_launch.rendezvous.server import Server

from ..rendezvous.agents import Agent, run_together
from .api_double import Answer, ApiDouble, Json, pod

LIMIT = 20.0


@pytest.fixture
def double() -> Iterator[ApiDouble]:
    double = ApiDouble()
    yield double
    double.close()


def kubeconfig(double: ApiDouble, folder: Path) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "double",
        "contexts": [{"name": "double", "context": {"cluster": "double", "user": "nobody"}}],
        "clusters": [{"name": "double", "cluster": {"server": double.url}}],
        "users": [{"name": "nobody", "user": {}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


def pods(version: int, *items: Json) -> Answer:
    return lambda request: request.list(version, *items)


def changes(kind: str, item: Json) -> Answer:
    return lambda request: request.stream({"type": kind, "object": item}, silence=30)


@pytest.mark.parametrize("kind", ["DELETED", "MODIFIED"])
def test_the_server_hears_which_pods_leave_and_which_are_lost(double: ApiDouble, tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        server = await Server.start(timing=Timing(lease=60.0))
        agents = [Agent(server.url, name) for name in "ab"]
        await run_together(*agents)
        command = ["-m", "elastic_launch.k8s.peers", "--namespace", "n", "--pods", "app=x", "--job", "digits"]
        watch = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--rendezvous", server.url, env={"KUBECONFIG": str(kubeconfig(double, tmp_path))}
        )
        try:
            if kind == "DELETED":
                change = await agents[0].hears(Announce, lambda message: message.world_size == 1)
                assert "pod b was deleted" in change.reason
            else:
                await agents[1].hears(Drain)
        finally:
            watch.kill()
            await watch.wait()
            for agent in agents:
                await agent.leave()
            await server.stop()

    both = [pod(name, 5, uid=f"pod of {name}") for name in "ab"]
    leaving = {"deletionTimestamp": "2999-01-01T00:00:00Z"} if kind == "MODIFIED" else {}
    double.script(pods(10, *both), changes(kind, pod("b", 11, uid="pod of b", **leaving)))
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))
    assert double.requests[0].query["labelSelector"] == "app=x"


def test_missing_rights_are_said_once_and_not_each_second(double: ApiDouble, tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        command = [
            "-m",
            "elastic_launch.k8s.peers",
            "--namespace",
            "n",
            "--pods",
            "app=x",
            "--rendezvous",
            "http://127.0.0.1:9",
        ]
        environment = {"KUBECONFIG": str(kubeconfig(double, tmp_path))}
        watch = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=environment, stderr=asyncio.subprocess.PIPE
        )
        while len(double.requests) < 3:
            await asyncio.sleep(0.1)
        watch.kill()
        _, said = await watch.communicate()
        return said.decode().splitlines()

    double.script(*[lambda request: request.error(403)] * 10)
    said = asyncio.run(asyncio.wait_for(scenario(), LIMIT))
    assert len(said) == 1 and "trouble 403" in said[0] and "right to list and watch" in said[0], said
