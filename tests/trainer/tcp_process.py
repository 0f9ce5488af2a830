"""A process that forms and uses rings of sockets on command. It has numpy and no framework, and so starts at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from elastic_launch.rendezvous.meeting.client import MeetingClient
from elastic_launch.trainer.ring.tcp.buffers import Bfloat16
from elastic_launch.trainer.ring.tcp.ring import TcpRing

from .ring_process import JOB, SECRET, RingProcess, answer

Array = npt.NDArray[Any]
HALVES = ("float16", "bfloat16")


def numbers(seed: int, rank: int, size: int, dtype: str) -> Array:
    """What that rank gives. Whole numbers, small enough for their sums to be exact, but for the seeds below 0."""
    source = np.random.default_rng([abs(seed), rank, size])
    if seed < 0:
        found: Array = source.standard_normal(size)
    else:
        found = source.integers(0, 9, size)
    if dtype == "bool":
        return found > 4
    return to_bits(found.astype(np.float32)) if dtype == "bfloat16" else found.astype(dtype)


def to_bits(values: Array) -> Array:
    """The upper halves of float32 numbers: these numbers as bfloat16, if they are whole and small."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bits(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def serve(pipe: Connection, meeting: str) -> None:
    ring: Any = None
    client: Any = None

    def form(generation: int, rank: int, size: int, limit: float = 20.0, operation_limit: float = 60.0) -> None:
        prepare(generation, rank, size, limit, operation_limit)
        ring.form(client)

    def prepare(generation: int, rank: int, size: int, limit: float = 20.0, operation_limit: float = 60.0) -> None:
        nonlocal ring, client
        close()
        client = MeetingClient(meeting, JOB, generation, SECRET)
        ring = TcpRing(
            f"g{generation}", rank, size, secret=SECRET, forming_limit=limit, operation_limit=operation_limit
        )
        ring.on_abort(client.abort)

    def close() -> None:
        nonlocal ring
        if ring is not None:
            ring.close()
            client.close()
            ring = None

    def allreduce(seed: int, size: int, dtype: str, operation: str, whole: bool = True) -> Any:
        """The result, or its digest. What was worked on is spoilt at once: it must have been sent by then."""
        array = numbers(seed, ring.rank, size, dtype)
        given = array.view(Bfloat16) if dtype == "bfloat16" else array
        ring.allreduce(given, operation)
        result = array.copy()
        array.view(np.uint8)[...] = 0xA5
        return result if whole else digest(result)

    def into_another(seed: int, size: int, dtype: str, operation: str) -> tuple[Array, bool]:
        """The result, and whether the source is as it was."""
        array = numbers(seed, ring.rank, size, dtype)
        before = array.copy()
        array.flags.writeable = False
        result = np.empty_like(array)
        ring.allreduce(array, operation, out=result)
        return result, bool((array == before).all())

    def reduce_scatter(seed: int, counts: list[int], dtype: str, operation: str) -> tuple[Array, bool]:
        array = numbers(seed, ring.rank, sum(counts), dtype)
        before = array.copy()
        result = np.empty(counts[ring.rank], array.dtype)
        if dtype == "bfloat16":
            ring.reduce_scatter(array.view(Bfloat16), result.view(Bfloat16), operation, counts)
        else:
            ring.reduce_scatter(array, result, operation, counts)
        return result, bool((array == before).all())

    def allgather(seed: int, counts: list[int], dtype: str, into: str) -> list[Array]:
        array = numbers(seed, ring.rank, counts[ring.rank], dtype)
        if into == "fresh":
            return [each.copy() for each in ring.allgather(array)]
        if into == "whole":
            whole = np.empty(sum(counts), dtype)
            ring.allgather(array, whole)
            return np.split(whole, ring.world_size)
        rooms = [np.empty(count, dtype) for count in counts]
        ring.allgather(array, rooms)
        return rooms

    def broadcast(seed: int, size: int, dtype: str, root: int) -> Array:
        array = numbers(seed, ring.rank, size, dtype)
        ring.broadcast(array, root)
        return array

    def several(count: int, size: int) -> list[float]:
        """Many that are started before the first one is waited for."""
        arrays = [np.full(size, float(index + ring.rank), np.float32) for index in range(count)]
        works = [ring.start_allreduce(array) for array in arrays]
        for work in works:
            work.wait(30)
        return [float(array[-1]) for array in arrays]

    def patience(seconds: float) -> str:
        """What comes of a wait that is too short, and whether the work goes on after it."""
        work = ring.start_barrier()
        try:
            work.wait(seconds)
        except TimeoutError as error:
            return f"{error}; {work.done()}"
        return "in time"

    def reduce_for_ever(size: int) -> None:
        array = np.ones(size, np.float32)
        while True:
            ring.allreduce(array)
            array[...] = 1.0

    def barrier_and_close() -> None:
        ring.barrier()
        ring.close()

    def finish_and_reduce() -> None:
        ring.form(client)
        reduce_for_ever(1000)

    def abort_after(seconds: float) -> None:
        """As an announcement would, on another thread than the one that waits."""
        threading.Timer(seconds, ring.abort, ["the test said so"]).start()

    def timed(name: str, *arguments: Any) -> tuple[str, float]:
        """The error of a command that must fail, and the time when it did."""
        try:
            commands[name](*arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}", time.monotonic()
        raise AssertionError(f"{name} has not failed")

    def footprint() -> tuple[int, int, int]:
        process = psutil.Process()
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    def fork() -> int:
        """A child that lives until it is killed, as a data loader's would."""
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(60)
        return child

    commands = {
        "form": form,
        "prepare": prepare,
        "barrier_and_close": barrier_and_close,
        "finish_and_reduce": finish_and_reduce,
        "finish_forming": lambda: ring.form(client),
        "close": close,
        "abort": lambda: ring.abort("the test said so"),
        "abort_after": abort_after,
        "allreduce": allreduce,
        "into_another": into_another,
        "reduce_scatter": reduce_scatter,
        "allgather": allgather,
        "broadcast": broadcast,
        "barrier": lambda: ring.barrier(),
        "gather_bytes": lambda data: ring.gather_bytes(data),
        "broadcast_bytes": lambda data, root: ring.broadcast_bytes(data, root),
        "gather_objects": lambda value: ring.gather_objects(value),
        "broadcast_object": lambda value, root: ring.broadcast_object(value, root),
        "several": several,
        "patience": patience,
        "reduce_for_ever": reduce_for_ever,
        "timed": timed,
        "footprint": footprint,
        "fork": fork,
        "modules": lambda: [name for name in ("torch", "tensorflow") if name in __import__("sys").modules],
    }
    answer(pipe, commands)


class TcpProcess(RingProcess):
    """One member, forked off a process that has imported all it needs."""

    def __init__(self, meeting: str) -> None:
        multiprocessing.set_forkserver_preload([__name__])
        super().__init__(meeting, serve, "forkserver")
