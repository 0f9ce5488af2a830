"""The process of a worker: `python -m elastic_launch.trainer.main [--module] SCRIPT [ARGUMENTS]`.

Runs the script as `__main__`, then says how it ended. Exit codes: 0, the script's own, 65 if this worker's model does not
fit the job, 66 if it must start afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import traceback
from typing import Any

from ..errors import StateMismatchError
from .running import run

REJECTED = 65


def main() -> None:
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["--module"]
    if as_module:
        arguments = arguments[1:]
    if not arguments:
        sys.exit("usage: python -m elastic_launch.trainer.main [--module] SCRIPT [ARGUMENTS]")
    sys.argv = arguments
    outcome = [1]
    atexit.register(_leave, outcome)  # the first one to be registered, and so the last one to be called
    code = outcome[0] = _run(arguments[0], as_module)
    joining = sys.modules.get(f"{__package__}.joining")
    if code == 0 and joining is not None:
        joining.leave()
    sys.exit(code)


def _leave(outcome: list[int]) -> None:
    """Leave a process that has had a ring without finalising the interpreter.

    Threads of gloo's may still be on their way back into Python, and one that arrives after that ends the process with
    SIGABRT, whatever its exit code was to be.
    """
    if f"{__package__}.joining" in sys.modules:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(outcome[0])


def _run(script: str, as_module: bool) -> int:
    try:
        run(script, as_module)
        return _finish()
    except SystemExit as error:
        return _exit_code(error)
    except StateMismatchError:
        traceback.print_exc()
        return REJECTED
    except BaseException:
        traceback.print_exc()
        job = _current_job()
        return job.code_of_failure if job is not None else 1


def _exit_code(error: SystemExit) -> int:
    leaving = type(error).__module__.startswith(f"{__package__}.")
    if error.code is None or error.code == 0:
        return 0 if leaving else _finish()
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _current_job() -> Any:
    joining = sys.modules.get(f"{__package__}.joining")
    return joining.current_job() if joining is not None else None


def _finish() -> int:
    job = _current_job()
    if job is not None:
        try:
            job.finish()
        except SystemExit as error:
            return _exit_code(error)
    return 0


if __name__ == "__main__":
    main()
