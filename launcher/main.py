"""`elastic-launch`: run a training job, or join one, with the workers of this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .asking.parse import parse
from .batch.sharing import own_share

if TYPE_CHECKING:
    from .guarding import Guard
    from .options import Options
    from .output.room import Output

_FLUSH_LIMIT = 5.0  # seconds for output that nobody takes


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; SystemExit(2) for flags that cannot work."""
    os.environ.update(own_share(os.environ))
    return run(parse(sys.argv[1:] if arguments is None else arguments, os.environ))


def run(options: Options) -> int:
    """Runs an agent, or the launcher of several, in this process until its job, or its part in it, is over."""
    # Not needed, and so not imported, where the flags are wrong or help is asked for.
    import asyncio

    from .guarding import Guard
    from .output.room import Output
    from .signals import hold_back

    hold_back(options.drain_signals)
    guard = Guard()
    try:
        output = Output(options.output, os.environ)
        code = asyncio.run(_run(options, guard, output))
        output.close(_FLUSH_LIMIT)
        return code
    finally:
        guard.close()


async def _run(options: Options, guard: Guard, output: Output) -> int:
    if options.hosts is not None:
        from .hosts.job_launcher import JobLauncher

        return await JobLauncher(options.hosts, options, os.environ, guard, output).run()
    from .agent import Agent

    return await Agent(options, os.environ, guard, output).run()


if __name__ == "__main__":
    sys.exit(main())
