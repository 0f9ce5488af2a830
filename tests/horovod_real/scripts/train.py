"""An elastic training script as Horovod's documentation has it, with a journal: digits, and a commit after each step."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--journal", type=Path)
arguments.add_argument("--epochs", type=int, default=2)
arguments.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
arguments.add_argument(
    "--open-ended", action="store_true", help="until there is a note `finish` at the end of an epoch"
)
arguments.add_argument("--samples", type=int, default=1797)
options = arguments.parse_args()


def note(event: str, **fields: Any) -> None:
    place = {"pid": os.getpid(), "rank": hvd.rank(), "world_size": hvd.size(), "local_rank": hvd.local_rank()}
    entry = {"event": event, "time": time.time(), **place, **fields}
    with (options.journal / f"{os.getpid()}.jsonl").open("a") as journal:
        journal.write(json.dumps(entry) + "\n")


def digits() -> torch.utils.data.TensorDataset:
    """scikit-learn's table, without the time that its import takes."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    table = table[: options.samples]
    return torch.utils.data.TensorDataset(
        torch.tensor(table[:, :-1], dtype=torch.float32) / 16, torch.tensor(table[:, -1], dtype=torch.int64)
    )


data = digits()
hvd.init()
while (options.journal / "prepare").exists() and hvd.size() > 1:
    note("preparing")
    time.sleep(0.1)
torch.manual_seed(hvd.rank())  # different everywhere: what all have in the end came from rank 0
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)


@hvd.elastic.run
def train(state: Any) -> None:
    note("ring", step=state.step)
    while not state.finished:
        for index, (inputs, labels) in enumerate(loader):
            time.sleep(options.pause)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            sampler.record_batch(index, 32)
            state.step += 1
            note("step", step=state.step, loss=loss.item(), epoch=state.epoch)
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        wanted = (options.journal / "finish").exists() if options.open_ended else state.epoch >= options.epochs
        state.finished = hvd.broadcast_object(wanted)
        state.commit()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0, finished=False)
train(state)
inputs, labels = data.tensors
accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
note("end", step=state.step, accuracy=accuracy, weights=hashlib.sha256(weights).hexdigest())
