"""What a ring's members and its meeting point say to each other: frames of msgpack, one reply for each request.

A connection carries one request at a time. Its first is `Enter`, which binds it to one generation of one job; all keys
that follow belong to that generation alone, so two generations can never see each other's addresses.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_FRAME = 64 * 1024 * 1024  # bytes
MAX_FIRST_FRAME = 4096  # bytes; of a peer that has not shown the secret yet
MAX_KEYS = 100_000  # in one generation
PREFIX = 4  # bytes of a frame's length

Key = Annotated[str, msgspec.Meta(max_length=1024)]
Keys = Annotated[list[Key], msgspec.Meta(max_length=10_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class Request(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """Base of all requests; on the wire a list that begins with the class's name in lower case."""


class Enter(Request, frozen=True):
    job: str
    generation: int
    secret: str


class Set(Request, frozen=True):
    key: Key
    value: bytes


class Get(Request, frozen=True):
    """Waits until all keys are there; the reply is the list of their values."""

    keys: Keys
    timeout: Seconds


class Wait(Request, frozen=True):
    """Waits until all keys are there."""

    keys: Keys
    timeout: Seconds


class Add(Request, frozen=True):
    key: Key
    amount: int


class Append(Request, frozen=True):
    key: Key
    value: bytes


class CompareSet(Request, frozen=True):
    key: Key
    expected: bytes
    desired: bytes


class Check(Request, frozen=True):
    keys: Keys


class Delete(Request, frozen=True):
    key: Key


class CountKeys(Request, frozen=True):
    pass


class Gather(Request, frozen=True):
    """Gives this rank's value and waits for those of all others."""

    name: Key
    rank: int
    world_size: int
    value: bytes
    timeout: Seconds


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    pass


class Value(Reply, frozen=True):
    value: bool | int | bytes | list[bytes] | None = None


class TimedOut(Reply, frozen=True):
    """What was still missing when the request's time was over: keys, or ranks of a gather."""

    missing: list[str | int]


class Denied(Reply, frozen=True):
    """The request cannot be served, whatever the time; the connection is closed if it was the first."""

    reason: str


AnyRequest = Enter | Set | Get | Wait | Add | Append | CompareSet | Check | Delete | CountKeys | Gather
AnyReply = Value | TimedOut | Denied

decode_request = msgspec.msgpack.Decoder(AnyRequest).decode
decode_reply = msgspec.msgpack.Decoder(AnyReply).decode
_encoder = msgspec.msgpack.Encoder()


def frame(message: Request | Reply) -> bytes:
    """The message as it goes over the wire. ValueError if it is longer than MAX_FRAME."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes in one message of the meeting point, limit {MAX_FRAME}")
    return len(body).to_bytes(PREFIX, "big") + body
