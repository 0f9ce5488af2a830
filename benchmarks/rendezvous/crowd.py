"""A process of simulated agents. It reads commands from its input, one JSON object a line, and answers each with one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from elastic_launch.rendezvous.messages import JobSpec

from .agent import Agent
from .limits import raise_descriptor_limit
from .wire import Received

_AT_ONCE = 200  # connections that are being opened
_SLICES = 50  # of a heartbeat's period: the agents do not beat in step
_LOOK = 0.005  # seconds between two looks at whether everybody is there
_LIMIT = 120.0  # seconds for any command


class Crowd:
    """`url` is the job's WebSocket address, `period` the seconds between two heartbeats of an agent."""

    def __init__(self, url: str, spec: JobSpec, period: float) -> None:
        self._url = url
        self._spec = spec
        self._period = period
        self._agents: dict[int, Agent] = {}
        self._received = Received()

    async def beat(self) -> None:
        due = time.monotonic()
        slot = 0
        while True:
            due += self._period / _SLICES
            slot = (slot + 1) % _SLICES
            for agent in [*self._agents.values()]:
                if agent.number % _SLICES == slot and agent.welcome:
                    agent.beat()
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def do(self, command: dict[str, Any]) -> dict[str, Any]:
        name = command.pop("do")
        answer: dict[str, Any] = await getattr(self, name)(**command)
        return answer

    async def arrive(self, numbers: list[int], ready: bool) -> dict[str, Any]:
        """All connect as fast as they can, and are ready at once if so wanted."""
        gate = asyncio.Semaphore(_AT_ONCE)
        began = time.monotonic()

        async def one(number: int) -> None:
            agent = Agent(number, self._spec, self._received)
            async with gate:
                await agent.connect(self._url)
            self._agents[number] = agent
            if ready:
                agent.ready()

        await asyncio.gather(*[one(number) for number in numbers])
        return {"began": began, "at": time.monotonic()}

    async def ready(self, number: int) -> dict[str, Any]:
        at = time.monotonic()
        self._agents[number].ready()
        return {"at": at}

    async def die(self, number: int, kind: str, reporters: list[int]) -> dict[str, Any]:
        agent = self._agents[number]
        at = time.monotonic()
        if kind == "crash":
            agent.crash()
        else:
            agent.vanish()
            del self._agents[number]
            self._gone = agent
        for peer in reporters:
            self._agents[peer].report_broken()
        return {"at": at}

    async def replace(self, number: int, kind: str) -> dict[str, Any]:
        """Whoever died comes back, as a fresh worker or a fresh agent."""
        at = time.monotonic()
        if kind == "crash":
            self._agents[number].start_another_worker()
        else:
            self._agents[number] = self._gone
            await self._gone.come_anew(self._url)
        return {"at": at}

    async def follow(self, after: int, without: list[int]) -> dict[str, Any]:
        """When each agent was first told of a generation beyond `after`, and released into the newest, once all are."""
        deadline = time.monotonic() + _LIMIT
        while True:
            agents = [agent for agent in self._agents.values() if agent.number not in without]
            newest = max(agent.generation for agent in agents)
            if newest > after and all(newest in agent.released for agent in agents):
                break
            problems = [agent.problem for agent in agents if agent.problem]
            if problems or time.monotonic() > deadline:
                missing = sum(newest not in agent.released for agent in agents)
                raise RuntimeError(f"{missing} agents are not in generation {newest}: {problems[:3]}")
            await asyncio.sleep(_LOOK)
        told = [min(at for number, at in agent.told.items() if number > after) for agent in agents]
        released = [agent.released[newest] for agent in agents]
        sizes = {agent.world_size for agent in agents}
        return {"generation": newest, "told": told, "released": released, "world_sizes": sorted(sizes)}

    async def received(self) -> dict[str, Any]:
        return {"bytes": self._received.bytes, "messages": self._received.messages}


async def _serve(options: dict[str, Any]) -> None:
    raise_descriptor_limit(options["descriptors"])
    crowd = Crowd(options["url"], JobSpec(**options["spec"]), options["period"])
    beating = asyncio.ensure_future(crowd.beat())
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await crowd.do(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    beating.cancel()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
