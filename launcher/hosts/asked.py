"""What the user asked for about hosts: one frozen dataclass, from the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ..flags.words import Words, count
from .blacklist import Cooldown
from .listing import Host, parse_hostfile, parse_hosts
from .remote_shell import RemoteShell, find_shell

NAMES = (
    "hosts", "hostfile", "host_discovery_script", "slots_per_host", "ssh_port", "ssh_identity_file", "remote_shell",
    "blacklist_cooldown_range", "reset_limit",
)  # fmt: skip
UNBOUNDED = 1 << 16
"""The most workers of a job whose hosts are discovered, where nobody has said how many."""

_COOLDOWN_LIMITS = (1.0, 3600.0)  # seconds, as Horovod has them


@dataclass(frozen=True)
class HostsAsked:
    """`fixed` are the hosts, or `script` is the command that lists them. `slots` is for hosts listed without a number.

    `reset_limit` is how often the workers may change before the job is ended, None for any number of times.
    `interfaces` are those whose address the agents may take, comma-separated, empty for the one on the way.
    """

    shell: RemoteShell
    fixed: tuple[Host, ...] = ()
    script: str = ""
    slots: int = 1
    cooldown: Cooldown | None = None
    reset_limit: int | None = None
    interfaces: str = ""

    @property
    def room(self) -> int:
        """The slots of the fixed hosts."""
        return sum(host.slots for host in self.fixed)


def asked_hosts(words: Words, environ: Mapping[str, str]) -> HostsAsked | None:
    """None if no other hosts are named. UsageError for what cannot work."""
    ways = [name for name in ("hosts", "hostfile", "host_discovery_script") if name in words]
    if not ways:
        for name in ("blacklist_cooldown_range", "reset_limit", "remote_shell", "ssh_port", "ssh_identity_file"):
            if name in words:
                raise UsageError(
                    f"{words[name].where} is for hosts that -H, --hostfile or --host-discovery-script name: give one of"
                    f" these, or leave {words[name].where} out"
                )
        return None
    if len(ways) > 1:
        raise UsageError(
            f"{words[ways[0]].where} and {words[ways[1]].where} both name the hosts: leave one of them out"
        )
    where = words[ways[0]].where
    for name in ("rendezvous", "endpoint"):
        other = words[name].where if name in words else ""
        if other.startswith("-") and not where.startswith("-"):
            return None  # a flag before a variable
        if other and other.startswith("-") == where.startswith("-"):
            raise UsageError(
                f"{where} makes this the launcher that serves the job, but {other} names another server: leave one of them"
                f" out (with {other}, start the same line on every host)"
            )
    slots = count(words["slots_per_host"]) if "slots_per_host" in words else 1
    return HostsAsked(
        shell=find_shell(
            _text(words, "remote_shell"), _text(words, "ssh_port"), _text(words, "ssh_identity_file"), environ
        ),
        fixed=_fixed(words, slots),
        script=_text(words, "host_discovery_script"),
        slots=slots,
        cooldown=_cooldown(words),
        reset_limit=count(words["reset_limit"], least=0) if "reset_limit" in words else None,
        interfaces=_text(words, "network_interface"),
    )


def _fixed(words: Words, slots: int) -> tuple[Host, ...]:
    hosts: tuple[Host, ...] = ()
    if "hosts" in words:
        hosts, where = parse_hosts(words["hosts"].value, slots), words["hosts"].where
    elif "hostfile" in words:
        name, where = words["hostfile"]
        try:
            hosts = parse_hostfile(Path(name).read_text(errors="replace"), slots)
        except OSError as error:
            raise UsageError(f"{where} is {name!r}, which cannot be read: {error.strerror}. Check the path") from None
    else:
        return ()
    if not hosts:
        raise UsageError(f"{where} names no host: give at least one, as NAME:SLOTS")
    return hosts


def _cooldown(words: Words) -> Cooldown | None:
    if "blacklist_cooldown_range" not in words:
        return None
    value, where = words["blacklist_cooldown_range"]
    lowest, highest = _COOLDOWN_LIMITS
    try:
        least, most = map(float, value.split())
    except ValueError:
        least = most = 0.0
    if not lowest <= least <= most <= highest:
        raise UsageError(
            f"{where} is {value!r}: give the least and the most seconds, from {lowest:g} to {highest:g}, such as 10 300"
        )
    return Cooldown(least, most)


def _text(words: Words, name: str) -> str:
    return words[name].value if name in words else ""
