"""A script of Horovod's without its elastic mode: it knows its place once, and loads what it had when it starts again."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

arguments = argparse.ArgumentParser()
arguments.add_argument("--journal", type=Path)
arguments.add_argument("--steps", type=int, default=100)
options = arguments.parse_args()


def note(event: str, **fields: float) -> None:
    entry = {"event": event, "time": time.time(), "pid": os.getpid(), "rank": hvd.rank(), "world_size": hvd.size()}
    with (options.journal / f"{os.getpid()}.jsonl").open("a") as journal:
        journal.write(json.dumps({**entry, **fields}) + "\n")


hvd.init()
saved = options.journal / "saved"
step = int(saved.read_text()) if saved.exists() else 0
step = int(hvd.broadcast(torch.tensor(step), root_rank=0))
note("ring")
while step < options.steps:
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="ranks")
    step += 1
    note("step", step=step, total=total.item())
    if hvd.rank() == 0:
        beside = saved.with_suffix(".new")
        beside.write_text(str(step))
        beside.replace(saved)
    time.sleep(0.02)
