"""What fit does not take is refused before the worker joins its job, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras")

import elastic_launch.keras as elastic  # noqa: E402
from elastic_launch import UsageError  # noqa: E402

from .models import LABELS, TARGETS, X, classifier  # noqa: E402

tf = pytest.importorskip("tensorflow")


def with_loss(loss: Any) -> Any:
    model = classifier()
    model.compile("sgd", loss)
    return model


def with_two_optimizers() -> Any:
    model = classifier()
    model.other_optimizer = keras.optimizers.SGD()
    return model


class Clipping(keras.Sequential):  # type: ignore[misc]
    def train_step(self, *arguments: Any, **options: Any) -> Any:
        logs = super().train_step(*arguments, **options)
        self.trainable_variables[0].assign(keras.ops.clip(self.trainable_variables[0], -0.1, 0.1))
        return logs


def that_clips() -> Any:
    model = Clipping([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, LABELS))


@pytest.mark.parametrize(
    ("model", "data", "options", "said"),
    [
        (object, (X, LABELS), {}, "not a keras.Model"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), (X, LABELS), {}, "call model.compile"),
        (lambda: with_loss(keras.losses.MeanSquaredError(reduction="sum")), (X, TARGETS), {}, "sum_over_batch_size"),
        (that_clips, (X, TARGETS), {}, "assigns a trained variable itself"),
        (with_two_optimizers, (X, LABELS), {}, "a second optimizer, 'other_optimizer'"),
        (classifier, (iter([X]),), {}, "a generator cannot be rewound"),
        (classifier, ((each for each in [X]),), {}, "a generator cannot be rewound"),
        (classifier, (X, LABELS), {"shuffle": "batch"}, "give True or False"),
        (classifier, (lambda: dataset().shuffle(9).batch(8),), {}, r"give .shuffle\(..., seed=...\)"),
        (classifier, (lambda: dataset().batch(8),), {"global_batch": 8}, "leave global_batch out"),
        (classifier, (lambda: dataset(),), {}, r"end it with .batch\(...\)"),
        (classifier, (lambda: dataset().batch(8).repeat(),), {}, "say steps_per_epoch="),
        (
            classifier,
            (X, LABELS),
            {"validation_data": lambda: dataset().shuffle(9, seed=1).batch(8)},
            "reshuffle_each_iteration=False",
        ),
    ],
)
def test_it_is_refused(model: Any, data: Any, options: dict[str, Any], said: str) -> None:
    tf.random.set_seed(None)
    data = [each() if callable(each) else each for each in data]
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(UsageError, match=said):
        elastic.fit(model(), *data, **options)
    assert elastic.current_job() is None


def test_a_callback_that_restores_the_state_by_itself_is_refused(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="checkpoint=directory"):
        elastic.fit(classifier(), X, LABELS, callbacks=[keras.callbacks.BackupAndRestore(tmp_path)])
    assert elastic.current_job() is None
