"""The two pickles of Horovod's protocol, without its classes: one is read and may hold plain values only, one is written."""

from __future__ import annotations

import base64
import binascii
import io
import pickle
import struct
from typing import Any, NamedTuple

from ...errors import RendezvousError

LONGEST = 64 * 1024  # bytes; a few interfaces' addresses and a key
_KEY = 32  # bytes
_ADDED = 2  # HostUpdateResult.added: whoever hears it takes part in the next broadcast of the state


class Notified(NamedTuple):
    """Where a process hears that a change is wanted, and the key that authenticates it."""

    port: int
    key: bytes


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only plain values may be in it")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it has a persistent id, and only plain values may be in it")


def read_addresses(body: bytes) -> Notified:
    """From the body of `PUT /worker_addresses/...`: in base64 ({interface: [(address, port)]}, key).

    RendezvousError for what is not that.
    """
    if len(body) > LONGEST:
        raise RendezvousError(f"a worker's addresses have {len(body)} bytes, more than {LONGEST}")
    try:
        said = _Plain(io.BytesIO(base64.b64decode(body, validate=True))).load()
        addresses, key = said
        port = next(port for found in addresses.values() for _, port in found)
    except (pickle.UnpicklingError, binascii.Error) as error:
        raise RendezvousError(f"a worker's addresses cannot be read: {error}") from None
    except Exception as error:  # a pickle may fail in any way
        raise RendezvousError(f"a worker's addresses are not as Horovod 0.28 sends them: {error!r}") from None
    if type(port) is not int or not 0 < port < 1 << 16 or type(key) is not bytes or len(key) != _KEY:
        raise RendezvousError("a worker's addresses are not as Horovod 0.28 sends them: no port, or no key")
    return Notified(port, key)


def hosts_updated(timestamp: float) -> bytes:
    """A `HostsUpdatedRequest`, which a process of Horovod's unpickles. Written by hand: the class is not here."""
    return b"".join(
        (
            pickle.PROTO + b"\x02",
            pickle.GLOBAL + b"horovod.runner.elastic.worker\nHostsUpdatedRequest\n",
            pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + pickle.MARK,
            _text("timestamp") + pickle.BINFLOAT + struct.pack(">d", timestamp),
            _text("res") + pickle.BININT1 + bytes([_ADDED]),
            pickle.SETITEMS + pickle.BUILD + pickle.STOP,
        )
    )


def _text(word: str) -> bytes:
    encoded = word.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded
