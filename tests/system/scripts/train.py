"""A small training job that proves what was trained on: its ledger, its losses, its state.

The ledger is a parameter that accumulates one-hot sample ids through the optimizer itself: after n epochs each entry is -n
if, and only if, each sample of each epoch was applied exactly once.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import time
from typing import Any

import torch
from journal import Journal

import elastic_launch as elastic


class Model(torch.nn.Module):
    def __init__(self, samples: int, features: int, dtype: torch.dtype, norm: str) -> None:
        super().__init__()
        self.ledger = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        layers: list[torch.nn.Module] = [torch.nn.Linear(features, 32, dtype=dtype)]
        if norm == "batch":
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
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--open-ended", action="store_true", help="train until the test says so, then to the epoch's end"
    )
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--batch-per-worker", type=int, default=None)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--norm", default="")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes at least")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--evaluation-pause", type=float, default=0.0, help="seconds for each batch")
    parser.add_argument("--linger", default="", help="LOCAL_RANK:SECONDS between the last epoch and the script's end")
    parser.add_argument("--raise-at", default="", help="STEP:LOCAL_RANK or STEP:all, in the first life only")
    parser.add_argument("--exit-at", default="", help="STEP:LOCAL_RANK:CODE")
    parser.add_argument("--starve-at", default="", help="STEP:LOCAL_RANK: run out of memory there, once")
    parser.add_argument(
        "--stillborn", type=int, default=-1, help="this local rank crashes before it joins, in later lives"
    )
    parser.add_argument("--poison", type=int, default=None, help="a sample that crashes whoever gets it")
    parser.add_argument("--hold-gil-at", type=int, default=0, help="step at which local rank 0 holds the GIL")
    parser.add_argument("--hold-gil-for", type=float, default=0.0)
    parser.add_argument("--checkpoint", default=None)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--stop-at", type=int, default=0)
    parser.add_argument("--odd-local-rank", type=int, default=-1, help="this one builds another model")
    return parser.parse_args()


def disturb(options: argparse.Namespace, journal: Journal, step: int) -> None:
    """What the test wants to go wrong in front of this step."""
    me = journal.local_rank
    if options.raise_at and journal.first_life:
        at, _, who = options.raise_at.partition(":")
        if step == int(at) and who in ("all", str(me)):
            raise ValueError("the script's own mistake")
    if options.exit_at:
        at, who, code = options.exit_at.split(":")
        if step == int(at) and int(who) == me:
            sys.exit(int(code))
    if options.starve_at == f"{step}:{me}" and journal.once("starved"):
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
        torch.zeros(1 << 32)
    if options.hold_gil_at == step and me == 0 and journal.once("held"):
        journal("holding")
        ctypes.PyDLL(None).usleep(int(options.hold_gil_for * 1e6))  # PyDLL: called without letting go of the GIL


def weights(model: Model) -> float:
    """One number that every parameter has a part in."""
    return sum(float(p.detach().double().abs().sum()) for p in model.net.parameters())


def main() -> None:
    options = parse()
    journal = Journal(options.journal)
    if options.stillborn == journal.local_rank and not journal.first_life:
        sys.exit(5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    model = Model(options.samples, 8, dtype, options.norm)
    if options.odd_local_rank == journal.local_rank:
        model.net.append(torch.nn.Linear(1, 1, dtype=dtype))
    ledger = torch.optim.SGD([model.ledger], lr=1.0)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    optimizer = kind(model.net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 30)
    data = Samples(options.samples, 8, dtype, options.poison)
    job = elastic.join(
        model=model,
        optimizer=[ledger, optimizer],
        scheduler=scheduler,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
    )
    seen = job.register("seen", {"epochs": 0})
    batch = {"batch_per_worker": options.batch_per_worker} if options.batch_per_worker else {}
    batch = batch or {"global_batch": options.global_batch}
    loader = job.loader(data, seed=3, num_workers=options.num_workers, **batch)
    job.on_change(lambda change: journal("change", **vars(change)))
    journal.hold("joining")
    journal("ready", local_rank=journal.local_rank)

    for _ in job.epochs(10**9 if options.open_ended else options.epochs):
        journal.hold("epoch start")
        for ids, x, y in loader:
            began = time.monotonic()
            step = job.global_step + 1
            disturb(options, journal, step)
            with job.step():
                total = loader.sampler.step_size()
                entry, output = job.model(ids, x)
                loss = torch.nn.functional.mse_loss(output, y)
                journal.hold("step")
                ledger.zero_grad()
                optimizer.zero_grad()
                (loss + entry * total).backward()
                if options.pause:
                    time.sleep(max(0.0, began + options.pause - time.monotonic()))
                job.log(loss=loss)
                ledger.step()
                optimizer.step()
            if job.global_step != step:
                journal("redo", step=step)
                continue
            scheduler.step()
            journal(
                "step",
                step=step,
                loss=job.metrics["loss"],
                rank=job.rank,
                generation=job.generation,
                epoch=job.epoch,
                world_size=job.world_size,
            )
            if options.stop_at and job.global_step >= options.stop_at and job.rank == 0:
                job.stop()
        if job.stopped:
            break
        seen["epochs"] += 1
        journal("epoch", epoch=job.epoch, weights=weights(model))
        journal.hold("epoch end")
        if options.evaluate:

            def means(module: torch.nn.Module, batch: Any) -> dict[str, Any]:
                time.sleep(options.evaluation_pause)
                journal.hold("evaluation")
                return {"loss": torch.nn.functional.mse_loss(module(batch[0], batch[1])[1], batch[2])}

            journal("evaluating", epoch=job.epoch, rank=job.rank)
            result = job.evaluate(data, means, batch_size=16)
            journal("evaluated", epoch=job.epoch, rank=job.rank, world_size=job.world_size, **result)
        if options.open_ended and journal.finish_wanted():
            job.stop()
    if options.linger:
        who, seconds = options.linger.split(":")
        if int(who) == journal.local_rank:
            journal("lingering")
            time.sleep(float(seconds))
    journal(
        "end",
        counts=sorted(set(model.ledger.detach().round(decimals=6).tolist())),
        steps=job.global_step,
        samples=job.samples,
        seen=seen["epochs"],
        epochs=job.epoch + (1 if options.open_ended else 0),
        lr=optimizer.param_groups[0]["lr"],
        weights=weights(model),
    )


main()
