"""A training script as people write them for torchrun, in the shape of PyTorch's elastic ImageNet example: it knows nothing
of this package.

Each node keeps its own checkpoint, written by its local rank 0 after every epoch; at the start the newest of all nodes is
given to everybody. It writes a journal, and heeds files beside it: `finish` (end after this epoch), `crash-RANK`,
`exit-RANK` (its content is the code).
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PLACE = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


class Journal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / f"ddp-{os.getpid()}.jsonl"

    def write(self, event: str, **fields: object) -> None:
        place = {name: os.environ[name] for name in PLACE if name in os.environ}
        entry = {"event": event, "pid": os.getpid(), "time": time.time(), "arguments": sys.argv[1:], **place, **fields}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def heed(self) -> None:
        rank = os.environ["RANK"]
        note = self.folder / f"crash-{rank}"
        if note.exists():
            note.unlink()
            raise ValueError(f"rank {rank} has no luck")
        note = self.folder / f"exit-{rank}"
        if note.exists():
            code = int(note.read_text())
            note.unlink()
            sys.exit(code)


class State:
    """What a checkpoint holds."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.epoch = -1
        self.model = model
        self.optimizer = optimizer

    def capture(self) -> dict:
        return {"epoch": self.epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def apply(self, snapshot: dict) -> None:
        self.epoch = snapshot["epoch"]
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])

    def save(self, path: Path) -> None:
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        torch.save(self.capture(), beside)
        os.replace(beside, path)


def load_checkpoint(path: Path, state: State) -> None:
    """The newest of all nodes."""
    if path.exists():
        state.apply(torch.load(path))
    epochs = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(epochs, torch.tensor([state.epoch]))
    newest = max(range(len(epochs)), key=lambda rank: int(epochs[rank]))
    if int(epochs[newest]) >= 0:
        snapshots = [state.capture() if dist.get_rank() == newest else None]
        dist.broadcast_object_list(snapshots, src=newest)
        assert snapshots[0] is not None
        state.apply(snapshots[0])


def checksum(model: torch.nn.Module) -> float:
    return float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))


def train_epoch(
    ddp: torch.nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, journal: Journal, pause: float
) -> tuple[int, int]:
    """Samples, and the right ones among them, of this rank."""
    loss_of = torch.nn.CrossEntropyLoss()
    seen = right = 0
    for x, y in loader:
        journal.heed()
        optimizer.zero_grad()
        guess = ddp(x)
        loss_of(guess, y).backward()
        optimizer.step()
        seen += len(y)
        right += int((guess.argmax(1) == y).sum())
        time.sleep(pause)
    return seen, right


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="this node's file")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    journal = Journal(args.journal)
    journal.write("start")

    dist.init_process_group(backend="gloo", timeout=timedelta(seconds=60))
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    y = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    state = State(model, optimizer)
    checkpoint = args.checkpoint or args.journal / "checkpoint.pt"
    load_checkpoint(checkpoint, state)
    dataset = TensorDataset(x, y)
    sampler: DistributedSampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    journal.write("ready", epoch=state.epoch, weights=checksum(model), world_size=dist.get_world_size())

    for epoch in range(state.epoch + 1, args.epochs):
        sampler.set_epoch(epoch)
        seen, right = train_epoch(ddp, loader, optimizer, journal, args.pause)
        sums = torch.tensor([seen, right, int((args.journal / "finish").exists())])
        dist.all_reduce(sums)
        state.epoch = epoch
        accuracy = float(sums[1] / sums[0])
        journal.write(
            "epoch", epoch=epoch, seen=int(sums[0]), accuracy=accuracy, weights=checksum(model), rank=dist.get_rank()
        )
        if os.environ["LOCAL_RANK"] == "0":
            state.save(checkpoint)  # behind the journal, so that no checkpoint is of an epoch that the journal lacks
        if sums[2]:
            break
    # Under torchrun too, a process of torch 2.13 hangs now and then if it gives its group up while one of gloo's threads
    # still waits for the interpreter's lock, to let go of the last tensors.
    time.sleep(0.3)
    dist.destroy_process_group()
    journal.write("end", epoch=state.epoch, weights=checksum(model))


if __name__ == "__main__":
    main()
