"""The collectives as steps that a gradient goes back through."""

from __future__ import annotations

from typing import Any

import torch

from .. import world
from ..collectives import Average, Sum
from . import starting


def _mean(gradient: torch.Tensor, process_set: Any) -> torch.Tensor:
    return reduced(gradient, None, Average, 1.0, 1.0, process_set)


def reduced(
    tensor: torch.Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: Any
) -> torch.Tensor:
    output = torch.empty_like(tensor, requires_grad=False)
    result: torch.Tensor = starting.reduce(tensor, output, name, op, prescale, postscale, process_set).wait()
    return result


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, op: Any, prescale: Any, postscale: Any, process_set: Any) -> Any:
        ctx.how = (op, prescale, postscale, process_set)
        return reduced(tensor, name, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op, prescale, postscale, process_set = ctx.how
        return reduced(gradients[0], None, op, prescale, postscale, process_set), None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, op: Any, prescale: Any, postscale: Any, process_set: Any, *tensors: Any) -> Any:
        ctx.how = (op, prescale, postscale, process_set)
        outputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
        return starting.reduce_all(tensors, outputs, name, op, prescale, postscale, process_set).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        outputs = [torch.empty_like(gradient) for gradient in gradients]
        reduced_gradients = starting.reduce_all(gradients, outputs, None, *ctx.how).wait()
        return (None, None, None, None, None, *reduced_gradients)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, process_set: Any) -> Any:
        ctx.rows, ctx.process_set = (tensor.shape[0] if tensor.dim() else 0), process_set
        return starting.gather(tensor, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        mean = _mean(gradients[0], ctx.process_set)
        rows = starting.gather(torch.tensor([ctx.rows]), None, ctx.process_set).wait()
        start = int(rows[: world.current().place.rank].sum())
        return mean.narrow(0, start, ctx.rows), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: Any, name: Any, process_set: Any) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        output = torch.empty_like(tensor, requires_grad=False)
        return starting.give(tensor, output, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        mean = _mean(gradients[0], ctx.process_set)
        return (mean if world.current().place.rank == ctx.root_rank else mean * 0), None, None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: Any, process_set: Any) -> Any:
        output, received = starting.exchange(tensor, splits, name, process_set).wait()
        ctx.received, ctx.process_set = received, process_set
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back, _ = starting.exchange(gradients[0], ctx.received, None, ctx.process_set).wait()
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, name: Any, op: Any, process_set: Any, prescale: Any, postscale: Any) -> Any:
        ctx.factor = prescale * postscale * (world.current().place.size if op == Sum else 1)
        ctx.process_set = process_set
        return starting.scatter(tensor, name, op, process_set, prescale, postscale).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back = starting.gather(gradients[0] * ctx.factor, None, ctx.process_set).wait()
        return back, None, None, None, None, None
