"""The replica: everything of a worker that must be equal on all members, as one thing to compare and to copy.

A framework says what its tensors are: `Replica` has the names, the parts and the order of things.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import xxhash

from ...errors import StateMismatchError, UsageError
from ..ring.ring import Ring
from . import tree as trees
from .parts import Part, PendingPart, Stateful, ValuePart
from .payload import Payload
from .registering import part_for
from .structure import Structure

_FORMAT = 1


class Spec(Protocol):
    """A named tuple of plain data, equal for tensors whose bytes lie in the same way."""

    @property
    def nbytes(self) -> int: ...

    @property
    def layout(self) -> Any:
        """All that decides where in the payload the bytes of which element lie; plain data."""


class TensorRoom(Protocol):
    """A payload of live tensors."""

    @property
    def nbytes(self) -> int: ...

    def cursor(self) -> Any: ...

    def copy_to(self, host: memoryview) -> None:
        """Copies all of it into `host`, of `nbytes` bytes."""

    def finish(self) -> None:
        """Puts what was received beside its tensor into it. Call it once, after everything has been received."""


class TensorPlacer(Protocol):
    """Finds a tensor for each one that comes."""

    def slot(self, number: int) -> Any:
        """What stands for a tensor that has not come."""

    def tensors(self) -> list[Any]:
        """One for each slot, in order."""


class Image:
    """A replica's state at one moment: live references to its tensors, and all the rest as bytes.

    It holds good until the next step changes the tensors. `layout` tells whether two images' payloads are laid out in
    the same way, so that parts of either can be taken.
    """

    def __init__(
        self, meta: bytes, tensors: list[Any], specs: Sequence[Spec], payload: Callable[[], TensorRoom]
    ) -> None:
        self.meta = meta
        self.tensors = tensors
        self.layout = xxhash.xxh3_128_digest(trees.pack([spec.layout for spec in specs]))
        self.nbytes = sum(spec.nbytes for spec in specs)
        self.payload = payload
        """The tensors' bytes, to send or to write. Only tensors that are not dense are copied for it."""


class Incoming:
    """A state that is being received. `tensors` are in the sender's order, live ones wherever the replica has them.

    From its first received byte to the end of `commit` the replica is neither the old nor the new state.
    """

    def __init__(self, tensors: list[Any], room: Callable[[], TensorRoom], commit: Callable[[list[Any]], None]) -> None:
        self.tensors = tensors
        self._make_room = room
        self._commit = commit
        self._room: TensorRoom | None = None

    def payload(self) -> Payload:
        """Where to receive the bytes of the sender's payload."""
        if self._room is None:
            self._room = self._make_room()
        return self._room

    def commit(self) -> None:
        """After the payload is there: makes it the replica's state. StateMismatchError if a part does not take its."""
        if self._room is not None:
            self._room.finish()
        self._commit(self.tensors)


