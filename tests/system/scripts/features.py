"""Uses what a job offers beside the step: metrics, reductions, evaluation, registered values, own collectives and groups."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from journal import Journal

import elastic_launch as elastic


class Net(torch.nn.Module):
    answer = 42

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((4,), index / 50)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--pause", type=float, default=0.02)
    options = parser.parse_args()
    journal = Journal(options.journal)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job = elastic.join(model=net, optimizer=optimizer)
    loader = job.loader(Numbers(), global_batch=20, seed=1)
    newest = job.register("newest", 0)
    history = job.register("history", [])
    groups: list[Any] = []

    def changed(change: elastic.Change) -> None:
        # A joiner has the registered values here already; a collective is fine, everybody is at the same point.
        groups.append(dist.new_group(list(range(change.world_size))))
        journal("change", newest=newest.value, history=len(history), **vars(change))

    job.on_change(changed)
    assert job.model.answer == 42 and list(job.model.state_dict()) == list(net.state_dict())

    for epoch in job.epochs(10**9):
        for ids, x in loader:
            step = job.global_step + 1
            wanted = loader.sampler.slice()
            with job.step():
                loss = job.model(x).mean()
                journal.hold("step")
                mine = torch.ones(1)
                dist.all_reduce(mine)
                group_sum = torch.ones(1)
                dist.all_reduce(group_sum, group=groups[-1])
                optimizer.zero_grad()
                loss.backward()
                time.sleep(options.pause)
                job.log(ids=ids.float().mean())
                optimizer.step()
            if job.global_step != step:
                journal("redo", step=step)
                continue
            newest.value = job.global_step
            history.append(job.global_step)
            journal(
                "step",
                step=step,
                generation=job.generation,
                world_size=job.world_size,
                loss=job.metrics["ids"],
                wanted=sum(wanted) / len(wanted),
                sums=[mine.item(), group_sum.item()],
                newest=newest.value,
                history=len(history),
            )
        if job.stopped:
            break
        if len(groups) > 1:
            try:
                dist.all_reduce(torch.ones(1), group=groups[-2])
            except elastic.StaleGroupError as error:
                if journal.once("stale"):
                    journal("stale", text=str(error))
        journal.hold("epoch end")
        journal(
            "reduced",
            epoch=epoch,
            sum=job.allreduce(1.0, "sum"),
            mean=job.allreduce(2.0),
            most=job.allreduce(float(epoch), "max"),
            least=job.allreduce(torch.tensor([5, epoch]), "min").tolist(),
            tensor=job.allreduce(torch.ones(2, dtype=torch.float64), "sum").tolist(),
            world_size=job.world_size,
        )

        def means(module: torch.nn.Module, batch: Any) -> dict[str, Any]:
            journal.hold("evaluation")
            return {"ids": batch[0].double().mean(), "ones": 1.0}

        journal("evaluated", epoch=epoch, world_size=job.world_size, **job.evaluate(Numbers(), means, batch_size=7))
        if journal.finish_wanted():
            job.stop()
    journal("end", steps=job.global_step, newest=newest.value, history=len(history), rank=job.rank)


main()
