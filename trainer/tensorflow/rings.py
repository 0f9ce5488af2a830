"""Which ring TensorFlow's jobs have: our own sockets, and on GPUs NCCL beside them, where PyTorch is there to bring it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

import tensorflow as tf

from ..ring.sockets import SocketRing

if TYPE_CHECKING:
    from ..ring.ring import MakeRing


def ring_maker() -> MakeRing:
    """PyTorch is imported only where its NCCL will be used, which an import statement could not say."""
    if not tf.config.get_visible_devices("GPU") or importlib.util.find_spec("torch") is None:
        return SocketRing
    torch = importlib.import_module("torch")
    if not (torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return SocketRing
    beside = importlib.import_module("..pytorch.ring.beside", __package__)
    made: MakeRing = beside.SocketRingWithNccl
    return made
