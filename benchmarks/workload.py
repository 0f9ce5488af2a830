"""The training script under test: as a user would write it, with notes of when each step began and was committed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.timeline import Event, Timeline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeline", type=Path, required=True)
    parser.add_argument("--replacement-wait", type=float, default=0.0)
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    timeline = Timeline(options.timeline)
    timeline.note(Event.STARTED)
    if (options.timeline / "running").exists():
        time.sleep(options.replacement_wait)

    import torch

    import elastic_launch as elastic
    from benchmarks.model import Samples, as_it_is, mlp, optimizer_for

    timeline.note(Event.IMPORTED)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = mlp(options.layers)
    optimizer = optimizer_for(model)
    job = elastic.join(model=model, optimizer=optimizer)
    data = Samples(options.layers[0], options.layers[-1], options.samples)
    loader = job.loader(data, global_batch=options.global_batch, collate_fn=as_it_is)
    job.on_change(timeline.change)
    timeline.note(Event.READY)

    for _ in job.epochs(1_000_000):
        for x, y in loader:
            step = job.global_step + 1
            timeline.note(Event.BEGAN, step, job.generation, job.rank, job.world_size)
            with job.step():
                loss = torch.nn.functional.cross_entropy(job.model(x), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if job.global_step == step:
                timeline.note(Event.COMMITTED, step, job.generation, job.rank, job.world_size)


if __name__ == "__main__":
    main()
