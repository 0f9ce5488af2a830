"""NCCL: the group for CUDA tensors, beside the gloo group that carries the vote and small objects.

NCCL can abort, but an aborted operation may look successful. `settled` is what the vote waits for: every reduction of the
step has completed on the device, without an error, in a ring that was not aborted.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from ...ring.guard import Guard
from . import undertaker

_POLL = 50e-6  # seconds; a blocking synchronize could not be ended by an abort


def connect(store: Store, rank: int, size: int, guard: Guard, operation_timeout: timedelta) -> Any:
    """A `ProcessGroupNCCL` whose watchdog reports errors without ending the process."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = operation_timeout
    group = torch.distributed.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)

    def abort_beside() -> None:  # it may hang itself
        undertaker.start(f"abort-nccl-{guard.generation}", abort, group)

    guard.on_abort(abort_beside)
    return group


def abort(group: Any) -> None:
    """End the group's operations on the device. Never raises: it runs while something else has failed already."""
    try:
        group.abort()
    except Exception as error:
        print(f"elastic: aborting NCCL failed: {error}", flush=True)


def settled(works: list[Any], guard: Guard, device: torch.device) -> None:
    """Wait until `works` are done on `device`; raise `RingError` if one failed or the ring was aborted meanwhile."""
    if not works:
        return
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    for work in works:
        work.wait()  # makes the current stream wait; does not block the host
    done.record(torch.cuda.current_stream(device))
    with guard.waiting():
        while not done.query():
            guard.check()
            _check(works, guard)
            time.sleep(_POLL)
    guard.check()
    _check(works, guard)


def _check(works: list[Any], guard: Guard) -> None:
    for work in works:
        error = work.exception() if work.is_completed() else None
        if error is not None:
            guard.abort(str(error))
            raise guard.error()
