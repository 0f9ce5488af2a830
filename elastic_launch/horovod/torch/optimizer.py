"""`DistributedOptimizer`: gradients are reduced as backward gives them, and are there when `step` applies them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..collectives import Average
from ..common.process_sets import ProcessSet, check_global, global_process_set
from .compression import Compression
from .reducing import GradientReducer


class _DistributedOptimizer:
    """What a class of the user's optimizer is given in addition. `_reducer` holds all that is ours."""

    _reducer: GradientReducer
    _unwrapped: Any

    def synchronize(self) -> None:
        """Wait until the gradients are reduced, for what has to see them before `step`, such as clipping."""
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside it, `step` applies the gradients as they are: those that `synchronize` has made."""
        self._reducer.is_skipped = True
        try:
            yield
        finally:
            self._reducer.is_skipped = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._reducer.set_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        return self._reducer.passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        reducer = self._reducer
        if not reducer.is_skipped:
            if reducer.is_synchronized:
                warnings.warn(
                    "optimizer.step() after optimizer.synchronize() reduces the gradients again: call it within"
                    " `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            reducer.synchronize()
        reducer.is_synchronized = False
        self._unwrapped._opt_called = True  # a scheduler that was made with it wants to see a step
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._reducer.is_busy:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or"
                " optimizer.synchronize(): the gradients are being reduced"
            )
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def load_state_dict(self, state_dict: Any) -> None:
        """Also ends what was begun with gradients of another time: `elastic` restores by this."""
        self._reducer.forget()
        super().load_state_dict(state_dict)  # type: ignore[misc]
        # Schedulers that were made with the optimizer from before are to set the rates of this one.
        vars(self._unwrapped).update({name: vars(self)[name] for name in ("state", "param_groups")})


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class, with the same state, groups and schedulers, that reduces gradients over the members.

    With `backward_passes_per_step`, gradients of as many backward passes are summed here before they are reduced. `groups`
    are lists of parameters that are reduced together, or a number of such lists.
    """
    check_global(process_set)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average alone")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("num_groups is called groups", DeprecationWarning, stacklevel=2)
    original = type(optimizer)
    wrapped: Any = type(original.__name__, (_DistributedOptimizer, original), {"__module__": original.__module__})
    made: Any = wrapped.__new__(wrapped)
    # A scheduler has put its own `step` on the object that it was given.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    made._unwrapped = optimizer
    made._reducer = GradientReducer(
        _named(made, named_parameters),
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        num_groups if groups is None and num_groups else groups,
        sparse_as_dense,
    )
    return made


def _named(optimizer: torch.optim.Optimizer, given: Any) -> dict[torch.Tensor, str]:
    """By parameter. Raises `ValueError` if names are missing, or given twice."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if given is None:
        return {parameter: f"noname.{index}" for index, parameter in enumerate(parameters)}
    named = list(given)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError("named_parameters are pairs of a name and a parameter, as model.named_parameters() gives them")
    twice = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if twice:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(twice)}")
    names = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's {len(parameters)} parameters")
    return {parameter: names[parameter] for parameter in parameters}
