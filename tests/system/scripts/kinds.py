"""One job with models of several kinds, each with an optimizer of its own, trained side by side in the same steps."""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from typing import Any

import torch
from journal import Journal
from torch import nn

import elastic_launch as elastic


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, dtype=dtype)
        self.last = nn.Linear(16, 1, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.to(self.first.weight.dtype)).tanh())


class Uneven(Net):
    """Tied and frozen weights, and parameters that get no gradient at all or in every second step only."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(16, 16, dtype=torch.float64)
        self.tied = nn.Linear(16, 16, dtype=torch.float64)
        self.tied.weight = self.middle.weight
        self.frozen = nn.Linear(16, 16, dtype=torch.float64).requires_grad_(False)
        self.unused = nn.Linear(3, 3, dtype=torch.float64)
        self.sometimes = nn.Parameter(torch.ones(16, dtype=torch.float64))
        self.with_sometimes = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.tied(self.middle(self.first(x).tanh()).tanh())).tanh()
        return self.last(x * self.sometimes if self.with_sometimes else x)


def digest(module: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """The bits of every parameter, buffer and optimizer tensor; states in the parameters' order, not in that of their making."""
    states = [optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"]]
    tensors = [v for s in states for _, v in sorted(s.items()) if isinstance(v, torch.Tensor)]
    bits = hashlib.sha256()
    for tensor in [*module.state_dict().values(), *tensors]:
        bits.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--open-ended", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    journal = Journal(options.journal)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {
        "scaled": Net(),
        "uneven": Uneven(),
        "bfloat16": Net(torch.bfloat16),
        "compiled": torch.compile(Net(), backend="eager"),
    }
    optimizers: dict[str, torch.optim.Optimizer] = {
        "scaled": torch.optim.SGD(models["scaled"].parameters(), lr=0.01, momentum=0.9),
        "uneven": torch.optim.AdamW(models["uneven"].parameters(), lr=0.01),
        "bfloat16": torch.optim.Adam(models["bfloat16"].parameters(), lr=0.01),
        "compiled": torch.optim.SGD(models["compiled"].parameters(), lr=0.05),
    }
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
    job = elastic.join(model=models, optimizer=optimizers, scaler=scaler, find_unused_parameters=True)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(200, 8, generator=generator, dtype=torch.float64)
    loader = job.loader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin()), global_batch=32, seed=3)
    job.on_change(lambda change: journal("change", **vars(change)))
    skipped = job.register("skipped", [])

    for _ in job.epochs(10**9 if options.open_ended else options.epochs):
        for batch in loader:
            step = job.global_step + 1
            models["uneven"].with_sometimes = step % 2 == 0
            with job.step():
                for optimizer in optimizers.values():
                    optimizer.zero_grad()
                sums = dict.fromkeys(models, 0.0)
                for inputs, wanted in job.micro_batches(batch, 6):
                    for name in models:
                        output = job.models[name](inputs)
                        loss = nn.functional.mse_loss(output, wanted.to(output.dtype))
                        sums[name] += loss.item() * len(inputs)
                        if name == "scaled":
                            loss = scaler.scale(loss)
                            if step in (4, 40) and job.rank == 0:
                                loss = loss * math.inf
                        loss.backward()
                job.log(**{name: total / len(batch[0]) for name, total in sums.items()})
                time.sleep(options.pause)
                scaler.step(optimizers["scaled"])
                for name in ("uneven", "bfloat16", "compiled"):
                    optimizers[name].step()
            if job.global_step != step:
                journal("redo", step=step)
                continue
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < before:
                skipped.append(step)
            losses: dict[str, Any] = {name: job.metrics[name] for name in models}
            journal("step", step=step, generation=job.generation, world_size=job.world_size, rank=job.rank, loss=losses)
        if options.open_ended and journal.finish_wanted():
            job.stop()
    journal(
        "end",
        steps=job.global_step,
        scale=scaler.get_scale(),
        skipped=list(skipped),
        state={name: digest(models[name], optimizers[name]) for name in models},
    )


main()
