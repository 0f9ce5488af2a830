"""Which hosts there are, and which of them may be used: judged from the list, and from how agents have ended there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .blacklist import Blacklist, Cooldown
from .listing import Host

_TRY_AGAIN = 1.0, 8.0  # seconds between two attempts to reach a host: the first ones, the later ones


class Roster:
    """Times are those of one clock, in seconds. Methods that judge return what is to be said about it.

    A host that failed is judged at the next list: one that is not in it any more has left, which is no failure.
    """

    def __init__(self, cooldown: Cooldown | None, chance: Callable[[], float], start_limit: float) -> None:
        """`start_limit` is how long a host may take until its first agent has reached the server."""
        self.listed: tuple[Host, ...] = ()
        self._blacklist = Blacklist(cooldown, chance)
        self._start_limit = start_limit
        self._first_try: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._try_at: dict[str, float] = {}
        self._suspects: dict[str, str] = {}
        self._left: set[str] = set()

    def take_list(self, hosts: Sequence[Host], now: float) -> list[str]:
        self.listed = tuple(hosts)
        names = {host.name for host in hosts}
        for gone in [name for name in self._first_try if name not in names]:
            self._forget_tries(gone)
        self._left &= names
        said = []
        for name, why in self._suspects.items():
            if name in names:
                said.append(self._bar(name, why, now))
        self._suspects.clear()
        return said

    def starting(self, name: str, now: float) -> None:
        self._first_try.setdefault(name, now)

    def is_starting(self, name: str) -> bool:
        """Whether no agent has reached the server from there since the host was last started on."""
        return name in self._first_try

    def joined(self, name: str) -> None:
        """Its agent has reached the server."""
        self._forget_tries(name)

    def is_late(self, name: str, now: float) -> bool:
        """Whether its agent should have reached the server by now."""
        return now > self._first_try.get(name, math.inf) + self._start_limit

    def left(self, name: str) -> None:
        """Its agent has ended in order without having been asked to: the host is used again when it was off the list."""
        self._forget_tries(name)
        self._left.add(name)

    def failed(self, name: str, why: str, now: float, unreached: bool) -> None:
        """Its agent has ended otherwise. `unreached`: the host itself was not reached, which is tried for a while."""
        tries = self._tries.get(name, 0)
        pause = min(_TRY_AGAIN[0] * 2**tries, _TRY_AGAIN[1])
        if unreached and self.is_starting(name) and not self.is_late(name, now + pause):
            self._tries[name] = tries + 1
            self._try_at[name] = now + pause
        else:
            self._forget_tries(name)
            self._suspects[name] = why

    def barred(self, now: float) -> set[str]:
        """The listed hosts that may not be used now."""
        waiting = {name for name, at in self._try_at.items() if now < at}
        blacklisted = {host.name for host in self.listed if self._blacklist.holds(host.name, now)}
        return waiting | blacklisted | self._left | set(self._suspects)

    def lost_for_good(self) -> set[str]:
        """The listed hosts that are not used again as long as they stay listed."""
        return self._left | {host.name for host in self.listed if self._blacklist.holds_for_good(host.name)}

    def _bar(self, name: str, why: str, now: float) -> str:
        delay = self._blacklist.add(name, now)
        if delay == math.inf:
            return f"host {name} has failed and is not used again (--blacklist-cooldown-range lets it come back): {why}"
        return f"host {name} has failed and is not used for {delay:.1f} s: {why}"

    def _forget_tries(self, name: str) -> None:
        self._first_try.pop(name, None)
        self._tries.pop(name, None)
        self._try_at.pop(name, None)
