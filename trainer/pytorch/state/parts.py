"""Torch's modules, optimizers and tensors as parts of a replica, which are received in place. See `trainer/state/parts.py`."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import StateMismatchError
from .modules import bare, check, named_buffers, named_parameters, with_extra_state
from .placing import Placer, Slot


class ModelPart:
    """A module: parameters, buffers, which parameters are trained, and what `get_extra_state` gives."""

    kind = "model"

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self.module = bare(module)
        check(name, self.module)

    def tree(self) -> Any:
        parameters = named_parameters(self.module)
        return {
            "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
            "buffers": {name: owner._buffers[key] for name, (owner, key) in named_buffers(self.module).items()},
            "frozen": [name for name, parameter in parameters.items() if not parameter.requires_grad],
            "extra": {name: module.get_extra_state() for name, module in with_extra_state(self.module).items()},
        }

    def hint(self) -> Any:
        return None

    def place(self, tree: Any, hint: Any, placer: Placer) -> None:
        parameters = named_parameters(self.module)
        for name, slot in tree["parameters"].items():
            live = parameters.get(name)
            if live is None or not slot.spec.fits(live):
                raise StateMismatchError(
                    f"{self.name} parameter {name!r} is {_what(live)} here and {slot.spec} in the job"
                )
            placer.use(slot, live)
        device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        buffers = named_buffers(self.module)
        for name, slot in tree["buffers"].items():
            owner, key = buffers.get(name, (None, ""))
            buffer = owner._buffers[key] if owner is not None else None
            placer.offer(slot, buffer, device if buffer is None else buffer.device)

    def load(self, tree: Any) -> None:
        parameters = named_parameters(self.module)
        for name, value in tree["parameters"].items():
            _put(value, parameters[name])
        self._load_buffers(tree["buffers"])
        frozen = set(tree["frozen"])
        for name, parameter in parameters.items():
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
        extra = with_extra_state(self.module)
        for name, value in tree["extra"].items():
            if name in extra:
                extra[name].set_extra_state(value)

    def _load_buffers(self, values: dict[str, torch.Tensor]) -> None:
        """What was not received into a live buffer takes its place: a lazily made one, or one of another size."""
        found = named_buffers(self.module)
        for name, value in values.items():
            path, _, key = name.rpartition(".")
            owner, key = found.get(name) or (self.module.get_submodule(path), key)
            live = owner._buffers.get(key)
            if live is None or not _same_memory(value, live):
                owner._buffers[key] = value
        for name in found.keys() - values.keys():
            owner, key = found[name]
            owner._buffers[key] = None


class OptimizerPart:
    """A torch.optim.Optimizer: what it has made for each parameter, and its groups' settings.

    The live `state` is used, not `state_dict()`, so that tensors are received in place. Empty states, which some
    optimizers leave behind by looking, do not count.
    """

    kind = "optimizer"

    def __init__(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.name = name
        self.optimizer = optimizer

    def parameters(self) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        """All parameters with their groups; their positions are their numbers in the tree."""
        return [(parameter, group) for group in self.optimizer.param_groups for parameter in group["params"]]

    def tree(self) -> Any:
        state = self.optimizer.state
        numbered = [parameter for parameter, _ in self.parameters()]
        known = {id(parameter) for parameter in numbered}
        return {
            "state": {i: dict(state[p]) for i, p in enumerate(numbered) if state.get(p)},
            "other": {k: v for k, v in state.items() if id(k) not in known and not isinstance(k, torch.Tensor)},
            "groups": [
                {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
            ],
        }

    def hint(self) -> Any:
        return [parameter.device.type for parameter, _ in self.parameters()]

    def place(self, tree: Any, hint: Any, placer: Placer) -> None:
        parameters = self.parameters()
        if len(tree["groups"]) != len(self.optimizer.param_groups) or len(hint) != len(parameters):
            raise StateMismatchError(
                f"optimizer {self.name!r} has {len(hint)} parameters in {len(tree['groups'])} groups in the job "
                f"and {len(parameters)} in {len(self.optimizer.param_groups)} here"
            )
        cpu = torch.device("cpu")
        for number, entries in tree["state"].items():
            parameter, _ = parameters[number]
            live = self.optimizer.state.get(parameter, {})
            for key, entry in entries.items():
                beside = _device_types(entry) <= {hint[number]}  # it lies where its parameter lies, also on the sender
                placer.offer_tree(entry, live.get(key), parameter.device if beside else cpu)
        for theirs, mine in zip(tree["groups"], self.optimizer.param_groups, strict=True):
            placer.offer_tree(theirs, mine, mine["params"][0].device if _device_types(theirs) - {"cpu"} else cpu)

    def load(self, tree: Any) -> None:
        state = self.optimizer.state
        for number, (parameter, _) in enumerate(self.parameters()):
            if number in tree["state"]:
                state[parameter] = tree["state"][number]
            else:
                state.pop(parameter, None)
        others: dict[Any, Any] = state  # beside those by parameter, some optimizers keep entries of their own
        for key in [key for key in others if not isinstance(key, torch.Tensor)]:
            del others[key]
        others.update(tree["other"])
        for theirs, mine in zip(tree["groups"], self.optimizer.param_groups, strict=True):
            for key in [key for key in mine if key != "params" and key not in theirs]:
                del mine[key]
            mine.update(theirs)


class TensorPart:
    """A tensor that the user has registered; it is received in place."""

    kind = "tensor"

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor = tensor

    def tree(self) -> Any:
        return self.tensor.detach()

    def hint(self) -> Any:
        return None

    def place(self, tree: Any, hint: Any, placer: Placer) -> None:
        if not isinstance(tree, Slot) or not tree.spec.fits(self.tensor):
            raise StateMismatchError(f"tensor {self.name!r} is {_what(self.tensor)} here and {_what(tree)} in the job")
        placer.use(tree, self.tensor)

    def load(self, tree: Any) -> None:
        _put(tree, self.tensor)


def _device_types(tree: Any) -> set[str]:
    if isinstance(tree, Slot):
        return {tree.spec.device}
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return set().union(*(_device_types(item) for item in items))


def _same_memory(value: torch.Tensor, live: torch.Tensor) -> bool:
    return value.data_ptr() == live.data_ptr() and value.shape == live.shape and value.stride() == live.stride()


def _put(value: torch.Tensor, live: torch.Tensor) -> None:
    """Nothing to do where it was received in place."""
    if not _same_memory(value, live):
        with torch.no_grad():
            live.copy_(value)


def _what(thing: object) -> str:
    if isinstance(thing, Slot):
        return str(thing.spec)
    if isinstance(thing, torch.Tensor):
        return f"{tuple(thing.shape)} {str(thing.dtype)[6:]}"
    return "missing" if thing is None else type(thing).__name__
