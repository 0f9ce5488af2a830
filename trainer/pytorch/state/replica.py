"""The replica of a torch job: modules, optimizers and tensors, received straight into the memory where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ring.ring import Ring
from ...state.parts import Part, Stateful
from ...state.replica import Replica
from ...state.structure import Model, Optimizer, Structure, Tensor
from .digest import digest_of
from .memory import TensorSpec
from .modules import named_parameters, saved_buffers
from .parts import ModelPart, OptimizerPart
from .placing import Placer
from .registering import part_for
from .tensor_payload import TensorPayload


class TorchReplica(Replica):
    """See `Replica`; tensors are torch's."""

    def add_model(self, name: str, module: torch.nn.Module) -> None:
        self._add(name, ModelPart(name, module), structural=True)

    def add_optimizer(self, name: str, optimizer: torch.optim.Optimizer | Stateful) -> None:
        """An optimizer that is no torch.optim.Optimizer is copied by value, as any other object."""
        if isinstance(optimizer, torch.optim.Optimizer):
            self._add(name, OptimizerPart(name, optimizer), structural=True)
        else:
            self.add(name, optimizer)

    def structure(self) -> Structure:
        models = {name: part for name, part in self._structural.items() if isinstance(part, ModelPart)}
        names: dict[int, str] = {}
        for name, part in models.items():
            prefix = f"{name}." if len(models) > 1 else ""
            for path, parameter in named_parameters(part.module).items():
                names.setdefault(id(parameter), prefix + path)
        return Structure(
            {
                name: Model(
                    {path: _tensor(value) for path, value in named_parameters(part.module).items()},
                    {path: _tensor(value) for path, value in saved_buffers(part.module).items()},
                )
                for name, part in models.items()
            },
            {
                name: Optimizer(
                    type(part.optimizer).__qualname__,
                    [[names.get(id(p), "") for p in group["params"]] for group in part.optimizer.param_groups],
                )
                for name, part in self._structural.items()
                if isinstance(part, OptimizerPart)
            },
        )

    def share_buffers(self, ring: Ring, lead: int) -> None:
        if ring.world_size == 1:
            return
        from ..ring.ring import TorchRing

        assert isinstance(ring, TorchRing)
        with torch.no_grad():
            for buffer in self.buffers():
                shared = buffer.detach().cpu().contiguous()
                ring.broadcast(shared, lead)
                if ring.rank != lead:
                    buffer.copy_(shared)

    def buffers(self) -> list[torch.Tensor]:
        """The live buffers of the models, the same on every member in number, order and kind, also where a model is
        not registered yet."""
        found: list[torch.Tensor] = []
        for _, part in self._parts():
            if part.kind == ModelPart.kind:
                found += part.tree()["buffers"].values()
        return found

    def models(self) -> list[torch.nn.Module]:
        """The registered modules without their wrappers."""
        return [part.module for _, part in self._parts() if isinstance(part, ModelPart)]

    def _part_for(self, name: str, target: Any) -> tuple[Part, Any]:
        return part_for(name, target)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def _spec(self, tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec.of(tensor)

    def _spec_from_plain(self, plain: Any) -> TensorSpec:
        return TensorSpec.from_plain(plain)

    def _room(self, tensors: list[torch.Tensor], specs: Sequence[Any], receiving: bool) -> TensorPayload:
        return TensorPayload(tensors, specs, receiving)

    def _placer(self, specs: Sequence[Any]) -> Placer:
        return Placer(specs)

    def _digest(self, meta: bytes, tensors: list[torch.Tensor]) -> str:
        return digest_of(meta, tensors)

    def _fill(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        tensor.detach().copy_(value)


def _tensor(value: torch.Tensor) -> Tensor:
    return Tensor(list(value.shape), str(value.dtype)[6:])
