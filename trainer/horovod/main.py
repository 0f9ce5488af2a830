"""The process of a worker that trains with the real Horovod: `python -m elastic_launch.trainer.horovod.main [--module] SCRIPT`.

Nothing of the script is changed, and of Horovod only this: `hvd.init()` passes the door first (`door.py`).
"""

from __future__ import annotations

import sys

from ..running import run
from .door import put_up


def main() -> None:
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["--module"]
    if as_module:
        arguments = arguments[1:]
    if not arguments:
        sys.exit("usage: python -m elastic_launch.trainer.horovod.main [--module] SCRIPT [ARGUMENTS]")
    sys.argv = arguments
    put_up()
    run(arguments[0], as_module)


if __name__ == "__main__":
    main()
