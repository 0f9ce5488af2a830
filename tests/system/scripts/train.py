"""A small training job that proves what was trained on: its ledger, its losses, its state.

The ledger is a parameter that accumulates one-hot sample ids through the optimizer itself: after n epochs each entry is -n
if, and only if, each sample of each epoch was applied exactly once. Everything is written to a journal, one file a process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elastic_launch as elastic
from elastic_launch.trainer import probe


class Journal:
    def __init__(self, folder: str) -> None:
        self._file = open(Path(folder) / f"{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115

    def __call__(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **fields}) + "\n")


class Model(torch.nn.Module):
    def __init__(self, samples: int, features: int, dtype: torch.dtype, norm: bool) -> None:
        super().__init__()
        self.ledger = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        layers: list[torch.nn.Module] = [torch.nn.Linear(features, 32, dtype=dtype)]
        if norm:
            layers.append(torch.nn.BatchNorm1d(32, dtype=dtype))
        self.net = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(32, 1, dtype=dtype))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.ledger[ids].mean(), self.net(x)


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int, features: int, dtype: torch.dtype, poison: int | None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, features, generator=generator, dtype=torch.float64).to(dtype)
        self.y = self.x.sum(1, keepdim=True).sin()
        self.poison = poison

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        if index == self.poison:
            os.kill(os.getpid(), signal.SIGSEGV)
        return index, self.x[index], self.y[index]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes at least")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--evaluation-pause", type=float, default=0.0)
    parser.add_argument("--die-at", default="", help="POINT:GENERATION:LOCAL_RANK[,...]: kill -9 oneself there")
    parser.add_argument("--raise-at", default="", help="STEP:LOCAL_RANK or STEP:all, in the first life only")
    parser.add_argument("--exit-at", default="", help="STEP:LOCAL_RANK:CODE")
    parser.add_argument("--poison", type=int, default=None, help="a sample that crashes whoever gets it")
    parser.add_argument("--hidden", type=int, default=0, help="another layer, so that the model does not fit")
    parser.add_argument("--hold-gil-at", type=int, default=0, help="step at which local rank 0 holds the GIL")
    parser.add_argument("--hold-gil-for", type=float, default=0.0)
    parser.add_argument("--checkpoint", default=None)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--stop-at", type=int, default=0)
    parser.add_argument("--odd-local-rank", type=int, default=-1, help="this one builds another model")
    return parser.parse_args()


def hold_the_gil(seconds: float) -> None:
    import ctypes

    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL: called without letting go of the GIL


def install_deaths(spec: str, local_rank: int) -> None:
    deaths = {(p, int(g)) for p, g, r in (d.split(":") for d in spec.split(",") if d) if int(r) == local_rank}

    def reached(point: str, generation: int) -> None:
        if (point, generation) in deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    probe.on_reach = reached


def main() -> None:
    options = parse()
    journal = Journal(options.journal)
    local_rank = int(os.environ.get("ELASTIC_LOCAL_RANK", "0"))
    install_deaths(options.die_at, local_rank)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    model = Model(options.samples, 8, dtype, options.norm)
    if options.odd_local_rank == local_rank:
        model.net.append(torch.nn.Linear(1, 1, dtype=dtype))
    ledger = torch.optim.SGD([model.ledger], lr=1.0)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    optimizer = kind(model.net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    data = Samples(options.samples, 8, dtype, options.poison)
    job = elastic.join(
        model=model,
        optimizer=[ledger, optimizer],
        scheduler=scheduler,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
    )
    seen = job.register("seen", {"epochs": 0})
    loader = job.loader(data, global_batch=options.global_batch, seed=3, num_workers=options.num_workers)
    job.on_change(lambda change: journal("change", **vars(change)))
    journal("ready", local_rank=local_rank)
    first_life = not any(Path(options.journal).glob("crashed-*"))

    for epoch in job.epochs(options.epochs):
        for ids, x, y in loader:
            began = time.monotonic()
            step = job.global_step + 1
            if options.raise_at and first_life:
                at, _, who = options.raise_at.partition(":")
                if step == int(at) and who in ("all", str(local_rank)):
                    Path(options.journal, f"crashed-{os.getpid()}").touch()
                    raise ValueError("the script's own mistake")
            if options.exit_at:
                at, who, code = options.exit_at.split(":")
                if step == int(at) and int(who) == local_rank:
                    sys.exit(int(code))
            if options.hold_gil_at == step and local_rank == 0 and job.world_size > 1:
                hold_the_gil(options.hold_gil_for)
            with job.step():
                total = loader.sampler.step_size()
                entry, output = job.model(ids, x)
                loss = torch.nn.functional.mse_loss(output, y)
                ledger.zero_grad()
                optimizer.zero_grad()
                (loss + entry * total).backward()
                if options.pause:
                    time.sleep(max(0.0, began + options.pause - time.monotonic()))
                job.log(loss=loss)
                ledger.step()
                optimizer.step()
            if job.global_step == step:
                scheduler.step()
                journal(
                    "step",
                    step=step,
                    loss=job.metrics.get("loss"),
                    rank=job.rank,
                    generation=job.generation,
                    epoch=epoch,
                    world_size=job.world_size,
                )
            else:
                journal("redo", step=step)
            if options.stop_at and job.global_step >= options.stop_at and job.rank == 0:
                job.stop()
        seen["epochs"] += 1
        if options.evaluate and not job.stopped:

            def means(module: torch.nn.Module, batch: Any) -> dict[str, Any]:
                time.sleep(options.evaluation_pause)
                return {"loss": torch.nn.functional.mse_loss(module(batch[0], batch[1])[1], batch[2])}

            result = job.evaluate(data, means, batch_size=16)
            journal("evaluated", epoch=epoch, rank=job.rank, **result)
    counts = sorted(set(model.ledger.detach().round(decimals=6).tolist()))
    journal(
        "end",
        counts=counts,
        steps=job.global_step,
        samples=job.samples,
        seen=seen["epochs"],
        lr=optimizer.param_groups[0]["lr"],
        weights=sum(float(p.detach().double().sum()) for p in model.net.parameters()),
    )


main()
