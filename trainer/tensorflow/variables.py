"""Names for variables that are the same on every worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import UsageError


def by_path(name: str, variables: Iterable[Any] | None, names: list[str] | None = None) -> dict[str, Any]:
    """Variables by their paths (or `names`), with numbers where these are not unique.

    Raises `UsageError` if there are none, or if something is no variable.
    """
    found = list(variables) if variables is not None else []
    if not found:
        raise UsageError(f"{name!r} has no variables yet: build it (call it once on a sample) before joining")
    for variable in found:
        if not hasattr(variable, "assign"):
            raise UsageError(f"{name!r} holds a {type(variable).__name__}, which is no variable")
    paths = names or [str(getattr(variable, "path", None) or variable.name) for variable in found]
    if len(set(paths)) < len(paths):
        paths = [f"{number}/{path}" for number, path in enumerate(paths)]
    return dict(zip(paths, found, strict=True))


def handle_of(variable: Any) -> Any:
    """The resource behind TensorFlow's variable, or the one that Keras has wrapped; None if it has none."""
    if hasattr(variable, "handle"):
        return variable.handle
    return getattr(variable.value, "handle", None)
