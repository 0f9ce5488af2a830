"""Which of etcd's errors say that nothing has changed. The texts are those of etcd 3.4 and 3.5."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.stores.etcd.answers import EtcdError, Meaning
from elastic_launch.rendezvous.stores.etcd.api import grpc


@pytest.mark.parametrize(
    ("code", "details", "meaning"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", Meaning.ELSEWHERE),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Meaning.ELSEWHERE),
        ("UNAVAILABLE", "etcdserver: leader changed", Meaning.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out", Meaning.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", Meaning.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: server stopped", Meaning.UNKNOWN),
        ("UNAVAILABLE", "Socket closed", Meaning.UNKNOWN),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Meaning.UNKNOWN),
        ("CANCELLED", "", Meaning.UNKNOWN),
        ("INTERNAL", None, Meaning.UNKNOWN),
        ("UNKNOWN", "context canceled", Meaning.UNKNOWN),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Meaning.TOKEN_OVER),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Meaning.TOKEN_OVER),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Meaning.TOKEN_OVER),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Meaning.REFUSED),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Meaning.REFUSED),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Meaning.REFUSED),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", Meaning.REFUSED),
        ("NOT_FOUND", "etcdserver: requested lease not found", Meaning.LEASE_OVER),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Meaning.COMPACTED),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Meaning.FULL),
    ],
)
def test_an_error_is_understood(code: str, details: str | None, meaning: Meaning) -> None:
    error = EtcdError.of(grpc.StatusCode[code], details)
    assert error.meaning is meaning
    assert (details or code) in str(error)
