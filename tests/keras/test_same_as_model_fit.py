"""On one worker, fit is model.fit: the same weights, History, callbacks and logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

keras = pytest.importorskip("keras")
import numpy as np  # noqa: E402

import elastic_launch.keras as elastic  # noqa: E402

from .models import LABELS, MODELS, SAMPLES, TARGETS, WEIGHTS, X, classifier, embedding  # noqa: E402

HOOKS = [
    f"{when}_{edge}" for when in ("train", "epoch", "train_batch", "test", "test_batch") for edge in ("begin", "end")
]
ON_TORCH = keras.backend.backend() == "torch"
needs_tensorflow = pytest.mark.skipif(ON_TORCH, reason="tf.data is TensorFlow's")


class Recording(keras.callbacks.Callback):
    """What was called, with what."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any, dict[str, float]]] = []


def _recorder(hook: str) -> Any:
    def record(self: Recording, *arguments: Any, logs: Any = None) -> None:
        numbered = "batch" in hook or "epoch" in hook
        number, given = (arguments[0], arguments[1:]) if numbered else (None, arguments)
        self.calls.append((hook, number, dict(given[0] if given and given[0] else logs or {})))

    return record


for _hook in HOOKS:
    setattr(Recording, f"on_{_hook}", _recorder(_hook))


pytestmark = pytest.mark.usefixtures("job_of_its_own")


def fit_both(
    make: Any,
    x: Any,
    y: Any,
    batch: int | None = 8,
    callbacks: Any = lambda: [],
    uncounted: bool = False,
    **keywords: Any,
) -> list[Any]:
    """Fit by model.fit and by ours from the same start, and compare all that can be seen; returns both models."""
    keywords = {"epochs": 3, "verbose": 0, "shuffle": False, **keywords}
    seen = []
    for is_ours in (False, True):
        keras.utils.set_random_seed(3)
        model, recording = make(), Recording()
        given = (x(), None) if callable(x) else (x, y)
        told = [*callbacks(), recording]
        if is_ours:
            history = elastic.fit(model, *given, global_batch=batch, callbacks=told, **keywords)
        else:
            history = model.fit(*given, batch_size=batch, callbacks=told, **keywords)
        seen.append((model, history, recording.calls))
    (theirs, their_history, their_calls), (ours, our_history, our_calls) = seen
    if uncounted:  # model.fit begins a batch more in its first epoch, since only then it finds out that there is none
        their_calls, our_calls = (
            [each for each in calls if each[0] != "train_batch_begin"] for calls in (their_calls, our_calls)
        )
    assert [call[:2] for call in our_calls] == [call[:2] for call in their_calls]
    for (hook, number, found), (_, _, expected) in zip(our_calls, their_calls, strict=True):
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6, nan_ok=True), (hook, number)
    assert our_history.epoch == their_history.epoch
    assert our_history.history.keys() == their_history.history.keys()
    for name, values in their_history.history.items():
        np.testing.assert_allclose(our_history.history[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
    for found, expected in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=2e-5, atol=1e-6, err_msg=expected.path)
    if uncounted:
        return [theirs, ours]  # and counts it in its optimizer
    for found, expected in zip(ours.optimizer.variables, theirs.optimizer.variables, strict=True):
        np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=1e-6, err_msg=expected.path)
    assert ours.stop_training == theirs.stop_training
    return [theirs, ours]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_ends_with_the_same_weights_history_and_logs(name: str) -> None:
    make, x, y = MODELS[name]
    fit_both(make, x, y, validation_split=0.2, validation_batch_size=5)


def test_sample_weights_weighted_metrics_and_weighted_validation() -> None:
    validation = (X[:20], LABELS[:20], WEIGHTS[:20])

    def make() -> Any:
        return classifier(weighted_metrics=["accuracy"])

    fit_both(make, X, LABELS, sample_weight=WEIGHTS, validation_data=validation, validation_freq=2)


def test_class_weights_and_an_epoch_to_begin_with() -> None:
    fit_both(classifier, X, LABELS, class_weight={0: 2.0, 2: 0.5}, epochs=5, initial_epoch=3)


def test_fewer_steps_than_the_data_has_go_on_in_the_next_epoch() -> None:
    fit_both(classifier, X, LABELS, steps_per_epoch=5, epochs=3)


