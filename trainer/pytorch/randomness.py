"""Torch's random generators, for one step of one rank."""

from __future__ import annotations

import torch


def seed_torch(value: int) -> None:
    """Seed torch's global generators on the CPU and, where it is in use, on the GPUs."""
    torch.default_generator.manual_seed(value)  # torch.manual_seed writes down a stack trace for each absent device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
