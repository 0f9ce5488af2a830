"""A wide-and-deep model on the Wisconsin breast cancer table (569 patients, 30 measurements), on workers that may come and go.

    elastic-launch --min 1 --max 4 model_zoo/wide_and_deep/train.py
    python model_zoo/wide_and_deep/train.py

After Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016). Each measurement is cut into four ranges. The wide
part is linear in these ranges and in pairs of them; the deep part sees the measurements and an embedding of each range.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import elastic_launch.keras as elastic

EPOCHS, GLOBAL_BATCH, LEARNING_RATE = 20, 32, 2e-3
MEASUREMENTS, RANGES = 30, 4
PAIRS = list(combinations(range(10), 2))  # of the ten mean values

Table = tuple[dict[str, Any], Any]


def table() -> tuple[Table, Table]:
    """426 patients to train on and 143 to test on, the same ones in every process.

    `values` (30,) are standardised; `ranges` (30,) number the range of each measurement, over all measurements;
    `pairs` (45,) the pair of ranges of two mean values, over all pairs. The label is 1 for benign.
    """
    measured, labels = load_breast_cancer(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.25, stratify=labels, random_state=0)
    known = measured[train]
    limits = np.quantile(known, [0.25, 0.5, 0.75], axis=0)
    ranges = (measured[:, None, :] > limits).sum(axis=1)
    pairs = np.stack([ranges[:, a] * RANGES + ranges[:, b] for a, b in PAIRS], axis=1)
    columns = {
        "values": ((measured - known.mean(0)) / known.std(0)).astype("float32"),
        "ranges": (ranges + np.arange(MEASUREMENTS) * RANGES).astype("int32"),
        "pairs": (pairs + np.arange(len(PAIRS)) * RANGES**2).astype("int32"),
    }

    def part(rows: Any) -> Table:
        return {name: column[rows] for name, column in columns.items()}, labels[rows].astype("float32")[:, None]

    return part(train), part(test)


def build(learning_rate: float) -> keras.Model:
    layers = keras.layers
    values = keras.Input((MEASUREMENTS,), name="values")
    ranges = keras.Input((MEASUREMENTS,), dtype="int32", name="ranges")
    pairs = keras.Input((len(PAIRS),), dtype="int32", name="pairs")
    wide = [
        layers.Flatten()(layers.Embedding(MEASUREMENTS * RANGES, 1, embeddings_initializer="zeros")(ranges)),
        layers.Flatten()(layers.Embedding(len(PAIRS) * RANGES**2, 1, embeddings_initializer="zeros")(pairs)),
    ]
    deep = layers.Concatenate()([values, layers.Flatten()(layers.Embedding(MEASUREMENTS * RANGES, 4)(ranges))])
    deep = layers.Dense(16, activation="relu")(layers.Dense(32, activation="relu")(deep))
    score = layers.Dense(1, activation="sigmoid", kernel_regularizer=keras.regularizers.L2(1e-3))(
        layers.Concatenate()([*wide, deep])
    )
    model = keras.Model({"values": values, "ranges": ranges, "pairs": pairs}, score)
    metrics = ["accuracy", keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.Adam(learning_rate), "binary_crossentropy", metrics=metrics)
    return model


def train(epochs: int, global_batch: int, learning_rate: float, seed: int, callbacks: Sequence[Any] = ()) -> Any:
    """Train, and return the History."""
    keras.utils.set_random_seed(seed)
    (columns, labels), test = table()
    return elastic.fit(
        build(learning_rate),
        columns,
        labels,
        epochs=epochs,
        global_batch=global_batch,
        validation_data=test,
        callbacks=list(callbacks),
        seed=seed,
        verbose=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--global-batch", type=int, default=GLOBAL_BATCH, help="samples of a step, over all workers")
    parser.add_argument("--lr", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.global_batch, arguments.lr, arguments.seed)


if __name__ == "__main__":
    main()
