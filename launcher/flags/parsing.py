"""One parser for the flags of all origins."""

from __future__ import annotations

import argparse

from .. import exits
from . import own, torchrun
from .nearest import Parser
from .words import flag_of

_DESCRIPTION = """\
Run SCRIPT as an elastic training job: workers may come and go while it trains.

Without --rendezvous this agent serves the job itself; further agents, on this or other machines, join it with
--rendezvous http://HOST:PORT --job NAME, at any time.
"""

_EPILOG = (
    """\
examples:
  elastic-launch --min 1 --max 4 train.py --epochs 10
  elastic-launch --rendezvous http://head:29400 --job digits --min 2 --max 8 -m my.training

Every flag has a variable that it overrides: --max-restarts is ELASTIC_MAX_RESTARTS.

"""
    + exits.TABLE
)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="elastic-launch",
        usage="elastic-launch [flags] [-m] script [args ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.shortened = [flag_of(name) for name in torchrun.NAMES]
    own.add_flags(parser)
    torchrun.add_flags(parser)
    own.add_script(parser)
    return parser
