"""`elastic-job`: elastic training jobs on Kubernetes, from a shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; SystemExit(2) for flags that cannot work."""
    try:
        from .command_line import run
    except ModuleNotFoundError as error:
        if error.name not in ("kubernetes", "yaml"):
            raise
        needed = "pip install 'elastic-launch[kubernetes]'"
        print(f"elastic-job: the package {error.name!r} is missing: {needed}", file=sys.stderr)
        return 1
    return run(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
