"""How an agent parts with its workers and with those whom it serves: in order first, then by force, never for ever."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

from . import exits
from .ending import Ending
from .process_groups import where_it_is_stuck
from .reporter import Reporter
from .serving import JobServer
from .slots import Slots


async def end_workers(slots: Slots, ending: Ending, at_once: asyncio.Event, reporter: Reporter) -> None:
    """Returns when they are gone, or cannot be ended. `at_once`: somebody is in a hurry."""
    if ending.ask is not None:
        for worker in slots:
            worker.stop(ending.ask)
    if slots and ending.patience > 0:
        await _first_of(slots.wait_until_empty(ending.patience), at_once)
    if slots:
        if ending.code == exits.SUCCESS:
            left = ", ".join(str(pid) for worker in slots for pid in worker.pids)
            reporter.say(f"killing the workers that have not ended within --shutdown-timeout: pid {left}")
        await slots.kill_all()
        for pid in [pid for worker in slots for pid in worker.pids]:
            reporter.say(
                f"warning: pid {pid} does not end on SIGKILL: it is stuck in the kernel ({where_it_is_stuck(pid)})."
                " This agent ends without it; if it stays, what it holds (a GPU, a mount) is free after a reboot"
            )
    await slots.drained()


async def leave_the_others(
    server: JobServer, ending: Ending, draining: bool, limit: float, at_once: asyncio.Event, reporter: Reporter
) -> None:
    """The server in this agent goes on until other agents have heard how the job ended, for at most `limit` seconds."""
    others = server.connected_agents
    if others and ending.code == exits.SUCCESS and draining:
        until = "until they have left" if limit == math.inf else f"for {limit:g} s"
        reporter.say(f"{others} other agents need the server in this agent: it goes on {until}")
    if await _first_of(server.wait_until_all_have_left(limit), at_once) is False:
        reporter.say("other agents were still connected to the server in this one: they have lost it")


async def _first_of(waiting: Coroutine[Any, Any, bool], at_once: asyncio.Event) -> bool | None:
    """What `waiting` returns; None if `at_once` came first."""
    awaited = asyncio.ensure_future(waiting)
    hurried = asyncio.ensure_future(at_once.wait())
    try:
        await asyncio.wait([awaited, hurried], return_when=asyncio.FIRST_COMPLETED)
        return awaited.result() if awaited.done() else None
    finally:
        awaited.cancel()
        hurried.cancel()
