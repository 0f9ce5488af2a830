"""A fit that proves what was trained on: its ledger, its losses, its metrics.

The ledger is a table with a row for each sample, of which a step changes those of its samples through the optimizer: after n
epochs each row is -n if, and only if, each sample of each epoch was applied exactly once. A metric counts the samples too.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np
from telling import Journalling, add_options

import elastic_launch.keras as elastic

SAMPLES, BATCH, FEATURES = 200, 20, 8


class WithLedger(keras.optimizers.Adam):
    """Adam, but the ledger's rows lose 1 for each of their samples."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if tuple(variable.shape) == (SAMPLES, 1):
            self.assign_sub(variable, keras.ops.multiply(gradient, BATCH))
        else:
            super().update_step(gradient, variable, learning_rate)


class Seen(keras.metrics.Metric):
    """How often the rarest and the most frequent sample of the epoch so far was seen, as a fraction: 1.01 for 1 and 1."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_variable((SAMPLES,), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ids = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, SAMPLES, dtype=self.counts.dtype), axis=0))

    def result(self) -> Any:
        return keras.ops.min(self.counts) + keras.ops.max(self.counts) / 100


def mean_entry(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(y_pred, axis=-1)


def build(norm: bool) -> keras.Model:
    keras.utils.set_random_seed(5)
    ids, x = keras.Input((1,), dtype="int64", name="ids"), keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(16, activation="tanh")(x)
    if norm:
        hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
    entry = keras.layers.Flatten(name="entry")(keras.layers.Embedding(SAMPLES, 1, embeddings_initializer="zeros")(ids))
    outputs = {"value": keras.layers.Dense(1, name="value")(hidden), "entry": entry}
    model = keras.Model({"ids": ids, "x": x}, outputs)
    model.compile(
        WithLedger(keras.optimizers.schedules.CosineDecay(0.01, 2000)),
        {"value": "mse", "entry": mean_entry},
        metrics={"value": ["mae"], "entry": [Seen()]},
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--norm", action="store_true", help="batch norm and dropout")
    parser.add_argument("--source", default="arrays", choices=["arrays", "dataset"])
    options = parser.parse_args()
    told = Journalling(options, but=(SAMPLES, 1))
    keras.config.set_floatx("float64")
    model = build(options.norm)
    generator = np.random.default_rng(7)
    ids, x = np.arange(SAMPLES)[:, None], generator.normal(size=(SAMPLES, FEATURES))
    y = {"value": np.sin(x.sum(1, keepdims=True)), "entry": ids.astype("float64")}
    data: Any = ({"ids": ids, "x": x}, y)
    given: dict[str, Any] = {"global_batch": BATCH, "seed": 3}
    if options.source == "dataset":
        import tensorflow as tf

        data = (tf.data.Dataset.from_tensor_slices(data).shuffle(SAMPLES, seed=3).batch(BATCH),)
        given = {}
    history = elastic.fit(
        model,
        *data,
        epochs=told.epochs,
        validation_data=({"ids": ids[:50], "x": x[:50]}, {name: each[:50] for name, each in y.items()}),
        validation_batch_size=8,
        callbacks=[told],
        verbose=2,
        **given,
    )
    rows = next(each for each in model.get_weights() if each.shape == (SAMPLES, 1))
    told.end(history, counts=sorted({round(float(count), 3) for count in rows[:, 0]}))


if __name__ == "__main__":
    main()
