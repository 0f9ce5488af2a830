"""Training by a script that knows nothing of this package: DDP, and a checkpoint in memory-backed storage after each step."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.timeline import Event, Timeline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeline", type=Path, required=True)
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    timeline = Timeline(options.timeline)
    timeline.note(Event.STARTED)

    import torch
    import torch.distributed as dist

    from benchmarks.model import Samples, as_it_is, mlp, optimizer_for

    timeline.note(Event.IMPORTED)
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
    torch.manual_seed(0)
    module = mlp(options.layers)
    optimizer = optimizer_for(module)
    checkpoint = options.timeline / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state: dict[str, Any] = torch.load(checkpoint)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = torch.nn.parallel.DistributedDataParallel(module)
    data = Samples(options.layers[0], options.layers[-1], options.samples)
    sampler: Any = torch.utils.data.DistributedSampler(data, world_size, rank)
    loader: Any = torch.utils.data.DataLoader(
        data, batch_size=options.global_batch // world_size, sampler=sampler, collate_fn=as_it_is
    )
    timeline.note(Event.READY)
    for x, y in loader:
        step += 1
        timeline.note(Event.BEGAN, step, life, rank, world_size)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0:
            partial = checkpoint.with_suffix(".partial")
            torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
            partial.rename(checkpoint)
        timeline.note(Event.COMMITTED, step, life, rank, world_size)


if __name__ == "__main__":
    main()
