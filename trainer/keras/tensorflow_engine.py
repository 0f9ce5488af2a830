"""A step on Keras's TensorFlow backend: one compiled function to compute it, one to apply it.

They are traced for batches of any size, once, before the worker is counted: a change of the membership changes the size of
this member's part, and must not cost a trace.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from .capture import capturing, random_stream_of, stream_offset
from .engine import Arrays, Engine, Results, Share

_Tensors = list[Any]


class TensorFlowEngine(Engine):
    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        if tf.distribute.has_strategy() or model._distribute_strategy is not None:
            raise UsageError(
                "the model was built under a tf.distribute strategy: the members of the job take its place. Build and fit "
                "it outside of a strategy's scope"
            )
        self._compute = self._function(self._compute_step)
        self._apply = self._function(self._apply_step)
        self._test = self._function(self._test_step)
        self._pack = tf.function(self._pack_results, autograph=False)
        self._unpack = tf.function(self._unpack_results, autograph=False)
        self._with_gradient: list[tuple[Any, bool]] = []
        self.knows_batch_size = bool(model.run_eagerly)

    def prepare(self, batch: Any) -> None:
        if self.model.run_eagerly:
            return
        specs = keras.tree.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
        traced = self._compute.get_concrete_function(specs, tf.TensorSpec((2,), stream_offset(0).dtype))
        outputs = [[tf.TensorSpec(each.shape, each.dtype) for each in tensors] for tensors in traced.structured_outputs]
        self._apply.get_concrete_function(*outputs)

    def compute(self, batch: Any, rank: int) -> Results:
        return Results(*self._compute(_tensors(batch), tf.constant(stream_offset(rank))))

    def pack(self, results: Results, share: Share) -> tuple[Arrays, Arrays]:
        weights = tf.constant(share.weights(), tf.float64)
        sums = [np.array(flat) for flat in self._pack(results.exchanged(), weights)]
        return sums, [array.numpy() for array in self._weighted_tables(results.tables, share.weight)]

    def unpack(self, sums: Arrays, tables: Arrays, own: Results) -> Results:
        summed = self._unpack([tf.convert_to_tensor(array) for array in sums], own.exchanged())
        return own.replaced([tf.convert_to_tensor(array) for array in tables], summed)

    def apply(self, results: Results) -> dict[str, Any]:
        return self.merge_logs(self._apply(*results.lists()), results.logs)

    def test(self, batch: Any) -> Arrays:
        return [change.numpy() for change in self._test(_tensors(batch))]

    def add_to_metrics(self, changes: Arrays) -> None:
        for variable, change in zip(self.roles.metrics, changes, strict=True):
            variable.assign(tf.cast(tf.cast(variable.value, tf.float64) + change, variable.dtype))

    # --- compiled ---

    def _compute_step(self, data: Any, offset: Any) -> list[_Tensors]:
        before = self._read(self.roles.changing())
        with capturing(self.optimizer, self.model.trainable_variables) as captured, random_stream_of(offset):
            logs = self.model.train_step(data)
        after = self._read(self.roles.changing())
        self._put_back(before)
        pairs = list(zip(captured.gradients, captured.variables, strict=True))
        there = []
        if self.model.run_eagerly:
            there = [tf.constant([float(gradient is not None) for gradient, _ in pairs], tf.float32)]
            # Tables too: whether a missing gradient is one elsewhere is not known here.
            pairs = [(tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g), v) for g, v in pairs]
        pairs = [(g, v) for g, v in pairs if g is not None]
        self._with_gradient = [(variable, isinstance(gradient, tf.IndexedSlices)) for gradient, variable in pairs]
        tables = [gradient for gradient, _ in pairs if isinstance(gradient, tf.IndexedSlices)]
        gradients = [gradient for gradient, _ in pairs if not isinstance(gradient, tf.IndexedSlices)]
        metrics, floats, counters, local = self.roles.split(after)
        metrics_before, floats_before, counters_before, _ = self.roles.split(before)
        return [
            [part for table in tables for part in (table.values, tf.cast(table.indices, tf.int64))],
            [*gradients, *there],
            _changes(metrics, metrics_before),
            _changes(floats, floats_before),
            _changes(counters, counters_before),
            self.own_logs(logs),
            local,
        ]

    def _apply_step(
        self,
        tables: _Tensors,
        gradients: _Tensors,
        metrics: _Tensors,
        floats: _Tensors,
        counters: _Tensors,
        _: _Tensors,
        local: _Tensors,
    ) -> Any:
        roles = self.roles
        for variable, change in zip(
            roles.metrics + roles.floats + roles.counters, metrics + floats + counters, strict=True
        ):
            wide = change.dtype
            variable.assign(tf.cast(tf.cast(variable.value, wide) + change, variable.dtype))
        for variable, value in zip(roles.local, local, strict=True):
            variable.assign(value)
        shares = [1.0] * len(self._with_gradient)
        if self.model.run_eagerly:
            *gradients, there = gradients
            shares = there.numpy().tolist()
        given = zip(self._in_order(tables, gradients), self._with_gradient, shares, strict=True)
        pairs = [(gradient, variable) for gradient, (variable, _), share in given if share > 0]
        if pairs:
            self.optimizer.apply(*map(list, zip(*pairs, strict=True)))
        return self.metrics_result()

    def _test_step(self, data: Any) -> _Tensors:
        before = self._read(self.roles.changing())
        self.model.test_step(data)
        after = self._read(self.roles.metrics)
        self._put_back(before)
        return _changes(after, self.roles.split(before)[0])

    def _pack_results(self, lists: list[_Tensors], weights: Any) -> _Tensors:
        flat: dict[Any, _Tensors] = {tf.float32: [], tf.float64: []}
        for tensors, kinds in zip(lists, self.weight_kinds(lists), strict=True):
            for tensor, kind in zip(tensors, kinds, strict=True):
                wire = _wire_type(tensor)
                # Zero, not a product, where the weight is zero: the sample that stood in may have given anything, NaN too.
                weighted = tf.math.multiply_no_nan(tf.cast(tensor, wire), tf.cast(weights[kind], wire))
                flat[wire].append(tf.reshape(weighted, [-1]))
        return [tf.concat(tensors, 0) for tensors in flat.values() if tensors]

    def _unpack_results(self, flats: _Tensors, like: list[_Tensors]) -> list[_Tensors]:
        by_type = {flat.dtype: flat for flat in flats}
        at = dict.fromkeys(by_type, 0)

        def take(tensor: Any) -> Any:
            wire = _wire_type(tensor)
            start = at[wire]
            at[wire] = start + tensor.shape.num_elements()
            return tf.cast(tf.reshape(by_type[wire][start : at[wire]], tensor.shape), tensor.dtype)

        return [[take(tensor) for tensor in tensors] for tensors in like]

    # --- inside ---

    def _function(self, function: Any) -> Any:
        if self.model.run_eagerly:
            return function
        return tf.function(function, autograph=False, reduce_retracing=True, jit_compile=self.model.jit_compile or None)

    def _in_order(self, tables: _Tensors, gradients: _Tensors) -> list[Any]:
        """The gradients as the optimizer was to apply them."""
        dense, parts = iter(gradients), iter(tables)
        return [
            tf.IndexedSlices(next(parts), next(parts), tf.constant(tuple(variable.shape), tf.int64))
            if is_table
            else next(dense)
            for variable, is_table in self._with_gradient
        ]

    def _weighted_tables(self, tables: _Tensors, weight: float) -> _Tensors:
        if weight == 0.0:
            return [part[:0] for part in tables]
        return [part * tf.constant(weight, part.dtype) if i % 2 == 0 else part for i, part in enumerate(tables)]

    def _read(self, variables: list[Any]) -> _Tensors:
        return [tf.identity(variable.value) for variable in variables]

    def _put_back(self, values: _Tensors) -> None:
        for variable, value in zip(self.roles.changing(), values, strict=True):
            variable.assign(value)


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(lambda value: None if value is None else tf.convert_to_tensor(value), batch)


def _changes(after: _Tensors, before: _Tensors) -> _Tensors:
    """Integers as float64, which holds their differences, negative ones too."""
    return [_number(a) - _number(b) for a, b in zip(after, before, strict=True)]


def _number(value: Any) -> Any:
    return value if value.dtype.is_floating else tf.cast(value, tf.float64)


def _wire_type(tensor: Any) -> Any:
    return tf.float64 if tensor.dtype == tf.float64 else tf.float32
