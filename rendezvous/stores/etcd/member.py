"""One member of an etcd cluster: its channel, and calls with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import UsageError
from .address import EtcdAddress
from .answers import EtcdError, Meaning
from .api import grpc, rpc
from .stream import EtcdStream

Metadata = tuple[tuple[str, str], ...]

_CHANNEL_OPTIONS = (
    # A restarted etcd is found again at once; the third is the limit of one attempt, in spite of its name.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Connections that have gone silent are dropped. etcd closes those that ask more often than every 5 s.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    # Whether a call may be repeated is decided here; and no proxy stands between this and etcd.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
)


class EtcdMember:
    """Made inside of the event loop that uses it."""

    def __init__(self, endpoint: str, credentials: Any) -> None:
        self.endpoint = endpoint
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)
        self.auth = rpc.AuthStub(self._channel)
        self.kv = rpc.KVStub(self._channel)
        self.lease = rpc.LeaseStub(self._channel)
        self._watch = rpc.WatchStub(self._channel)

    async def connect(self, seconds: float) -> None:
        """Returns when connected, so that a call of which nothing was sent is never taken for one of unknown outcome.

        EtcdError with `ELSEWHERE` if that fails, or takes longer.
        """
        if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return
        try:
            with _told_when_closed():
                await asyncio.wait_for(self._settle(), seconds)
        except asyncio.TimeoutError:
            raise EtcdError(Meaning.ELSEWHERE, f"no connection within {seconds:.1f} s") from None
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            raise EtcdError(Meaning.ELSEWHERE, await self._why_not_connected())

    async def call(self, method: Any, request: Any, seconds: float, metadata: Metadata = ()) -> Any:
        """The response to one request. EtcdError if there is none within `seconds`, or another than success."""
        with _told_when_closed():
            call = method(request, timeout=seconds, metadata=metadata)
        try:
            code = await call.code()  # unlike the call itself, not cancelled when the channel is closed
            if code is grpc.StatusCode.OK:
                return await call
            raise EtcdError.of(code, await call.details())
        finally:
            call.cancel()

    def watch(self, metadata: Metadata) -> EtcdStream:
        with _told_when_closed():
            return EtcdStream(self._watch.Watch(metadata=metadata))

    def keep_alive(self, seconds: float, metadata: Metadata) -> EtcdStream:
        with _told_when_closed():
            return EtcdStream(self.lease.LeaseKeepAlive(timeout=seconds, metadata=metadata))

    async def close(self) -> None:
        await self._channel.close()

    async def _settle(self) -> None:
        settled = (
            grpc.ChannelConnectivity.READY,
            grpc.ChannelConnectivity.TRANSIENT_FAILURE,
            grpc.ChannelConnectivity.SHUTDOWN,
        )
        while (state := self._channel.get_state(try_to_connect=True)) not in settled:
            await self._channel.wait_for_state_change(state)

    async def _why_not_connected(self) -> str:
        """The reason is told only to calls: one that asks for nothing, answered by this process itself."""
        with _told_when_closed():
            call = self.kv.Range(rpc.RangeRequest(key=b"\0", serializable=True, keys_only=True), timeout=0.2)
        try:
            await call.code()
            return str(await call.details() or "not connected")
        finally:
            call.cancel()


@contextmanager
def _told_when_closed() -> Iterator[None]:
    try:
        yield
    except grpc.aio.UsageError:
        raise EtcdError(Meaning.ELSEWHERE, "the connection was closed") from None


def tls_credentials(address: EtcdAddress) -> Any:
    """None without TLS. UsageError if a file cannot be read."""
    if not address.tls:
        return None
    ca, key, cert = (_content(name) for name in (address.ca, address.key, address.cert))
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def _content(name: str) -> bytes | None:
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"the file {name!r} of the etcd address cannot be read: {error.strerror}. Check its path and mode"
        ) from None
