"""Puts this package in the place of `horovod`: the import line of a script gives it, whether Horovod is installed or not."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

_NAME = "horovod"
_HERE = __package__

_REASONS = {
    "mxnet": "MXNet is retired",
    "spark": "it starts jobs itself, which elastic-launch does",
    "ray": "it starts jobs itself, which elastic-launch does",
    "runner": "it is the inside of horovodrun, in whose place elastic-launch is",
    "data": "use the framework's own data loader",
}


class _Alias(Loader):
    """Gives the module of this package, which is then known by both names."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been, under its own name, which the import system has just replaced."""
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top != _NAME:
            return None
        real = f"{_HERE}.{rest}" if rest else str(_HERE)
        reason = _REASONS.get(rest.partition(".")[0])
        if reason is not None:
            raise ModuleNotFoundError(f"{fullname} is not offered by elastic-launch --horovod: {reason}", name=fullname)
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ModuleNotFoundError(
                f"{fullname} is not offered by elastic-launch --horovod: see docs/horovod-api.md for what is",
                name=fullname,
            )
        is_package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Alias(real), origin=found.origin, is_package=is_package)


def stand_in() -> None:
    """From here on, `import horovod` gives this package."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
