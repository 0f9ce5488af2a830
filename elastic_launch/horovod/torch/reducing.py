"""Gradients on their way: a hook of each parameter starts its reduction, which `synchronize` waits for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import world
from ..collectives import Average
from . import mpi_ops

Started = tuple[Callable[[], torch.Tensor], Any]
"""What waits for the reduced gradient, and what the compression needs."""


class GradientReducer:
    """Of the parameters `names`, which may go over the ring in any order: it is their names that are matched.

    With `groups` those of a group are held back until the last of them is there; the ring reduces together whatever it finds.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        compression: Any,
        passes: int,
        op: int,
        predivide: float,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
        sparse_as_dense: bool,
    ) -> None:
        self._names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self._compression = compression
        self._op = op
        self._factors = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
        self._sparse_as_dense = sparse_as_dense
        self._group_of = _groups(list(self._names), groups)
        self._waiting: set[torch.Tensor] = set()
        self._started: dict[torch.Tensor, Started] = {}
        self._left: dict[torch.Tensor, int] = {}
        self._generation = 0
        self.passes = passes
        self.is_synchronized = False
        self.is_skipped = False
        self.set_passes(passes)
        here = weakref.ref(self)
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(lambda hooked: _came(here, hooked))

    @property
    def is_busy(self) -> bool:
        self._forget_if_old()
        return bool(self._started or self._waiting)

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self._left = dict.fromkeys(self._names, passes)

    def forget(self) -> None:
        """What was started is of a ring, or of a state, that there is no more."""
        self._started, self._waiting = {}, set()
        self.is_synchronized = self.is_skipped = False
        self.set_passes(self.passes)

    def came(self, parameter: torch.Tensor) -> None:
        """Backward has added to its gradient."""
        self._forget_if_old()
        if self._left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]} was computed more than backward_passes_per_step={self.passes}"
                " times before optimizer.step(): give the number of backward passes of a step"
            )
        self._left[parameter] -= 1
        if self._left[parameter]:
            return
        group = self._group_of.get(parameter, (parameter,))
        self._waiting.add(parameter)
        if all(each in self._waiting for each in group):
            self._waiting.difference_update(group)
            for each in group:
                self._start(each)

    def synchronize(self) -> None:
        """All gradients are reduced then, also those that backward has not come to: others may have them."""
        self._forget_if_old()
        for parameter in self._names:
            if parameter not in self._started:
                self._start(parameter)
        self._waiting.clear()
        for parameter, (wait, context) in self._started.items():
            self._put(parameter, self._compression.decompress(wait(), context))
        self._started = {}
        self._left = dict.fromkeys(self._names, self.passes)
        self.is_synchronized = True

    def _start(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient, name = parameter.grad, self._names[parameter]
        if gradient.is_sparse and not self._sparse_as_dense:
            self._started[parameter] = mpi_ops.sparse_allreduce_async(gradient, name, self._op), None
            return
        compressed, context = self._compression.compress(gradient.to_dense() if gradient.is_sparse else gradient)
        before, after = self._factors
        handle = mpi_ops.allreduce_async_(
            compressed, name=name, op=self._op, prescale_factor=before, postscale_factor=after
        )
        self._started[parameter] = handle.wait, context

    def _put(self, parameter: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = reduced if reduced.is_sparse else reduced.to_sparse()
        elif reduced.data_ptr() != gradient.data_ptr():
            gradient.copy_(reduced)

    def _forget_if_old(self) -> None:
        generation = world.current().generation
        if generation != self._generation:
            self.forget()
            self._generation = generation


def _came(reducer: weakref.ref[GradientReducer], parameter: torch.Tensor) -> None:
    """The hook of a parameter outlives an optimizer that is gone."""
    found = reducer()
    if found is not None:
        found.came(parameter)


def _groups(
    parameters: Sequence[torch.Tensor], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, tuple[torch.Tensor, ...]]:
    if groups is None:
        return {}
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError(f"groups is {groups}: give a number above 0, or lists of parameters")
        count = min(groups, len(parameters))
        bounds = [len(parameters) * index // count for index in range(count + 1)]
        lists: list[Sequence[torch.Tensor]] = [parameters[bounds[i] : bounds[i + 1]] for i in range(count)]
    else:
        lists = list(groups)
    given = [parameter for each in lists for parameter in each]
    if any(not isinstance(parameter, torch.Tensor) for parameter in given):
        raise ValueError("groups are lists of parameters")
    if len(set(given)) < len(given):
        raise ValueError("a parameter is in two groups")
    known = set(parameters)
    return {p: tuple(q for q in each if q in known) for each in lists for p in each if p in known}
