"""`elastic-launch`: run a training job, or join one, with the workers of this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .options import parse

if TYPE_CHECKING:
    from .guarding import Guard
    from .options import Options
    from .output.room import Output

_FLUSH_LIMIT = 5.0  # seconds for output that nobody takes


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; SystemExit(2) for flags that cannot work."""
    return run(parse(sys.argv[1:] if arguments is None else arguments, os.environ))


def run(options: Options) -> int:
    """Runs an agent in this process until its job, or its part in it, is over."""
    # Not needed, and so not imported, where the flags are wrong or help is asked for.
    import asyncio

    from .guarding import Guard
    from .output.room import Output

    guard = Guard()
    try:
        output = Output(options.output, os.environ)
        code = asyncio.run(_run(options, guard, output))
        output.close(_FLUSH_LIMIT)
        return code
    finally:
        guard.close()


async def _run(options: Options, guard: Guard, output: Output) -> int:
    from .agent import Agent

    return await Agent(options, os.environ, guard, output).run()


if __name__ == "__main__":
    sys.exit(main())
