"""Does what cannot be trained elastically, and journals what it is told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from journal import Journal

import elastic_launch as elastic


class FullyShardedDataParallel(torch.nn.Module):
    """Named as the one that is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    options = parser.parse_args()
    journal = Journal(options.journal)
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def refused(what: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            journal("refused", what=what, kind=type(error).__name__, text=str(error))
        else:
            journal("refused", what=what, kind="", text="")

    refused("fsdp", lambda: elastic.join(model=torch.nn.Sequential(FullyShardedDataParallel())))
    refused("wrapped", lambda: elastic.join(model=torch.nn.DataParallel(net)))
    refused("lbfgs", lambda: elastic.join(model=net, optimizer=torch.optim.LBFGS(net.parameters())))
    refused("lazy", lambda: elastic.join(model=torch.nn.LazyLinear(3)))
    refused("no model", lambda: elastic.join(optimizer=optimizer))
    job = elastic.join(model=net, optimizer=optimizer)
    refused("twice", lambda: elastic.join(model=net))
    refused("stream", lambda: job.loader(Stream(), global_batch=2))
    refused("early allreduce", lambda: job.allreduce(1.0))
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    loader = job.loader(data, global_batch=4)
    for _ in job.epochs(1):
        for (x,) in loader:
            refused("outside", optimizer.step)
            with job.step():
                refused("nested", lambda: job.step().__enter__())
                refused("allreduce inside", lambda: job.allreduce(1.0))
                optimizer.zero_grad()
                job.model(x).sum().backward()
                optimizer.step()
                refused("second backward", lambda x=x: job.model(x).sum().backward())
                refused("collective", lambda: torch.distributed.all_reduce(torch.ones(1)))
    journal("end", rank=job.rank)


main()
