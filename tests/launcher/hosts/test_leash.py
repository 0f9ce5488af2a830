"""The line between a launcher and its agents: what is said over it arrives, however it is cut, and its end is noticed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic_launch.launcher.hosts import leash
from elastic_launch.launcher.hosts.leash import Held, Leash, read_line

Say = Callable[[bytes], Any]


def heard(
    say: Callable[[Callable[[bytes], Any], int], Awaitable[None]], rest: bytes = b"", silence: float = 10.0
) -> list[str]:
    """What the agent was told until its leash was lost."""

    async def hold() -> list[str]:
        told: list[str] = []
        lost = asyncio.get_running_loop().create_future()
        ours, theirs = os.pipe()
        held = Held(
            drain=lambda: told.append("drain"),
            end=lambda: told.append("end"),
            resize=lambda slots: told.append(f"slots {slots}"),
            lost=lost.set_result,
        )
        Leash(ours, rest, held, silence)
        await say(lambda data: os.write(theirs, data), theirs)
        told.append(await asyncio.wait_for(lost, 5))
        os.close(ours)
        return told

    return asyncio.run(hold())


GONE = "the launcher, or the connection to it, is gone"


def test_words_arrive_however_they_are_cut() -> None:
    async def say(write: Say, end: int) -> None:
        write(b"ot")
        await asyncio.sleep(0)
        write(b"s 3\n" + leash.BEAT + b"no such word\n" + leash.DRAIN[:2])
        await asyncio.sleep(0)
        write(leash.DRAIN[2:] + leash.slots(12) + leash.END)
        os.close(end)

    assert heard(say, rest=leash.slots(2) + b"sl") == ["slots 2", "slots 3", "drain", "slots 12", "end", GONE]


def test_the_end_of_the_line_is_noticed() -> None:
    async def say(write: Say, end: int) -> None:
        os.close(end)

    assert heard(say) == [GONE]


def test_a_launcher_that_is_silent_for_too_long_counts_as_gone() -> None:
    async def say(write: Say, end: int) -> None:
        write(leash.BEAT)

    assert heard(say, silence=0.2) == ["the launcher has said nothing for 0.2 s"]


@pytest.mark.parametrize(
    ("data", "read"), [(b"{}\ndrain\n", (b"{}", b"drain\n")), (b"", (b"", b"")), (b"no end", (b"", b""))]
)
def test_the_first_line_is_told_from_what_follows(data: bytes, read: tuple[bytes, bytes]) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    assert read_line(ours) == read
    os.close(ours)
    assert read_line(ours) == (b"", b"")
