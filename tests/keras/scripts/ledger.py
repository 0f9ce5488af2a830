"""A fit that proves what was trained on: its ledger, its losses, its metrics.

The ledger is a table with a row for each sample, of which a step changes those of its samples through the optimizer: after n
epochs each row is -n if, and only if, each sample of each epoch was applied exactly once. A metric counts the samples too.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import elastic_launch.keras as elastic

sys.path.append(str(Path(__file__).resolve().parents[2] / "system" / "scripts"))
from journal import Journal

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


class Journalling(keras.callbacks.Callback):
    def __init__(self, journal: Journal, options: argparse.Namespace) -> None:
        super().__init__()
        self.journal = journal
        self.options = options
        self.epochs_seen = 0

    def on_train_begin(self, logs: Any = None) -> None:
        job = elastic.current_job()
        assert job is not None
        self.job = job
        job.on_change(lambda change: self.journal("change", **vars(change)))
        self.journal("ready", local_rank=self.journal.local_rank)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.options.pause)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        job, logs = self.job, logs or {}
        self.journal(
            "step", step=job.global_step, batch=batch, rank=job.rank, generation=job.generation, epoch=job.epoch,
            world_size=job.world_size, **logs,
        )  # fmt: skip

    def on_test_begin(self, logs: Any = None) -> None:
        self.journal.hold("evaluation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs_seen += 1
        self.journal("epoch", epoch=epoch, rank=self.job.rank, weights=weights(self.model), **(logs or {}))
        if self.options.open_ended and self.journal.finish_wanted():
            self.model.stop_training = True


def weights(model: keras.Model) -> float:
    """One number that every parameter but the ledger has a part in."""
    return float(sum(np.abs(w).sum() for w in model.get_weights() if w.shape != (SAMPLES, 1)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--open-ended", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--norm", action="store_true", help="batch norm and dropout")
    parser.add_argument("--source", default="arrays", choices=["arrays", "dataset"])
    options = parser.parse_args()
    journal = Journal(options.journal)
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
    told = Journalling(journal, options)
    history = elastic.fit(
        model,
        *data,
        epochs=10**6 if options.open_ended else options.epochs,
        validation_data=({"ids": ids[:50], "x": x[:50]}, {name: each[:50] for name, each in y.items()}),
        validation_batch_size=8,
        callbacks=[told],
        verbose=2,
        **given,
    )
    job = elastic.current_job()
    assert job is not None
    journal(
        "end",
        counts=sorted({round(float(count), 6) for w in model.get_weights() if w.shape == (SAMPLES, 1) for count in w[:, 0]}),
        samples=job.samples, epochs=job.epoch + job.stopped, steps=job.global_step, seen=told.epochs_seen,
        weights=weights(model), lr=float(model.optimizer.learning_rate), history=history.history, epoch=history.epoch,
    )  # fmt: skip


if __name__ == "__main__":
    main()
