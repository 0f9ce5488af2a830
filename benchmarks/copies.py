"""The state copy against a raw socket copy of the same bytes over loopback, in turns; a process at either end of each."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .settings import Settings

_SECRET = "of this benchmark"
_TENSORS = 8  # as many pieces as the model of the other measurements has parameters
_CHUNK = 4 << 20
_HOST = "127.0.0.1"


def measure(settings: Settings) -> list[dict[str, Any]]:
    """One entry for each trial and size: GB/s `raw` (one sender), `copy` (one source), `striped` (workers - 1 sources)."""
    context = multiprocessing.get_context("spawn")
    trials = []
    for megabytes in settings.copy_megabytes:
        nbytes = megabytes * 1_000_000 // _TENSORS * _TENSORS
        count = settings.workers - 1
        senders = [_Sender(context, nbytes) for _ in range(count)]
        receiver = _Receiver(nbytes)
        try:
            for trial in range(-1, settings.trials):
                rates = {
                    "raw": nbytes / receiver.take_raw([senders[0].raw()]) / 1e9,
                    "copy": nbytes / receiver.take([senders[0].serve()]) / 1e9,
                    "striped": nbytes / receiver.take([sender.serve() for sender in senders]) / 1e9,
                }
                if trial >= 0:  # the first one touches the memory
                    trials.append({"megabytes": megabytes, "sources": count, **rates})
        finally:
            for sender in senders:
                sender.end()
    return trials


class _Sender:
    """A process that holds the bytes and sends them in the way that it is told."""

    def __init__(self, context: Any, nbytes: int) -> None:
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_send_in_turns, args=(theirs, nbytes), daemon=True)
        self._process.start()

    def serve(self) -> str:
        return self._ask("copy")

    def raw(self) -> str:
        return self._ask("raw")

    def _ask(self, what: str) -> str:
        self._line.send(what)
        return str(self._line.recv())

    def end(self) -> None:
        self._line.send("end")
        self._process.join(10)


class _Receiver:
    """This process, with memory of its own for the bytes. Each method gives seconds, from connecting to the last byte."""

    def __init__(self, nbytes: int) -> None:
        self._image = _Image(nbytes)

    def take(self, addresses: list[str]) -> float:
        from elastic_launch.trainer.state.copy import CopyReceiver

        began = time.monotonic()
        receiver = CopyReceiver(addresses, _SECRET)
        receiver.meta()
        receiver.fetch(self._image.payload())
        taken = time.monotonic() - began
        receiver.close()
        return taken

    def take_raw(self, addresses: list[str]) -> float:
        host, _, port = addresses[0].rpartition(":")
        began = time.monotonic()
        with socket.create_connection((host, int(port))) as connection:
            for view in self._image.views():
                got = 0
                while got < len(view):
                    got += connection.recv_into(view[got : got + _CHUNK])
        return time.monotonic() - began


class _Image:
    """The bytes as the copy wants them, in some tensors' memory."""

    meta = b"nothing"
    layout = b"of this benchmark"[:16]

    def __init__(self, nbytes: int) -> None:
        import torch

        self._tensors = [torch.ones(nbytes // _TENSORS, dtype=torch.uint8) for _ in range(_TENSORS)]

    def views(self) -> list[memoryview]:
        return [tensor.numpy().data for tensor in self._tensors]

    def payload(self) -> Any:
        from elastic_launch.trainer.state.payload import Buffers

        return Buffers(self.views())


def _send_in_turns(line: Connection, nbytes: int) -> None:
    image = _Image(nbytes)
    ways: dict[str, Callable[[Connection, _Image], None]] = {"copy": _serve_copy, "raw": _send_raw}
    while (what := line.recv()) != "end":
        ways[what](line, image)


def _serve_copy(line: Connection, image: _Image) -> None:
    from elastic_launch.trainer.state.copy import CopySource

    source = CopySource(_HOST, _SECRET)
    line.send(source.address)
    source.serve(image, 1)
    source.close()


def _send_raw(line: Connection, image: _Image) -> None:
    with socket.create_server((_HOST, 0)) as listener:
        line.send(f"{_HOST}:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            for view in image.views():
                connection.sendall(view)
