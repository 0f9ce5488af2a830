"""The kinds of things that a replica is made of, and how each gives its state and takes one.

Every part does three things. `tree` gives its state as nested data with live tensors. `place` says into which live
tensors a state that comes is to be received. `load` takes the whole state; its tensors may be the part's own, received
in place. Here are those of any framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...errors import StateMismatchError


class Stateful(Protocol):
    """What schedulers, GradScaler and users' objects have."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Part(Protocol):
    kind: str

    def tree(self) -> Any: ...

    def hint(self) -> Any:
        """Plain data that helps a receiver to place tensors; it is not part of the state."""

    def place(self, tree: Any, hint: Any, placer: Any) -> None:
        """`tree` has a Slot for each tensor, and None for each pickled object."""

    def load(self, tree: Any) -> None: ...


class ObjectPart:
    """Anything with state_dict and load_state_dict, by value."""

    kind = "object"

    def __init__(self, name: str, target: Stateful) -> None:
        self.name = name
        self.target = target

    def tree(self) -> Any:
        return self.target.state_dict()

    def hint(self) -> Any:
        return None

    def place(self, tree: Any, hint: Any, placer: Any) -> None:
        """Nothing: whether the tensors in its state_dict are its own, only its load_state_dict knows."""

    def load(self, tree: Any) -> None:
        try:
            self.target.load_state_dict(tree)
        except Exception as error:
            kind = type(self.target).__qualname__
            raise StateMismatchError(f"{self.name!r} ({kind}) does not take the job's state: {error}") from error


class ValuePart:
    """A value that is read and set through two functions."""

    kind = "value"

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self.name = name
        self.get = get
        self.put = put

    def tree(self) -> Any:
        return self.get()

    def hint(self) -> Any:
        return None

    def place(self, tree: Any, hint: Any, placer: Any) -> None:
        pass

    def load(self, tree: Any) -> None:
        self.put(tree)


class PendingPart:
    """State that came for a name which this script has not registered yet; it waits, and is passed on meanwhile."""

    def __init__(self, kind: str, tree: Any, hint: Any) -> None:
        self.kind = kind
        self._tree = tree
        self._hint = hint

    def tree(self) -> Any:
        return self._tree

    def hint(self) -> Any:
        return self._hint

    def place(self, tree: Any, hint: Any, placer: Any) -> None:
        raise NotImplementedError("what is pending is replaced, not received into")

    def load(self, tree: Any) -> None:
        self._tree = tree
