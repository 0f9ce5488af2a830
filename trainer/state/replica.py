"""The replica: everything of a worker that must be equal on all members, as one thing to compare and to copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import xxhash

from ...errors import StateMismatchError, UsageError
from . import tree as trees
from .digest import digest_of
from .memory import TensorSpec
from .modules import named_parameters, saved_buffers
from .parts import ModelPart, OptimizerPart, Part, PendingPart, Stateful, ValuePart
from .placing import Placer
from .registering import part_for
from .structure import Model, Optimizer, Structure, Tensor
from .tensor_payload import TensorPayload

_FORMAT = 1


class Image:
    """A replica's state at one moment: live references to its tensors, and all the rest as bytes.

    It holds good until the next step changes the tensors. `layout` tells whether two images' payloads are laid out in
    the same way, so that parts of either can be taken.
    """

    def __init__(self, meta: bytes, tensors: list[torch.Tensor], specs: list[TensorSpec]) -> None:
        self.meta = meta
        self.tensors = tensors
        self.specs = specs
        self.layout = xxhash.xxh3_128_digest(trees.pack([[s.shape, s.dtype, s.order] for s in specs]))
        self.nbytes = sum(spec.nbytes for spec in specs)

    def payload(self) -> TensorPayload:
        """The tensors' bytes, to send or to write. Only tensors that are not dense are copied for it."""
        return TensorPayload(self.tensors, self.specs)


class Incoming:
    """A state that is being received. `tensors` are in the sender's order, live ones wherever the replica has them.

    From its first received byte to the end of `commit` the replica is neither the old nor the new state.
    """

    def __init__(
        self, tensors: list[torch.Tensor], specs: list[TensorSpec], commit: Callable[[list[torch.Tensor]], None]
    ) -> None:
        self.tensors = tensors
        self.specs = specs
        self.nbytes = sum(spec.nbytes for spec in specs)
        self._commit = commit
        self._payload: TensorPayload | None = None

    def payload(self) -> TensorPayload:
        """Where to receive the bytes of the sender's payload."""
        if self._payload is None:
            self._payload = TensorPayload(self.tensors, self.specs, receiving=True)
        return self._payload

    def commit(self) -> None:
        """After the payload is there: makes it the replica's state. StateMismatchError if a part does not take its."""
        if self._payload is not None:
            self._payload.finish()
        self._commit(self.tensors)


