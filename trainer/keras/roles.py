"""Which variables of a model change in a step, and in which way the members' changes become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.random import seed_generator


@dataclass
class Roles:
    """`metrics` add up over the members; `floats` (batch-norm statistics) become the mean, weighted by samples;
    `counters` (other integers) change as on rank 0; `local` (states of random seeds) change alike on all members.

    `share_weighted` are the positions in `metrics` of means that count a batch as one, whatever its size: those of a
    loss's parts where a compiled step does not know the batch's size.
    """

    metrics: list[Any] = field(default_factory=list)
    floats: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)
    local: list[Any] = field(default_factory=list)
    share_weighted: set[int] = field(default_factory=set)

    @staticmethod
    def of(model: keras.Model) -> Roles:
        roles = Roles(metrics=_unique(model.metrics_variables))
        of_loss = model._compile_loss.metrics if model._compile_loss is not None else []
        counting_batches = {id(variable) for metric in of_loss for variable in metric.variables}
        roles.share_weighted = {i for i, variable in enumerate(roles.metrics) if id(variable) in counting_batches}
        seeds = [generator.state for layer in model._flatten_layers() for generator in layer._seed_generators]
        roles.local = _unique([*seeds, seed_generator.global_seed_generator().state])
        known = {id(variable) for variable in roles.metrics + roles.local}
        # Not `non_trainable_variables`: those of a frozen layer are among them, and do not change.
        state = [variable for layer in model._flatten_layers() for variable in layer._non_trainable_variables]
        for variable in _unique(state):
            if id(variable) in known:
                continue
            if keras.backend.is_float_dtype(variable.dtype):
                roles.floats.append(variable)
            elif variable.dtype == "string":
                roles.local.append(variable)
            else:
                roles.counters.append(variable)
        return roles

    def changing(self) -> list[Any]:
        """All of them, in the order metrics, floats, counters, local."""
        return self.metrics + self.floats + self.counters + self.local

    def split(self, values: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """`values` of `changing`, by role."""
        a = len(self.metrics)
        b = a + len(self.floats)
        c = b + len(self.counters)
        return values[:a], values[a:b], values[b:c], values[c:]


def replicated(model: keras.Model) -> dict[str, Any]:
    """Every variable that must be equal on all members, by a name that does not depend on what else a process has built."""
    named: dict[str, Any] = {}
    seen: set[int] = set()
    kinds = {
        "model": model.variables,
        "optimizer": model.optimizer.variables if model.optimizer is not None else [],
        "metrics": model.metrics_variables,
        "random": [seed_generator.global_seed_generator().state],
    }
    for kind, variables in kinds.items():
        for number, variable in enumerate(variables):
            if id(variable) not in seen:
                seen.add(id(variable))
                named[f"{kind}/{number}/{variable.name}"] = variable
    return named


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())