def test_validation_steps_and_chosen_epochs() -> None:
    fit_both(classifier, X, LABELS, validation_data=(X, LABELS), validation_steps=2, validation_freq=[1, 3])


def test_early_stopping_restores_the_best_weights() -> None:
    def told() -> list[Any]:
        return [keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.2, restore_best_weights=True)]

    _, ours = fit_both(classifier, X, LABELS, callbacks=told, epochs=9)
    assert ours.stop_training


def test_learning_rates_follow_callbacks() -> None:
    def told() -> list[Any]:
        callbacks = keras.callbacks
        schedule = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
        return [schedule, callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1.0)]

    fit_both(classifier, X, LABELS, callbacks=told, epochs=5)


def test_a_loss_that_is_nan_ends_the_epoch_at_once() -> None:
    broken = TARGETS.copy()
    broken[20] = np.nan

    def make() -> Any:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    fit_both(make, X, broken, callbacks=lambda: [keras.callbacks.TerminateOnNaN()])


def test_checkpoints_and_logs_are_written_as_by_model_fit(tmp_path: Path) -> None:
    files: list[Path] = []

    def told() -> list[Any]:
        folder = tmp_path / str(len(files))
        folder.mkdir()
        files.append(folder)
        best = keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True
        )
        return [best, keras.callbacks.CSVLogger(folder / "log.csv")]

    fit_both(classifier, X, LABELS, callbacks=told, validation_split=0.2)
    theirs, ours = ((folder / "log.csv").read_text().splitlines() for folder in files)
    assert len(theirs) == len(ours) == 4 and theirs[0] == ours[0]
    assert all((folder / "best.weights.h5").exists() for folder in files)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * 8, index * 8 + 8)
        return X[rows], LABELS[rows]


def test_a_py_dataset_gives_global_batches() -> None:
    fit_both(classifier, Batches, None, batch=None, class_weight={1: 3.0}, validation_data=Batches())


def dataset(batch: int = 8, shuffled: bool = True) -> Any:
    import tensorflow as tf

    made = tf.data.Dataset.from_tensor_slices((X, LABELS))
    # That each iteration has an order of its own is tested elsewhere: model.fit makes some iterators that it does not use.
    return (made.shuffle(SAMPLES, seed=4, reshuffle_each_iteration=False) if shuffled else made).batch(batch)


@needs_tensorflow
def test_a_dataset_that_shuffles_gives_its_batches_in_the_same_order() -> None:
    fit_both(
        classifier,
        dataset,
        None,
        batch=None,
        validation_data=dataset(9, shuffled=False),
        class_weight={0: 2.0, 1: 1.0, 2: 0.5},
    )


@needs_tensorflow
def test_an_endless_dataset_goes_on_from_epoch_to_epoch() -> None:
    fit_both(classifier, lambda: dataset().repeat(), None, batch=None, steps_per_epoch=4, epochs=4)


@needs_tensorflow
def test_a_dataset_that_does_not_know_its_length_is_served_to_its_end() -> None:
    fit_both(classifier, lambda: dataset().filter(lambda x, y: True), None, batch=None, uncounted=True)


@needs_tensorflow
def test_ragged_rows_are_served() -> None:
    import tensorflow as tf

    rows = tf.ragged.constant([[1, 2], [3], [], [4, 5, 6], [7, 8], [1]], dtype=tf.int32)
    data = (
        tf.data.Dataset.from_tensor_slices((rows, TARGETS[:6]))
        .ragged_batch(2)
        .map(lambda x, y: (x.to_tensor(shape=(None, 4)), y))
    )
    fit_both(embedding, lambda: data, None, batch=None)


@pytest.mark.skipif(ON_TORCH, reason="this is what runs it")
@pytest.mark.parametrize(
    "chosen",
    ["batch or two or early", pytest.param("not torch_backend", marks=[pytest.mark.soak, pytest.mark.timeout(400)])],
)
def test_the_same_holds_on_the_torch_backend_without_tensorflow(chosen: str) -> None:
    code = f"""
import sys
import keras, numpy, pytest
import elastic_launch.keras as elastic
from elastic_launch.trainer import joining
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
elastic.fit(model, numpy.ones((4, 2)), numpy.ones((4, 1)), verbose=0)
assert "tensorflow" not in sys.modules
joining._job = joining._control = None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {__file__!r}, "-k", {chosen!r}]))
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, timeout=390)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
