"""Real discovery scripts: what they print, and how they can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launch.launcher.guarding import Guard
from elastic_launch.launcher.hosts.discovery import DiscoveryError, DiscoveryScript
from elastic_launch.launcher.hosts.listing import Host

from ..running import lives, wait_for_pid, wait_until


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


def ask(guard: Guard, script: str, limit: float = 10.0) -> tuple[Host, ...]:
    return asyncio.run(DiscoveryScript(script, 2, guard, limit).hosts())


def test_a_script_may_have_arguments_and_print_nothing(guard: Guard) -> None:
    assert ask(guard, "echo h1:3; echo h2") == (Host("h1", 3), Host("h2", 2))
    assert ask(guard, "printf '%s\\n' h1") == (Host("h1", 2),)
    assert ask(guard, "true") == ()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo h1; echo why >&2; exit 3", "has failed with exit code 3: why"),
        ("/no/such/script", "has failed with exit code 127"),
        ("kill -9 $$", "has failed with exit code -9"),
        ("echo '{\"hosts\": []}'", "printed what is no list"),
        ("head -c 100000 /dev/urandom", "printed what is no list"),
    ],
)
def test_a_script_that_fails_or_prints_nonsense_is_named(guard: Guard, script: str, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        ask(guard, script)


def test_a_script_that_hangs_is_killed_with_all_that_it_has_started(guard: Guard, tmp_path: Path) -> None:
    for number, script in enumerate(("sleep 1000 & echo $! > {}; wait", "sleep 1000 & echo $! > {}; exit 0")):
        note = tmp_path / f"pid-{number}"
        with pytest.raises(DiscoveryError, match=r"was not done within 1 s, and was killed"):
            ask(guard, script.format(note), limit=1.0)
        pid = wait_for_pid(note)
        wait_until(lambda pid=pid: not lives(pid), "the end of what the script has started")
