"""A TensorFlow loop of its own that proves what was trained on: a ledger, its losses, its state.

The ledger has an entry for each sample, of which a step changes those of its samples through an optimizer: after n epochs
each entry is -n if, and only if, each sample of each epoch was applied exactly once. Its gradients are indexed slices.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import elastic_launch as elastic

sys.path.append(str(Path(__file__).resolve().parents[2] / "system" / "scripts"))
from journal import Journal

SAMPLES, BATCH, FEATURES = 200, 32, 8


def weights(model: Any) -> float:
    """One number that every parameter has a part in."""
    return float(sum(np.abs(variable.numpy()).sum() for variable in model.trainable_variables))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--open-ended", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    journal = Journal(options.journal)
    assert "torch" not in sys.modules
    sys.modules["torch"] = None  # type: ignore[assignment]

    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, FEATURES))
    ledger = tf.Variable(np.zeros((SAMPLES, 1)), name="ledger")
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 2000), weight_decay=0.01)
    optimizer.build(model.trainable_variables)
    counter = keras.optimizers.SGD(1.0)
    counter.build([ledger])
    variables = {"ledger": ledger} | {variable.path: variable for variable in model.variables}
    job = elastic.join(variables=variables, optimizer=[optimizer, counter])
    seen = job.register("seen", {"epochs": 0})

    x = np.random.default_rng(7).normal(size=(SAMPLES, FEATURES))
    data = {"id": np.arange(SAMPLES), "x": x, "y": np.sin(x.sum(1, keepdims=True))}
    loader = job.loader(data, global_batch=BATCH, seed=3)

    def step(ids: Any, inputs: Any, targets: Any, total: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
            both = loss + tf.reduce_mean(tf.gather(ledger, ids)) * total
        gradients = job.average_gradients(tape.gradient(both, [ledger, *model.trainable_variables]))
        counter.apply_gradients([(gradients[0], ledger)])
        optimizer.apply_gradients(zip(gradients[1:], model.trainable_variables, strict=True))
        return loss

    if not options.eager:
        step = tf.function(step, reduce_retracing=True)
    job.on_change(lambda change: journal("change", **vars(change)))
    journal("ready", local_rank=journal.local_rank)
    for _ in job.epochs(10**9 if options.open_ended else options.epochs):
        for batch in loader:
            number = job.global_step + 1
            time.sleep(options.pause)
            with job.step() as block:
                total = tf.constant(float(loader.sampler.step_size()), tf.float64)
                loss = step(*(tf.constant(batch[name]) for name in ("id", "x", "y")), total)
                job.log(loss=loss)
            if not block.committed:
                journal("redo", step=number)
                continue
            # The loss was logged behind the vote: the metrics are those of the step before.
            if job.metrics:
                place = {"rank": job.rank, "generation": job.generation, "world_size": job.world_size}
                journal("step", step=number, loss=job.metrics["loss"], epoch=job.epoch, **place)
        if job.stopped:
            break
        seen["epochs"] += 1
        journal("epoch", epoch=job.epoch, weights=weights(model))
        means = job.evaluate(data, lambda part: {"loss": tf.reduce_mean((model(part["x"]) - part["y"]) ** 2)}, 64)
        journal("evaluated", epoch=job.epoch, **means)
        if options.open_ended and journal.finish_wanted():
            job.stop()
    journal(
        "end",
        counts=sorted(set(np.round(ledger.numpy()[:, 0], 6).tolist())),
        steps=job.global_step,
        samples=job.samples,
        seen=seen["epochs"],
        epochs=job.epoch + (1 if options.open_ended else 0),
        lr=float(np.asarray(optimizer.learning_rate)),
        weights=weights(model),
    )


main()
