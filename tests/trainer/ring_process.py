"""A process that forms and uses rings on command, for tests of the ring by itself."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

JOB = "ring-test"
SECRET = "open sesame"


def serve(pipe: Connection, meeting: str, backend: str = "gloo") -> None:
    import psutil
    import torch
    import torch.distributed as dist

    from elastic_launch.rendezvous.meeting.client import MeetingClient
    from elastic_launch.trainer.pytorch.ring import undertaker
    from elastic_launch.trainer.pytorch.ring.ring import TorchRing
    from elastic_launch.trainer.ring.ring import RingOptions

    from . import torch_collectives

    torch.set_num_threads(1)
    ring: Any = None
    started: Any = None
    subgroup: Any = None

    def form(generation: int, rank: int, world_size: int) -> None:
        nonlocal ring
        client = MeetingClient(meeting, JOB, generation, SECRET)
        ring = TorchRing(generation, rank, world_size, RingOptions(operation_limit=60, backend=backend), client)
        ring.form()

    def total(size: int, value: float) -> float:
        tensor = torch.full((size,), value)
        dist.all_reduce(tensor)
        return float(tensor[-1])

    def abort_after(seconds: float) -> None:
        threading.Timer(seconds, ring.abort, ["the test said so"]).start()

    def start_forming(generation: int, rank: int, world_size: int) -> None:
        nonlocal ring
        client = MeetingClient(meeting, JOB, generation, SECRET)
        ring = TorchRing(generation, rank, world_size, RingOptions(operation_limit=60, backend=backend), client)
        ring.connect()

    def new_group(ranks: list[int]) -> None:
        nonlocal subgroup
        subgroup = dist.new_group(ranks)

    def subgroup_total() -> float:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=subgroup)
        return float(tensor)

    def footprint() -> tuple[int, int, int]:
        process = psutil.Process()
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    commands = {
        "form": form,
        "total": total,
        "abort": lambda: ring.abort("the test said so"),
        "abort_after": abort_after,
        "start_forming": start_forming,
        "finish_forming": lambda: ring.form(),
        "close": lambda: ring.close(),
        "gather": lambda data: ring.gather_bytes(data),
        "new_group": new_group,
        "subgroup_total": subgroup_total,
        "mismatches": torch_collectives.mismatches,
        "refusals": torch_collectives.refusals,
        "footprint": footprint,
        "stuck": undertaker.stuck,
        "start": lambda: started,
    }
    answer(pipe, commands)


def answer(pipe: Connection, commands: dict[str, Any]) -> None:
    """Do what comes through the pipe, for ever."""
    pipe.send(os.getpid())
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, commands[name](*arguments)))
        except Exception as error:
            traceback.print_exc()
            pipe.send((False, f"{type(error).__name__}: {error}"))


class RingProcess:
    """One member. `ask` starts a command, `answer` waits for its outcome, calling it does both."""

    def __init__(self, meeting: str, target: Any = serve, method: str = "spawn", **options: Any) -> None:
        context: Any = multiprocessing.get_context(method)
        self._pipe, other = context.Pipe()
        self.process = context.Process(target=target, args=(other, meeting), kwargs=options, daemon=True)
        self.process.start()
        other.close()

    def wait_until_ready(self) -> None:
        assert self._pipe.poll(60), "the process did not start"
        self._pipe.recv()

    def ask(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))

    def answer(self, limit: float = 30) -> Any:
        assert self._pipe.poll(limit), f"no answer for {limit} s"
        succeeded, value = self._pipe.recv()
        if not succeeded:
            raise RuntimeError(value)
        return value

    def __call__(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)
