"""What a user's script may register under a name, and how each kind of it is replicated."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from .parts import ObjectPart, Part, ValuePart


class Value:
    """Holds a plain value of a user's script in `value`, such as the best accuracy so far, so that it is replicated."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Value({self.value!r})"

    def _set(self, value: Any) -> None:
        self.value = value


def part_for(name: str, target: Any) -> tuple[Part, Any]:
    """The part for whatever a user registers, and what `register` returns: the object, or a Value that holds it."""
    if hasattr(target, "state_dict") and hasattr(target, "load_state_dict"):
        return ObjectPart(name, target), target
    if isinstance(target, Value):
        return ValuePart(name, lambda: target.value, target._set), target
    if isinstance(target, (list, bytearray)):
        plain = list if isinstance(target, list) else bytes
        return ValuePart(name, lambda: plain(target), lambda value: target.__setitem__(slice(None), value)), target
    if isinstance(target, (dict, set)):
        keep = dict if isinstance(target, dict) else set
        return ValuePart(name, lambda: keep(target), lambda value: (target.clear(), target.update(value))), target
    if (type(target).__module__, type(target).__name__) == ("numpy", "ndarray"):
        return ValuePart(name, lambda: target, lambda value: target.__setitem__(..., value)), target
    if target is None or isinstance(target, (bool, int, float, complex, str, bytes, tuple, frozenset)):
        holder = Value(target)
        return ValuePart(name, lambda: holder.value, holder._set), holder
    raise UsageError(
        f"{name!r} of type {type(target).__qualname__} cannot be registered: give it state_dict() and "
        "load_state_dict(), or register a list, dict, tensor or plain value"
    )
