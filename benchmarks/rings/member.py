"""A process of the benchmark: forms rings and times what is done over them, on command."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.model import mlp, optimizer_for
from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.trainer.pytorch.ring import undertaker
from elastic_launch.trainer.pytorch.ring.ring import TorchRing
from elastic_launch.trainer.ring.fusing import sum_arrays
from elastic_launch.trainer.ring.ring import RingOptions

JOB, SECRET = "rings", "of the benchmark"
LAYERS = (784, 1024, 1024, 640, 10)
BATCH = 32


class Member:
    """One member's ring at a time. Times are in seconds."""

    def __init__(self, meeting: str, rank: int, size: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self._size = size
        self._ring: TorchRing | None = None
        self._ddp: DistributedDataParallel | None = None
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = mlp(LAYERS)
        self._optimizer = optimizer_for(self._model)

    @property
    def ring(self) -> TorchRing:
        assert self._ring is not None
        return self._ring

    def form(self, backend: str, generation: int) -> float:
        """The time from the start to the end of the first operation."""
        began = time.perf_counter()
        client = MeetingClient(self._meeting, JOB, generation, SECRET)
        self._ring = TorchRing(generation, self._rank, self._size, RingOptions(backend=backend), client)
        self._ring.form()
        self._ring.reduce(torch.zeros(1))
        return time.perf_counter() - began

    def close(self) -> None:
        self._ddp = None
        self.ring.close()
        undertaker.wait_until_done(10.0)

    def allreduce(self, nbytes: int, repeats: int) -> list[float]:
        """As torch does it."""
        tensor = torch.zeros(nbytes // 4)
        return _timed(repeats, lambda: self.ring.reduce(tensor))

    def allreduce_without_torch(self, nbytes: int, repeats: int) -> list[float]:
        """As TensorFlow's side does it, on the caller's own thread."""
        array = np.zeros(nbytes // 4, np.float32)
        ring = self.ring.group.cpu.ring
        return _timed(repeats, lambda: ring.allreduce(array))

    def gradients(self, count: int, nbytes: int, fused: bool, repeats: int) -> list[float]:
        """Many small arrays, in place: packed into buckets, or as they are, all of them started before one is waited for."""
        arrays = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
        ring = self.ring.group.cpu.ring

        def one_by_one() -> None:
            for work in [ring.start_allreduce(array) for array in arrays]:
                work.wait()

        return _timed(repeats, (lambda: sum_arrays(ring, arrays, out=arrays)) if fused else one_by_one)

    def vote(self, repeats: int) -> list[float]:
        ballot = np.zeros(39)
        return _timed(repeats, lambda: self.ring.sum_for_vote(ballot))

    def train(self, steps: int) -> list[float]:
        """Steps of a small MLP, whose buckets are reduced while the rest of backward runs."""
        if self._ddp is None:
            self._ddp = DistributedDataParallel(self._model, init_sync=False, gradient_as_bucket_view=True)
            self._ddp.register_comm_hook(self.ring, _reduce)
        ddp, optimizer = self._ddp, self._optimizer
        data = torch.randn(BATCH, LAYERS[0])

        def step() -> None:
            optimizer.zero_grad()
            ddp(data).square().mean().backward()
            optimizer.step()

        return _timed(steps, step)


def _reduce(ring: TorchRing, bucket: Any) -> Any:
    return ring.start_sum(bucket.buffer())


_reduce.__annotations__ = {}  # DDP compares them with classes, and these are strings


def _timed(repeats: int, call: Callable[[], object]) -> list[float]:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def serve(pipe: Connection, meeting: str, rank: int, size: int) -> None:
    member = Member(meeting, rank, size)
    pipe.send(None)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(member, name)(*arguments))
