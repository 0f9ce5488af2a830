"""Training in the shape of Horovod's elastic examples, with a commit after each step: an MLP on made-up samples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.timeline import Event, Timeline

_LAYERS = (784, 512, 512, 10)
_BATCH = 32  # of each worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True, help="folder")
    timeline = Timeline(parser.parse_args().notes)
    timeline.note(Event.STARTED)

    import horovod.torch as hvd
    import torch

    from benchmarks.model import Samples, as_it_is, mlp

    timeline.note(Event.IMPORTED)
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = mlp(_LAYERS)
    data = Samples(_LAYERS[0], _LAYERS[-1], 1 << 18)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(data)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=_BATCH, sampler=sampler, collate_fn=as_it_is)
    timeline.note(Event.READY)

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            sampler.record_batch(index, _BATCH)
            state.step += 1
            state.commit()
            timeline.note(Event.COMMITTED, state.step, 0, hvd.rank(), hvd.size())

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0))


if __name__ == "__main__":
    main()
