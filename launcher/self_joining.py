"""Whether a program takes part in the job itself, by calling `elastic_launch`, or has to be started again at each change."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Set
from pathlib import Path

from .program import Program

_PACKAGE = "elastic_launch"
_MOST_FILES = 200


def imported_names(program: Program) -> set[str]:
    """The top-level names that the program, and the modules of its own beside it, import. Nothing is run to find out.

    Empty for what is not Python, or cannot be read.
    """
    return {name.partition(".")[0] for tree in _own_code(program) for name in _imports(tree)}


def speaks_of(program: Program, word: str) -> bool:
    """Whether an import, or an attribute, in it or in the modules of its own beside it has the word as one of its parts."""
    for tree in _own_code(program):
        if any(word in name.split(".") for name in _imports(tree)):
            return True
        if any(isinstance(node, ast.Attribute) and node.attr == word for node in ast.walk(tree)):
            return True
    return False


def joins_by_itself(names: Set[str]) -> bool:
    return _PACKAGE in names


def _own_code(program: Program) -> Iterator[ast.AST]:
    first = _source(program)
    if first is None:
        return
    root = first.parent if program.kind == "script" else Path.cwd()
    seen: set[Path] = set()
    waiting = [first]
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield tree
        for name in _imports(tree):
            waiting += _own_files(root, name)


def _source(program: Program) -> Path | None:
    if program.kind == "executable":
        return None
    if program.kind == "script":
        path = Path(program.name)
        return path / "__main__.py" if path.is_dir() else path
    search: list[str] | None = [os.getcwd(), *sys.path]
    parts = program.name.split(".")
    for count in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:count]), search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    if search:  # a package, which is run by its __main__
        return Path(search[0]) / "__main__.py"
    return Path(spec.origin) if spec is not None and spec.origin else None


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif node.level:
                yield from (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)


def _own_files(root: Path, name: str) -> list[Path]:
    """Files of the program's own folder that an import of `name` may run."""
    path = root.joinpath(*name.split("."))
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
