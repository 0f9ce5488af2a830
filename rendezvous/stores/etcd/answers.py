"""What etcd's errors say about the call that they answer: above all, whether it can have changed something."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .api import grpc


class Meaning(Enum):
    """Of an error, for the call that it answers."""

    ELSEWHERE = "nothing has changed; another member, or this one later, may answer"
    UNKNOWN = "the change may have been made, or may still be made"
    TOKEN_OVER = "nothing has changed; log in again"
    LEASE_OVER = "nothing has changed: the lease does not exist"
    COMPACTED = "the revision asked for is no longer kept"
    FULL = "nothing has changed: etcd's own limit on its size is reached"
    REFUSED = "nothing has changed, and asking again does not help"


# Sent before etcd proposes a change to its members, so the change was not made. Other errors of these codes come after it.
_BEFORE_PROPOSAL = ("no leader", "too many requests", "not capable")
_TOKEN_OVER = ("invalid auth token", "revision of auth store is old", "user name is empty")


class EtcdError(Exception):
    """An answer other than success, or none. Stays inside of the etcd store."""

    def __init__(self, meaning: Meaning, reason: str) -> None:
        super().__init__(reason)
        self.meaning = meaning

    @classmethod
    def of(cls, code: Any, details: str | None) -> EtcdError:
        """The error that a gRPC status (`grpc.StatusCode` and its details) stands for."""
        return cls(_meaning(code, details or ""), f"{details} ({code.name})" if details else code.name)


def _meaning(code: Any, details: str) -> Meaning:
    status = grpc.StatusCode
    if any(text in details for text in _TOKEN_OVER):
        return Meaning.TOKEN_OVER
    if code is status.NOT_FOUND and "lease not found" in details:
        return Meaning.LEASE_OVER
    if code is status.OUT_OF_RANGE and "compacted" in details:
        return Meaning.COMPACTED
    if "database space exceeded" in details:
        return Meaning.FULL
    if any(text in details for text in _BEFORE_PROPOSAL):
        return Meaning.ELSEWHERE
    if code in (
        status.FAILED_PRECONDITION,
        status.INVALID_ARGUMENT,
        status.OUT_OF_RANGE,
        status.PERMISSION_DENIED,
        status.UNAUTHENTICATED,
        status.UNIMPLEMENTED,
    ):
        return Meaning.REFUSED
    return Meaning.UNKNOWN
