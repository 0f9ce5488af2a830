"""What is trained: an MLP on made-up samples that are all in memory, so that the data costs next to nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

_DISTINCT = 4096


class Samples(torch.utils.data.Dataset[Any]):
    """As many as a large data set has, by repeating a few; so that no epoch ends while a trial runs."""

    def __init__(self, features: int, classes: int, length: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self._x = torch.randn(_DISTINCT, features, generator=generator)
        self._y = torch.randint(classes, (_DISTINCT,), generator=generator)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index % _DISTINCT], self._y[index % _DISTINCT]

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor(indices) % _DISTINCT
        return self._x[rows], self._y[rows]


def as_it_is(batch: Any) -> Any:
    """The collate function: `Samples` hands out whole batches."""
    return batch


def mlp(layers: Sequence[int]) -> torch.nn.Sequential:
    modules: list[torch.nn.Module] = []
    for width, following in pairwise(layers):
        modules += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def optimizer_for(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Those of `Settings.workload_flags`."""
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
