"""The members of an etcd cluster as one thing to ask: the next one is asked when one does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ....errors import UsageError
from ..store import StoreUnavailable
from .address import EtcdAddress
from .answers import EtcdError, Meaning
from .api import rpc
from .member import EtcdMember, Metadata, tls_credentials

ATTEMPT_SECONDS = 1.0  # for one member's answer, and for a connection to it
CALL_SECONDS = 4.0  # for a call in all: longer than an election
PAUSE_SECONDS = 0.05  # when no member answers, before the first is asked again

# A member without a leader says so, instead of waiting for one.
_WITH_LEADER: Metadata = (("hasleader", "true"),)

T = TypeVar("T")
Attempt = Callable[[EtcdMember, float, Metadata], Awaitable[T]]


class EtcdCluster:
    """Keeps to the member that answered last."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._credentials = tls_credentials(address)
        self._members: dict[int, EtcdMember] = {}
        self._current = 0
        self._login = _Login(address)
        self._is_closed = False

    async def ask(self, what: str, attempt: Attempt[T], *, again: bool) -> T:
        """`attempt`'s result at the first member that gives one; it gets the member, seconds, and the call's metadata.

        `again` says that it may be made again when its outcome is not known, as calls may that change nothing.
        StoreUnavailable if nobody answers or the outcome is not known, UsageError if etcd refuses, EtcdError for what
        is up to the caller: a lease that is over, a revision that is compacted.
        """
        left = _TimeLeft(CALL_SECONDS)
        failures: dict[str, str] = {}
        logins = 0
        while True:
            member = self.current()
            was_sent = False
            try:
                await member.connect(left.seconds(ATTEMPT_SECONDS))
                token = await self._login.token(member, left)
                was_sent = True
                return await attempt(member, left.seconds(ATTEMPT_SECONDS), _WITH_LEADER + token)
            except EtcdError as error:
                if error.meaning in (Meaning.LEASE_OVER, Meaning.COMPACTED):
                    raise
                if error.meaning is Meaning.REFUSED:
                    raise UsageError(
                        f"etcd at {member.endpoint} refuses to {what}: {error}. Check the user's roles in etcd"
                    ) from None
                if error.meaning is Meaning.TOKEN_OVER and not self._address.user:
                    raise UsageError(
                        f"etcd at {member.endpoint} wants a user and a password: etcd://USER@HOST:PORT ({error})"
                    ) from None
                if error.meaning is Meaning.TOKEN_OVER and logins < 2:
                    logins += 1
                    self._login.forget()
                    continue
                self.pass_over(member)
                failures[member.endpoint] = str(error)
                if self._is_closed:
                    raise StoreUnavailable(f"cannot {what}: the store is closed") from None
                if error.meaning is Meaning.UNKNOWN and was_sent and not again:
                    raise StoreUnavailable(f"whether etcd did {what} is not known: {member.endpoint} {error}") from None
                if error.meaning in (Meaning.FULL, Meaning.TOKEN_OVER) or left.is_over():
                    raise StoreUnavailable(f"cannot {what}: {_told(failures)}") from None
            if len(failures) == len(self._address.endpoints):
                await asyncio.sleep(PAUSE_SECONDS)

    def current(self) -> EtcdMember:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if self._current not in self._members:
            endpoint = self._address.endpoints[self._current]
            self._members[self._current] = EtcdMember(endpoint, self._credentials)
        return self._members[self._current]

    def pass_over(self, member: EtcdMember) -> None:
        """The next calls go to another member, if `member` still is the current one."""
        if self._members.get(self._current) is member:
            self._current = (self._current + 1) % len(self._address.endpoints)

    async def stream_metadata(self, member: EtcdMember) -> Metadata:
        """What a stream is opened with. EtcdError if a login that it needs fails."""
        return _WITH_LEADER + await self._login.token(member, _TimeLeft(ATTEMPT_SECONDS))

    def forget_login(self) -> None:
        self._login.forget()

    async def close(self) -> None:
        self._is_closed = True
        members, self._members = [*self._members.values()], {}
        for member in members:
            await member.close()


class _Login:
    """User and password exchanged for a token, once for all calls, as long as etcd accepts it."""

    def __init__(self, address: EtcdAddress) -> None:
        self._user, self._password = address.user, address.password
        self._token: Metadata | None = None if address.user else ()
        self._asking = asyncio.Lock()

    async def token(self, member: EtcdMember, left: _TimeLeft) -> Metadata:
        if self._token is not None:
            return self._token
        async with self._asking:
            if self._token is None:
                self._token = await self._authenticate(member, left.seconds(ATTEMPT_SECONDS))
            return self._token

    def forget(self) -> None:
        if self._user:
            self._token = None

    async def _authenticate(self, member: EtcdMember, seconds: float) -> Metadata:
        request = rpc.AuthenticateRequest(name=self._user, password=self._password)
        try:
            response = await member.call(member.auth.Authenticate, request, seconds, _WITH_LEADER)
        except EtcdError as error:
            if "authentication is not enabled" in str(error):
                return ()
            raise
        return (("token", response.token),)


class _TimeLeft:
    def __init__(self, seconds: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._ends = self._now() + seconds

    def is_over(self) -> bool:
        return self._now() >= self._ends

    def seconds(self, at_most: float) -> float:
        return max(0.01, min(at_most, self._ends - self._now()))


def _told(failures: dict[str, str]) -> Any:
    return "; ".join(f"{endpoint}: {reason}" for endpoint, reason in failures.items())
