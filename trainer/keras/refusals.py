"""What fit does not train, each refused with the way out."""

from __future__ import annotations

import types
from typing import Any

import keras

from ...errors import UsageError


def check_model(model: Any) -> None:
    """Raise `UsageError` for what is no compiled model of Keras 3, or cannot be trained by members that share a batch."""
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        if type(model).__module__.startswith("tf_keras"):
            raise UsageError(f"the model is a {kind}: build it with keras 3 (`import keras`), not with tf_keras")
        raise UsageError(f"the model is a {kind}, not a keras.Model")
    if not model.compiled:
        raise UsageError("the model is not compiled: call model.compile(optimizer=..., loss=...) before fit")
    if model.optimizer is None:
        raise UsageError("the model is compiled without an optimizer: give model.compile one")
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and value is not model.optimizer:
            raise UsageError(
                f"the model has a second optimizer, {name!r}: a step's gradients are exchanged and agreed at once, for "
                "model.optimizer alone. Train with a loop of your own and job.average_gradients"
            )
    for loss in _losses(model):
        reduction = getattr(loss, "reduction", None)
        if reduction in ("sum", "none"):
            raise UsageError(
                f"the loss {loss.name!r} has reduction={reduction!r}: members weight their gradients by samples, which is "
                "right for means. Use reduction='sum_over_batch_size' and scale loss_weights or the learning rate"
            )


def check_variables(model: Any) -> None:
    """Raise `UsageError` for trainable variables that cannot be updated from a sum of gradients."""
    for variable in model.trainable_variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise UsageError(
                f"variable {variable.path!r} takes its gradient for its value (float8 scales): such models are not supported"
            )


def check_data(data: Any) -> None:
    """Raise `UsageError` for data that cannot be served again from a position."""
    if isinstance(data, types.GeneratorType) or (hasattr(data, "__next__") and not hasattr(data, "__getitem__")):
        raise UsageError(
            "a generator cannot be rewound, and a worker that joins cannot skip to the job's position in it: give arrays, a "
            "keras.utils.PyDataset, or a tf.data.Dataset (from_generator makes one, if the function gives the same batches "
            "each time)"
        )
    for parent in type(data).__mro__:
        if parent.__module__.startswith("torch.utils.data") and parent.__name__ == "DataLoader":
            raise UsageError(
                "a torch DataLoader shuffles in each process by itself: give arrays or tensors, or a keras.utils.PyDataset "
                "around the data set"
            )
        if parent.__module__.partition(".")[0] == "grain":
            raise UsageError(
                "grain data sets are not supported: give arrays, a keras.utils.PyDataset or a tf.data.Dataset"
            )


def _losses(model: Any) -> list[Any]:
    return [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
