"""Prints the flags of the horovodrun that can be imported here, as JSON: [[names, number of values], ...]."""

from __future__ import annotations

import argparse
import json
from typing import Any


class _Asked(Exception):
    pass


def _instead_of_parsing(parser: argparse.ArgumentParser, *_: Any) -> None:
    raise _Asked(parser)


if __name__ == "__main__":
    from horovod.runner import launch

    argparse.ArgumentParser.parse_args = _instead_of_parsing  # type: ignore[assignment]
    try:
        launch.parse_args()
    except _Asked as asked:
        actions = asked.args[0]._actions
        flags = [
            (each.option_strings, 1 if each.nargs is None else each.nargs) for each in actions if each.option_strings
        ]
        print(json.dumps(flags))
