"""A small convolutional network in Keras on scikit-learn's handwritten digits, on workers that may come and go.

    elastic-launch --min 1 --max 4 model_zoo/digits_keras/train.py
    python model_zoo/digits_keras/train.py

The second is the same job on one worker, without an agent. On Keras's torch backend: KERAS_BACKEND=torch in front of it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import elastic_launch.keras as elastic

EPOCHS, GLOBAL_BATCH, LEARNING_RATE = 15, 64, 5e-3


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """1,347 images and labels to train on and 450 to test on, the same ones in every process."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.25, stratify=labels, random_state=0)
    return (images[train], labels[train]), (images[test], labels[test])


def build(steps: int, learning_rate: float) -> keras.Model:
    """Two convolutions and two dense layers: 8 x 8 grey pixels to ten scores. The learning rate falls over `steps`."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, steps, alpha=0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(schedule), loss, metrics=["accuracy"])
    return model


def train(epochs: int, global_batch: int, learning_rate: float, seed: int, callbacks: Sequence[Any] = ()) -> Any:
    """Train, and return the History. The learning rate falls over EPOCHS epochs."""
    keras.utils.set_random_seed(seed)
    (images, labels), test = digits()
    steps = EPOCHS * math.ceil(len(labels) / global_batch)
    return elastic.fit(
        build(steps, learning_rate),
        images,
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
    parser.add_argument("--lr", type=float, default=LEARNING_RATE, help="learning rate at the first step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.global_batch, arguments.lr, arguments.seed)


if __name__ == "__main__":
    main()
