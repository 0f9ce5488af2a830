"""The model that users call: one wrapper that stays, around a `DistributedDataParallel` that is made anew per generation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ...errors import UsageError
from .ring.ring import TorchRing


class StepContext(Protocol):
    """What the wrapper asks of the job."""

    def training_ring(self) -> TorchRing | None:
        """The ring to reduce gradients over; None outside a step and in a ring of one."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why backward may not be called on the model's output; None if it may."""
        ...

    @property
    def gradient_weight(self) -> float:
        """This member's share of the global batch."""
        ...

    @property
    def output_scale(self) -> float:
        """What the gradient of the current micro-batch is multiplied with."""
        ...


class ElasticModel(torch.nn.Module):
    """Calls go to the user's module, through DDP inside a step. Everything else is the module's: names, state, attributes."""

    def __init__(self, module: torch.nn.Module, context: StepContext, ddp_options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.__dict__["_context"] = context
        self.__dict__["_ddp_options"] = ddp_options
        self.__dict__["_ddp"] = None
        self.__dict__["_ddp_ring"] = None
        self.__dict__["_trains"] = any(parameter.requires_grad for parameter in module.parameters())

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        context: StepContext = self.__dict__["_context"]
        ring = context.training_ring() if torch.is_grad_enabled() else None
        if ring is None or not self.__dict__["_trains"]:
            output = self.module(*arguments, **keywords)
        else:
            output = self._ddp_over(ring)(*arguments, **keywords)
        if torch.is_grad_enabled() and context.refusal is not None:
            output = _through(_RefuseBackward, output, context.refusal)
        if torch.is_grad_enabled() and context.output_scale != 1.0:
            output = _through(_ScaleGradient, output, context.output_scale)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside it, backward only accumulates gradients; the first backward after it reduces them."""
        context: StepContext = self.__dict__["_context"]
        ring = context.training_ring()
        if ring is None or not self.__dict__["_trains"]:
            yield
            return
        with self._ddp_over(ring).no_sync():
            yield

    def forget_ring(self) -> None:
        """Drop the DDP of a generation that has ended, with the hooks that it put on the parameters."""
        self.__dict__["_ddp"] = self.__dict__["_ddp_ring"] = None

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module.state_dict(*arguments, **keywords)

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module.load_state_dict(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _ddp_over(self, ring: TorchRing) -> DistributedDataParallel:
        if self.__dict__["_ddp_ring"] is not ring:
            self.forget_ring()
            # Gradients that lie in the buckets save a pass over them each step, which pays for the weighting in `_reduce`.
            # What a broken reduction leaves in them is dropped with them: an unwound step sets every gradient to None.
            ddp = DistributedDataParallel(
                self.module, init_sync=False, gradient_as_bucket_view=True, **self.__dict__["_ddp_options"]
            )
            ddp.register_comm_hook((self.__dict__["_context"], ring), _reduce)
            self.__dict__["_ddp"], self.__dict__["_ddp_ring"] = ddp, ring
        ddp = self.__dict__["_ddp"]
        ddp.training = self.training
        return ddp  # type: ignore[no-any-return]


def _reduce(state: tuple[StepContext, TorchRing], bucket: GradBucket) -> Future[torch.Tensor]:
    """Weight this member's gradients with its share of the samples and sum them over the ring."""
    context, ring = state
    buffer = bucket.buffer()
    weight = context.gradient_weight
    if weight == 0.0:
        buffer.zero_()  # set, not multiplied: the sample that stood in may have given anything, NaN too
    else:
        buffer.mul_(weight)
    return ring.start_sum(buffer)


_reduce.__annotations__ = {}  # DDP compares them with classes, and these are strings


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor, scale: float) -> torch.Tensor:
        context.scale = scale
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * context.scale, None


class _RefuseBackward(torch.autograd.Function):
    """In a ring of one too, where no collective would refuse it."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, reason: str) -> torch.Tensor:
        context.reason = reason
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        raise UsageError(context.reason)


def _through(function: type[torch.autograd.Function], output: Any, argument: Any) -> Any:
    """`output` with each of its differentiable tensors sent through `function`."""
    from torch.utils._pytree import tree_map_only

    def pass_on(value: torch.Tensor) -> Any:
        return function.apply(value, argument) if value.requires_grad else value  # type: ignore[no-untyped-call]

    return tree_map_only(torch.Tensor, pass_on, output)
