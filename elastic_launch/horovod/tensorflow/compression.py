"""What gradients are turned into for the way over the ring, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that is reduced, and what `decompress` needs."""
        raise NotImplementedError()

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError()


class NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating point numbers of 16 bits. The ring adds them up as 32 bits, and rounds once."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