class Replica(ABC):
    """The replicated things by name. Models and optimizers make up its structure; other things may come at any time.

    Not thread-safe: one thread registers, captures and receives.
    """

    def __init__(self) -> None:
        self._structural: dict[str, Part] = {}
        self._others: dict[str, Part] = {}
        self._pending: dict[str, PendingPart] = {}

    # --- what a framework says ---

    @abstractmethod
    def structure(self) -> Structure:
        """The shape that a replica must have to take this one's state."""

    @abstractmethod
    def share_buffers(self, ring: Ring, lead: int) -> None:
        """Between two steps: what is each member's own inside a step (batch-norm statistics) becomes the lead's."""

    @abstractmethod
    def _is_tensor(self, value: Any) -> bool: ...

    @abstractmethod
    def _spec(self, tensor: Any) -> Spec: ...

    @abstractmethod
    def _spec_from_plain(self, plain: Any) -> Spec: ...

    @abstractmethod
    def _room(self, tensors: list[Any], specs: Sequence[Spec], receiving: bool) -> TensorRoom: ...

    @abstractmethod
    def _placer(self, specs: Sequence[Spec]) -> TensorPlacer: ...

    @abstractmethod
    def _digest(self, meta: bytes, tensors: list[Any]) -> str:
        """32 hex digits. Where tensors lie does not count; shape, type and every bit of them does."""

    @abstractmethod
    def _fill(self, tensor: Any, value: Any) -> None:
        """Copy `value` into `tensor`."""

    def _part_for(self, name: str, target: Any) -> tuple[Part, Any]:
        return part_for(name, target)

    # --- registering ---

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
        part, returned = self._part_for(name, target)
        self._add(name, part)
        return returned

    # --- copying and comparing ---

    def capture(self) -> Image:
        """UsageError, with its name, for something that cannot be serialised."""
        encoder = trees.Encoder(self._is_tensor)
        entries = [[name, part.kind, _encode(encoder, name, part), part.hint()] for name, part in self._parts()]
        tensors, specs = encoder.tensors, [self._spec(tensor) for tensor in encoder.tensors]
        meta = trees.pack([_FORMAT, entries, specs])
        return Image(meta, tensors, specs, lambda: self._room(tensors, specs, False))

    def prepare(self, meta: bytes) -> Incoming:
        """Gets ready to receive: makes the tensors that are missing. StateMismatchError if the state does not fit."""
        version, entries, plain_specs = trees.unpack(meta)
        if version != _FORMAT:
            raise StateMismatchError(f"the state has format {version}, this version reads {_FORMAT}")
        specs = [self._spec_from_plain(plain) for plain in plain_specs]
        placer = self._placer(specs)
        known = {**self._structural, **self._others}
        for name in self._structural.keys() - {name for name, *_ in entries}:
            raise StateMismatchError(f"{known[name].kind} {name!r} is here and not in the job")
        for name, kind, node, hint in entries:
            if name in known:
                _place(name, known[name], kind, node, hint, placer)
        tensors = placer.tensors()
        return Incoming(
            tensors, lambda: self._room(tensors, specs, True), lambda received: self._load(entries, received)
        )

    def digest(self) -> str:
        """Equal on two replicas if and only if their state is bitwise equal. Reads all of it (about 0.15 s/GB)."""
        encoder = trees.Encoder(self._is_tensor, canonical=True)
        entries = [[name, _encode(encoder, name, part)] for name, part in self._parts()]
        return self._digest(trees.pack(entries), encoder.tensors)

    def digests(self) -> dict[str, str]:
        """A digest as `digest` gives, of each part by its name: says where two replicas differ."""
        found = {}
        for name, part in self._parts():
            encoder = trees.Encoder(self._is_tensor, canonical=True)
            node = _encode(encoder, name, part)
            found[name] = self._digest(trees.pack(node), encoder.tensors)
        return found

    # --- inside ---

    def _parts(self) -> list[tuple[str, Part]]:
        """In an order that does not depend on when something was registered, so that it is the same on all members."""
        parts: dict[str, Part] = {**self._structural, **self._others, **self._pending}
        return sorted(parts.items())

    def _add(self, name: str, part: Part, structural: bool = False) -> None:
        if name in self._structural or name in self._others:
            raise UsageError(f"something is registered as {name!r} already: names must be different")
        _encode(trees.Encoder(self._is_tensor), name, part)  # what cannot be replicated is refused here, not at a join
        pending = self._pending.get(name)
        if pending is not None:
            self._hand_over(name, pending, part)
            del self._pending[name]
        (self._structural if structural else self._others)[name] = part

    def _hand_over(self, name: str, pending: PendingPart, part: Part) -> None:
        """Loads state that came before its part was registered, in the way in which it would have been received."""
        encoder = trees.Encoder(self._is_tensor)
        node = _encode(encoder, name, pending)
        placer = self._placer([self._spec(tensor) for tensor in encoder.tensors])
        _place(name, part, pending.kind, node, pending.hint(), placer)
        tensors = placer.tensors()
        for tensor, value in zip(tensors, encoder.tensors, strict=True):
            self._fill(tensor, value)
        part.load(_decode(name, node, tensors.__getitem__))

    def _load(self, entries: list[Any], tensors: list[Any]) -> None:
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


def _encode(encoder: trees.Encoder, name: str, part: Part) -> trees.Node:
    try:
        return encoder.encode(part.tree(), name)
    except RecursionError as error:
        raise UsageError(f"the state of {name!r} contains itself or is nested too deep") from error


def _place(name: str, part: Part, kind: str, node: trees.Node, hint: Any, placer: TensorPlacer) -> None:
    if kind != part.kind:
        raise StateMismatchError(f"{name!r} is registered as a {part.kind} here and as a {kind} in the job")
    part.place(_decode(name, node, placer.slot, objects=False), hint, placer)


def _decode(name: str, node: trees.Node, tensor: Callable[[int], Any], objects: bool = True) -> Any:
    try:
        return trees.decode(node, tensor, objects)
    except Exception as error:
        raise StateMismatchError(
            f"the job's state of {name!r} cannot be read here ({error}); define its classes before joining the job"
        ) from error
