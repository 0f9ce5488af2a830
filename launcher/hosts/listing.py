"""Hosts and their slots as people, mpirun's hostfiles and Horovod's discovery scripts write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import UsageError

# What ssh takes as a host; never something that it would take for a flag.
_NAME = re.compile(r"(?:[\w.-]+@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.%\w]+\])")
_MOST_SLOTS = 1 << 16


@dataclass(frozen=True)
class Host:
    """A host by the name that its remote shell is given, and how many workers it has room for."""

    name: str
    slots: int


def parse_hosts(text: str, slots: int) -> tuple[Host, ...]:
    """`h1:2,h2:4,h3`; `slots` is for those without a number. UsageError for anything else."""
    return _together(_host(part, slots) for part in text.split(",") if part.strip() or text.count(",") == 0)


def parse_hostfile(text: str, slots: int) -> tuple[Host, ...]:
    """One host a line, as `h1 slots=2`, `h1:2` or `h1`; `#` begins a comment. Further words such as max_slots= are left alone.

    A host that stands in several lines has the slots of all of them, as with mpirun.
    """
    hosts = []
    for line in text.splitlines():
        name, *words = line.partition("#")[0].split() or [""]
        if not name:
            continue
        counts = [word.partition("=")[2] for word in words if word.lower().startswith("slots=")]
        hosts.append(_host(f"{name}:{counts[-1]}" if counts else name, slots))
    return _together(hosts)


def parse_discovered(text: str, slots: int) -> tuple[Host, ...]:
    """What a discovery script has printed: one `h1:2` or `h1` a line. A host that is printed twice counts once."""
    hosts = {host.name: host for host in (_host(line, slots) for line in text.splitlines() if line.strip())}
    return tuple(hosts.values())


def _host(text: str, slots: int) -> Host:
    text = text.strip()
    name, colon, count = text, "", ""
    if text.count(":") == 1 or text.rpartition(":")[0].endswith("]"):
        name, colon, count = text.rpartition(":")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} is no host: write it as NAME or NAME:SLOTS, an IPv6 address in brackets")
    if colon:
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= _MOST_SLOTS):
            raise UsageError(f"{text!r} has no number of slots after the colon: write NAME:SLOTS, with 1 slot or more")
        slots = int(count)
    return Host(name.strip("[]"), slots)


def _together(hosts: Iterable[Host]) -> tuple[Host, ...]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())