class Replica:
    """The replicated things by name. Models and optimizers make up its structure; other things may come at any time.

    Not thread-safe: one thread registers, captures and receives.
    """

    def __init__(self) -> None:
        self._structural: dict[str, Part] = {}
        self._others: dict[str, Part] = {}
        self._pending: dict[str, PendingPart] = {}

    def add_model(self, name: str, module: torch.nn.Module) -> None:
        self._add(name, ModelPart(name, module), structural=True)

    def add_optimizer(self, name: str, optimizer: torch.optim.Optimizer | Stateful) -> None:
        """An optimizer that is no torch.optim.Optimizer is copied by value, as any other object."""
        if isinstance(optimizer, torch.optim.Optimizer):
            self._add(name, OptimizerPart(name, optimizer), structural=True)
        else:
            self.add(name, optimizer)

    def add(self, name: str, target: Stateful) -> None:
        """Anything with state_dict and load_state_dict. If the job's state for `name` came earlier, it is loaded."""
        if not (hasattr(target, "state_dict") and hasattr(target, "load_state_dict")):
            raise UsageError(f"{name!r} of type {type(target).__qualname__} has no state_dict and load_state_dict")
        self.register(name, target)

    def add_value(self, name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        """A value that `get` reads and `put` sets: plain data, or anything that pickles."""
        self._add(name, ValuePart(name, get, put))

    def register(self, name: str, target: Any) -> Any:
        """Whatever a user's script registers. Returns `target`, except for a value that cannot be changed in place
        (a number, a text, None): then a `Value` that holds it, and whose `value` is replicated."""
        part, returned = part_for(name, target)
        self._add(name, part)
        return returned

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

    def capture(self) -> Image:
        """UsageError, with its name, for something that cannot be serialised."""
        encoder = trees.Encoder(_is_tensor)
        entries = [[name, part.kind, _encode(encoder, name, part), part.hint()] for name, part in self._parts()]
        specs = [TensorSpec.of(tensor) for tensor in encoder.tensors]
        return Image(trees.pack([_FORMAT, entries, specs]), encoder.tensors, specs)

    def prepare(self, meta: bytes) -> Incoming:
        """Gets ready to receive: makes the tensors that are missing. StateMismatchError if the state does not fit."""
        version, entries, plain_specs = trees.unpack(meta)
        if version != _FORMAT:
            raise StateMismatchError(f"the state has format {version}, this version reads {_FORMAT}")
        specs = [TensorSpec.from_plain(plain) for plain in plain_specs]
        placer = Placer(specs)
        known = {**self._structural, **self._others}
        for name in self._structural.keys() - {name for name, *_ in entries}:
            raise StateMismatchError(f"{known[name].kind} {name!r} is here and not in the job")
        for name, kind, node, hint in entries:
            if name in known:
                _place(name, known[name], kind, node, hint, placer)
        return Incoming(placer.tensors(), specs, lambda tensors: self._load(entries, tensors))

    def digest(self) -> str:
        """Equal on two replicas if and only if their state is bitwise equal. Reads all of it (about 0.15 s/GB)."""
        encoder = trees.Encoder(_is_tensor, canonical=True)
        entries = [[name, _encode(encoder, name, part)] for name, part in self._parts()]
        return digest_of(trees.pack(entries), encoder.tensors)

    def digests(self) -> dict[str, str]:
        """A digest as `digest` gives, of each part by its name: says where two replicas differ."""
        found = {}
        for name, part in self._parts():
            encoder = trees.Encoder(_is_tensor, canonical=True)
            node = _encode(encoder, name, part)
            found[name] = digest_of(trees.pack(node), encoder.tensors)
        return found

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

    def _parts(self) -> list[tuple[str, Part]]:
        """In an order that does not depend on when something was registered, so that it is the same on all members."""
        parts: dict[str, Part] = {**self._structural, **self._others, **self._pending}
        return sorted(parts.items())

    def _add(self, name: str, part: Part, structural: bool = False) -> None:
        if name in self._structural or name in self._others:
            raise UsageError(f"something is registered as {name!r} already: names must be different")
        _encode(trees.Encoder(_is_tensor), name, part)  # what cannot be replicated is refused here, not at a join
        pending = self._pending.get(name)
        if pending is not None:
            _hand_over(name, pending, part)
            del self._pending[name]
        (self._structural if structural else self._others)[name] = part

    def _load(self, entries: list[Any], tensors: list[torch.Tensor]) -> None:
        sent = {name: (kind, node, hint) for name, kind, node, hint in entries}
        for name in [*self._structural, *self._others]:  # in the order of registration: a scheduler after its optimizer
            if name in sent:
                _, node, _ = sent.pop(name)
                part = self._structural.get(name) or self._others[name]
                part.load(_decode(name, node, tensors.__getitem__))
        self._pending = {
            name: PendingPart(kind, _decode(name, node, tensors.__getitem__), hint)
            for name, (kind, node, hint) in sent.items()
        }


def _tensor(value: torch.Tensor) -> Tensor:
    return Tensor(list(value.shape), str(value.dtype)[6:])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _encode(encoder: trees.Encoder, name: str, part: Part) -> trees.Node:
    try:
        return encoder.encode(part.tree(), name)
    except RecursionError as error:
        raise UsageError(f"the state of {name!r} contains itself or is nested too deep") from error


def _place(name: str, part: Part, kind: str, node: trees.Node, hint: Any, placer: Placer) -> None:
    if kind != part.kind:
        raise StateMismatchError(f"{name!r} is registered as a {part.kind} here and as a {kind} in the job")
    part.place(_decode(name, node, placer.slot, objects=False), hint, placer)


def _hand_over(name: str, pending: PendingPart, part: Part) -> None:
    """Loads state that came before its part was registered, in the way in which it would have been received."""
    encoder = trees.Encoder(_is_tensor)
    node = _encode(encoder, name, pending)
    placer = Placer([TensorSpec.of(tensor) for tensor in encoder.tensors])
    _place(name, part, pending.kind, node, pending.hint(), placer)
    tensors = placer.tensors()
    for tensor, value in zip(tensors, encoder.tensors, strict=True):
        tensor.detach().copy_(value)
    part.load(_decode(name, node, tensors.__getitem__))


def _decode(name: str, node: trees.Node, tensor: Callable[[int], Any], objects: bool = True) -> Any:
    try:
        return trees.decode(node, tensor, objects)
    except Exception as error:
        raise StateMismatchError(
            f"the job's state of {name!r} cannot be read here ({error}); define its classes before joining the job"
        ) from error
