"""docs/horovod-api.md says of each public name of Horovod 0.28.1 what it is here, and says the truth."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).parents[2] / "docs" / "horovod-api.md"
WHEEL = os.environ.get("ELASTIC_TEST_HOROVOD")  # a wheel of Horovod 0.28.1, which is read and not imported
ANSWERS = ("there", "differs", "refused", "left out")

pytestmark = [
    pytest.mark.skipif(not WHEEL, reason="ELASTIC_TEST_HOROVOD does not name a wheel of Horovod"),
    pytest.mark.xdist_group("horovod-table"),  # one process imports the frameworks
]


def table() -> dict[str, dict[str, str]]:
    """By module and name: there, differs, refused or left out."""
    found: dict[str, dict[str, str]] = {}
    module = ""
    for line in TABLE.read_text().splitlines():
        heading = re.match(r"### `([\w.]+)`", line)
        if heading:
            module = heading.group(1)
            found[module] = {}
        row = re.match(r"\| (`.*?`) \| ([\w ]+) \|(.*)\|$", line)
        if row and module:
            assert row.group(2) in ANSWERS and (row.group(2) == "there" or row.group(3).strip()), line
            for name in re.findall(r"`(\w+)`", row.group(1)):
                assert name not in found[module], f"{module}.{name} has two rows"
                found[module][name] = row.group(2)
    return found


@functools.cache
def source(module: str) -> ast.Module:
    assert WHEEL is not None
    path = module.replace(".", "/")
    with zipfile.ZipFile(WHEEL) as wheel:
        names = set(wheel.namelist())
        file = next(each for each in (f"{path}.py", f"{path}/__init__.py") if each in names)
        return ast.parse(wheel.read(file))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from statements(node.body)
            yield from statements(node.orelse)
        else:
            yield node


def public_names(module: str) -> set[str]:
    """What the module defines, and what it takes from other modules of Horovod."""
    found: set[str] = set()
    for node in statements(source(module).body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("horovod"):
            found.update(alias.asname or alias.name for alias in node.names)
    return {name for name in found if not name.startswith("_")}


def parameters(module: str, name: str) -> list[str] | None:
    """Of a function, or of a class's `__init__`, wherever the module takes it from; None of anything else."""
    for node in statements(source(module).body):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        if isinstance(node, ast.ClassDef) and node.name == name:
            inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            return [argument.arg for argument in inits[0].args.args[1:]] if inits else None
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("horovod"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return parameters(str(node.module), alias.name)
    return None


def ours(module: str) -> Any:
    return importlib.import_module("elastic_launch." + module)


MODULES = sorted(table()) if WHEEL else []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_table_and_nothing_else(module: str) -> None:
    assert set(table()[module]) == public_names(module)


@pytest.mark.parametrize("module", MODULES)
def test_a_name_is_there_unless_it_is_left_out(module: str) -> None:
    for name, answer in table()[module].items():
        assert hasattr(ours(module), name) == (answer != "left out"), f"{module}.{name} is said to be {answer}"


@pytest.mark.parametrize("module", MODULES)
def test_what_is_there_takes_the_same_arguments(module: str) -> None:
    for name, answer in table()[module].items():
        wanted = parameters(module, name)
        if answer in ("refused", "left out") or wanted is None:
            continue
        found = inspect.signature(getattr(ours(module), name)).parameters
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in found.values()):
            continue
        taken = [each for each in found if found[each].kind is not inspect.Parameter.VAR_KEYWORD]
        assert taken[: len(wanted)] == wanted, f"{module}.{name} takes {taken}, Horovod's {wanted}"
