"""Running a model's own `train_step` without its effects: what the optimizer would apply is kept, draws differ by rank.

`train_step` is the user's place to change what a step computes, so it is called as it is. In an elastic step its gradients
are first summed over the members, and agreed, before an optimizer may see them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras.src.backend import random_seed_dtype

from ...errors import UsageError

_RANK_MIX = 0x9E3779B1  # odd, so that the multiples of two ranks differ in a 32-bit word


class Captured:
    """What an optimizer was asked to apply: gradients in the order of `variables`, None for unused ones."""

    def __init__(self, trained: Sequence[Any]) -> None:
        self.gradients: list[Any] = []
        self.variables: list[Any] = []
        self._trained = trained

    def take(self, gradients: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        if self.gradients:
            raise UsageError(
                "the model's train_step applies gradients twice: all gradients of a step are exchanged and agreed at once, "
                "so it may call optimizer.apply or optimizer.apply_gradients once"
            )
        self.gradients = list(gradients)
        self.variables = list(self._trained if trainable_variables is None else trainable_variables)


@contextlib.contextmanager
def capturing(optimizer: Any, trained: Sequence[Any]) -> Iterator[Captured]:
    """Within it, `optimizer.apply` and `apply_gradients` note what they are given and change nothing.

    Whoever assigns one of the `trained` variables past the optimizer gets `UsageError`: it would change ahead of the vote.
    """
    captured = Captured(trained)
    for variable in trained:
        object.__setattr__(variable, "assign", _refuse_assigning)
    # Past Keras's tracking of attributes, which is for what belongs to the optimizer's state.
    object.__setattr__(optimizer, "apply", captured.take)
    try:
        yield captured
    finally:
        object.__delattr__(optimizer, "apply")
        for variable in trained:
            object.__delattr__(variable, "assign")


def _refuse_assigning(*_: Any, **__: Any) -> None:
    raise UsageError(
        "the model's train_step (or a layer in it, such as SpectralNormalization) assigns a trained variable itself: nothing may"
        " change before the members agree on the step. Use the optimizer's clipping and EMA, a constraint on the weight, or a"
        " loop of your own (docs/tensorflow.md)"
    )


def stream_offset(rank: int) -> npt.NDArray[Any]:
    """What `random_stream_of` adds to the two words of a drawn seed; zero for rank 0, which draws what one worker would."""
    words = np.array([rank * _RANK_MIX % 2**32, 0], np.uint32)
    kind = np.dtype(random_seed_dtype())
    return words.view(kind) if kind.itemsize == words.itemsize else words.astype(kind)


@contextlib.contextmanager
def random_stream_of(offset: Any) -> Iterator[None]:
    """Within it, `offset`, a tensor of a rank's `stream_offset`, is added to what seed generators give.

    Their state moves as it does without, so that it stays equal on all members.
    """
    original = keras.random.SeedGenerator.next

    def next_of_rank(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return original(self, *arguments, **keywords) + offset

    keras.random.SeedGenerator.next = next_of_rank
    try:
        yield
    finally:
        keras.random.SeedGenerator.next = original
