"""What a user's script may register under a name beside what any framework's may: modules, optimizers, tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...state import registering
from ...state.parts import Part
from .parts import ModelPart, OptimizerPart, TensorPart


def part_for(name: str, target: Any) -> tuple[Part, Any]:
    """The part for whatever a user registers, and what `register` returns: the object, or a Value that holds it."""
    if isinstance(target, torch.nn.Module):
        return ModelPart(name, target), target
    if isinstance(target, torch.optim.Optimizer):
        return OptimizerPart(name, target), target
    if isinstance(target, torch.Tensor):
        return TensorPart(name, target), target
    return registering.part_for(name, target)
