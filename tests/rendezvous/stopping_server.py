"""A server that stops itself (SIGSTOP) right before or right after it makes generation 2 durable.

Modes: "whole" is the server as it is; "fence alone" takes its look at the clock away; "no fence" takes both away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

import msgspec

from elastic_launch.rendezvous.jobs import Jobs
from elastic_launch.rendezvous.leadership import Mandate
from elastic_launch.rendezvous.server import Election, Server
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.records import JobRecord
from elastic_launch.rendezvous.stores.store import Fence


class StoppingStore(EtcdStore):
    when = ""
    is_fenced = True

    async def compare_and_set(
        self, key: str, value: bytes, version: int, *, lease: int = 0, fence: Fence | None = None
    ) -> int | None:
        due = key.startswith("jobs/") and msgspec.json.decode(value, type=JobRecord).formed == 2
        if due and self.when == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        fence = fence if self.is_fenced else None
        result = await super().compare_and_set(key, value, version, lease=lease, fence=fence)
        if due and self.when == "after":
            os.kill(os.getpid(), signal.SIGSTOP)
        return result


class HeedlessJobs(Jobs):
    """They go on deciding when their term is over."""

    async def take_over(self, mandate: Mandate) -> None:
        await super().take_over(replace(mandate, holds=lambda: True, lose=lambda: None))

    def step_down(self, reason: str) -> None:
        pass


async def main(address: str, when: str, mode: str) -> None:
    store = StoppingStore(EtcdAddress.parse(address))
    store.when, store.is_fenced = when, mode != "no fence"
    if mode != "whole":
        from elastic_launch.rendezvous.http import app

        app.Jobs = HeedlessJobs  # type: ignore[misc]
    server = await Server.start(store=store, election=Election(lease=2.0))
    while not server._app.state.jobs.decides:
        await asyncio.sleep(0.01)
    print(server.url, flush=True)
    await server.wait()


asyncio.run(main(*sys.argv[1:]))
