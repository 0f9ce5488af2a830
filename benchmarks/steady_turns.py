"""The script of the steady measurement: turns of the elastic loop and of a plain DDP loop, alternating in the same processes.

Both train the same model on the same samples with the same optimizer over gloo; the plain one as torch's documentation has
it, with a DistributedSampler and a DataLoader. A turn's time runs from one barrier to the last step's end on this rank.
Its CPU time, of all threads together, is less sensitive to what else the machine does.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import elastic_launch as elastic
from benchmarks.model import Samples, add_flags, as_it_is, mlp, optimizer_for

WARM_UP = 3  # turns of each kind that are not counted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--block", type=int, required=True)
    add_flags(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = mlp(options.layers)
    plain_model = copy.deepcopy(model)
    optimizer, plain_optimizer = optimizer_for(model), optimizer_for(plain_model)
    data = Samples(options.layers[0], options.layers[-1], options.samples)
    job = elastic.join(model=model, optimizer=optimizer)
    loader = job.loader(data, global_batch=options.global_batch, collate_fn=as_it_is)
    turns: list[dict[str, Any]] = []
    plain: PlainLoop | None = None

    def elastic_turns() -> Generator[None, None, None]:
        """One step each."""
        for _ in job.epochs(1):
            for x, y in loader:
                with job.step():
                    loss = torch.nn.functional.cross_entropy(job.model(x), y)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                yield

    steps = elastic_turns()
    next(steps)  # from here on there is a ring
    plain = PlainLoop(plain_model, plain_optimizer, data, options.global_batch, job.rank, job.world_size)
    kinds: dict[str, Callable[[], Any]] = {"elastic": lambda: next(steps), "plain": plain.step}
    for pair in range(-WARM_UP, options.pairs):
        order = ["elastic", "plain"] if pair % 2 == 0 else ["plain", "elastic"]
        taken = {}
        for kind in order:
            step = kinds[kind]
            step()  # the first one after the other kind finds cold caches
            dist.barrier(plain.group)
            began, used = time.monotonic_ns(), time.process_time_ns()
            for _ in range(options.block):
                step()
            taken[kind] = (time.monotonic_ns() - began) / options.block / 1e6
            taken[f"{kind}_cpu"] = (time.process_time_ns() - used) / options.block / 1e6
        if pair >= 0:
            turns.append(taken)
    if job.rank == 0:
        options.out.write_text(json.dumps(turns))
    dist.barrier(plain.group)
    steps.close()


class PlainLoop:
    """What a user of DDP writes, one step at a time."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Samples,
        global_batch: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.group = dist.new_group(backend="gloo")
        self._model = torch.nn.parallel.DistributedDataParallel(model, process_group=self.group)
        self._optimizer = optimizer
        sampler: Any = torch.utils.data.DistributedSampler(data, world_size, rank)
        self._loader: Any = torch.utils.data.DataLoader(
            data, batch_size=global_batch // world_size, sampler=sampler, collate_fn=as_it_is
        )
        self._batches = iter(self._loader)

    def step(self) -> None:
        x, y = next(self._batches)
        loss = torch.nn.functional.cross_entropy(self._model(x), y)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


if __name__ == "__main__":
    main()
