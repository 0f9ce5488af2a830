"""Models that a fit is compared on, each with what is special about it, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

SAMPLES = 50
X = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype("float32")
LABELS = np.random.default_rng(1).integers(0, 3, SAMPLES)
TARGETS = X.sum(1, keepdims=True)
WEIGHTS = np.random.default_rng(2).uniform(0.2, 3, SAMPLES).astype("float32")

Make = Callable[[], keras.Model]


def classifier(optimizer: Any = "sgd", **compiled: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **{"metrics": ["accuracy"], **compiled})
    return model


def with_state_and_dropout() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.4, seed=9), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("rmsprop", loss, metrics=["accuracy"], weighted_metrics=["sparse_categorical_crossentropy"])
    return model


def two_outputs() -> keras.Model:
    x = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(x)
    outputs = {
        "a": keras.layers.Dense(1, name="a")(hidden),
        "b": keras.layers.Dense(3, activation="softmax", name="b")(hidden),
    }
    model = keras.Model({"x": x}, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {"a": "mse", "b": "sparse_categorical_crossentropy"},
        loss_weights={"a": 0.3, "b": 1.0},
        metrics={"a": ["mae", keras.metrics.RootMeanSquaredError(name="rmse")], "b": ["accuracy"]},
    )
    return model


def binary_with_auc() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid", kernel_constraint="max_norm")]
    )
    metrics = [keras.metrics.AUC(num_thresholds=20, name="auc"), keras.metrics.Precision(name="precision"), "accuracy"]
    model.compile(keras.optimizers.AdamW(0.05, weight_decay=0.01, clipnorm=0.5), "binary_crossentropy", metrics=metrics)
    return model


def in_mixed_precision() -> keras.Model:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return classifier(keras.optimizers.Adam(0.01))
    finally:
        keras.config.set_dtype_policy("float32")


def embedding() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 5), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adagrad(0.05), "mse", metrics=["mae"])
    return model


class OwnStep(keras.Model):
    """A train_step of the user's, which reports a number that is no metric."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        logs: dict[str, Any] = super().train_step(data)
        return {**logs, "size": keras.ops.mean(keras.ops.abs(data[0]))}


def own_step() -> keras.Model:
    model = OwnStep()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def scheduled() -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
    return keras.optimizers.Adam(schedule, global_clipnorm=0.3, use_ema=True, ema_overwrite_frequency=4)


IDS = (np.abs(X[:, :4]) * 4).astype("int32") % 9

MODELS: dict[str, tuple[Make, Any, Any]] = {
    "classifier": (classifier, X, LABELS),
    "batch norm and dropout": (with_state_and_dropout, X, LABELS),
    "two outputs": (two_outputs, {"x": X}, {"a": TARGETS, "b": LABELS}),
    "auc and weight decay": (binary_with_auc, X, (LABELS > 0).astype("float32")[:, None]),
    "mixed precision": (in_mixed_precision, X, LABELS),
    "embedding": (embedding, IDS, TARGETS),
    "own train_step": (own_step, X, LABELS),
    "schedule, clipping, EMA": (lambda: classifier(scheduled()), X, LABELS),
    "gradient accumulation": (
        lambda: classifier(keras.optimizers.Adam(0.05, gradient_accumulation_steps=3)),
        X,
        LABELS,
    ),
    "eager": (lambda: classifier("sgd", run_eagerly=True), X, LABELS),
}
