"""A step on Keras's torch backend: run eagerly, its effects on variables undone, kept as changes and applied once agreed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

from .capture import capturing, random_stream_of, stream_offset
from .engine import Arrays, Engine, Results, Share

_Tensors = list[torch.Tensor]


class TorchEngine(Engine):
    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._train_step = torch.compile(model.train_step) if model.jit_compile else model.train_step
        self._applied_to: list[Any] = []

    def prepare(self, batch: Any) -> None:
        pass

    def compute(self, batch: Any, rank: int) -> Results:
        roles, data = self.roles, _tensors(batch)
        before = _copies(roles.changing())
        offset = keras.ops.convert_to_tensor(stream_offset(rank))
        try:
            with capturing(self.optimizer, self.model.trainable_variables) as captured, random_stream_of(offset):
                logs = self._train_step(data)
            after = _copies(roles.changing())
        finally:
            _put(roles.changing(), before)
        self._applied_to = captured.variables
        there = torch.tensor([float(gradient is not None) for gradient in captured.gradients])
        gradients = [
            torch.zeros_like(variable.value) if gradient is None else gradient
            for gradient, variable in zip(captured.gradients, captured.variables, strict=True)
        ]
        metrics, floats, counters, local = roles.split(after)
        metrics_before, floats_before, counters_before, _ = roles.split(before)
        return Results(
            [],
            [*gradients, there],
            _changes(metrics, metrics_before),
            _changes(floats, floats_before),
            _changes(counters, counters_before),
            self.own_logs(logs),
            local,
        )

    def pack(self, results: Results, share: Share) -> tuple[Arrays, Arrays]:
        weights = share.weights()
        flat: dict[torch.dtype, _Tensors] = {torch.float32: [], torch.float64: []}
        lists = results.exchanged()
        for tensors, kinds in zip(lists, self.weight_kinds(lists), strict=True):
            for tensor, kind in zip(tensors, kinds, strict=True):
                value = tensor.detach().to(_wire_type(tensor)).reshape(-1)
                # Set to zero, not multiplied: the sample that stood in may have given anything, NaN too.
                flat[value.dtype].append(value * weights[kind] if weights[kind] else torch.zeros_like(value))
        return [np.array(torch.cat(tensors).cpu().numpy()) for tensors in flat.values() if tensors], []

    def unpack(self, sums: Arrays, tables: Arrays, own: Results) -> Results:
        flats = {flat.dtype: flat for flat in map(torch.from_numpy, sums)}
        at = dict.fromkeys(flats, 0)

        def take(like: torch.Tensor) -> torch.Tensor:
            wire = _wire_type(like)
            start = at[wire]
            at[wire] = start + like.numel()
            return flats[wire][start : at[wire]].reshape(like.shape).to(device=like.device, dtype=like.dtype)

        return own.replaced([], [[take(tensor) for tensor in tensors] for tensors in own.exchanged()])

    def apply(self, results: Results) -> dict[str, Any]:
        roles = self.roles
        changes = results.metrics + results.floats + results.counters
        with torch.no_grad():
            for variable, change in zip(roles.metrics + roles.floats + roles.counters, changes, strict=True):
                value = variable.value
                value.copy_((value.to(change.dtype) + change).to(value.dtype))
            _put(roles.local, results.local)
            *gradients, there = results.gradients
            given = zip(gradients, self._applied_to, there.tolist(), strict=True)
            pairs = [(gradient, variable) for gradient, variable, share in given if share > 0]
            if pairs:
                self.optimizer.apply(*map(list, zip(*pairs, strict=True)))
        return self.merge_logs(self.metrics_result(), results.logs)

    def test(self, batch: Any) -> Arrays:
        variables, data = self.roles.changing(), _tensors(batch)
        before = _copies(variables)
        try:
            with torch.no_grad():
                self.model.test_step(data)
            after = _copies(self.roles.metrics)
        finally:
            _put(variables, before)
        return [change.cpu().numpy() for change in _changes(after, self.roles.split(before)[0])]

    def add_to_metrics(self, changes: Arrays) -> None:
        with torch.no_grad():
            for variable, change in zip(self.roles.metrics, changes, strict=True):
                variable.value.add_(torch.tensor(change, device=variable.value.device).to(variable.value.dtype))

    def set_training(self, training: bool) -> None:
        self.model.train(training)


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(lambda value: None if value is None else keras.ops.convert_to_tensor(value), batch)


def _copies(variables: list[Any]) -> _Tensors:
    return [variable.value.detach().clone() for variable in variables]


def _put(variables: list[Any], values: _Tensors) -> None:
    with torch.no_grad():
        for variable, value in zip(variables, values, strict=True):
            variable.value.copy_(value)


def _changes(after: _Tensors, before: _Tensors) -> _Tensors:
    """Integers as float64, which holds their differences, negative ones too."""
    return [_number(a) - _number(b) for a, b in zip(after, before, strict=True)]


def _number(value: torch.Tensor) -> torch.Tensor:
    return value if value.is_floating_point() else value.double()


def _wire_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
