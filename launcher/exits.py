"""Exit codes: what the agent's own mean, and how a worker's end is to be taken."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .worker_record import WorkerRecord

# The agent's own codes; otherwise it exits with the code of the worker that failed the job.
SUCCESS = 0
USAGE = 2
REJECTED = 65  # the worker's model or ring does not fit the job (also the worker's own code for it)
STALE = 66  # a worker's own code: it cannot follow the others from where it is, and is started afresh
UNREACHABLE = 69  # no rendezvous server answered
BUG = 70  # this agent failed
TOO_FEW = 75  # fewer than --min workers for --min-timeout (decided by the server)
STATE_LOST = 76  # every holder of the training state is gone (decided by the server)
REFUSED = 78  # the server does not take this agent
INTERRUPTED = 130  # stopped by SIGINT

TABLE = f"""\
exit codes:
  {SUCCESS}    the job is done, or this agent was drained (SIGTERM, SIGHUP, SIGQUIT)
  {USAGE}    bad flags
  {REJECTED}   this agent's workers do not fit the job (another model or optimizer)
  {UNREACHABLE}   no rendezvous server answered within --rendezvous-timeout
  {BUG}   this agent failed
  {TOO_FEW}   fewer than --min workers for --min-timeout
  {STATE_LOST}   every holder of the training state is gone, and there is no checkpoint
  {REFUSED}   the server refused this agent: its flags contradict the job, or its token is not the server's
  {INTERRUPTED}  stopped by SIGINT
  else the exit code of the worker that failed the job; 128 + n for signal n"""

_SIGNALS = {
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
    signal.SIGINT: "interrupted",
    signal.SIGSEGV: "invalid memory access",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGPIPE: "broken pipe",
    signal.SIGHUP: "hung up",
    signal.SIGQUIT: "quit",
    signal.SIGSYS: "forbidden system call",
}


def in_words(code: int) -> str:
    """An exit code (128 + n for signal n) for people."""
    if code <= 128:
        return f"exit code {code}"
    try:
        number = signal.Signals(code - 128)
    except ValueError:
        return f"exit code {code}"
    words = _SIGNALS.get(number)
    return f"{number.name} ({words})" if words else number.name


def classify(code: int, record: WorkerRecord, stopped: bool) -> tuple[str, int, str]:
    """`kind`, `code` and `reason` of `Exited`, from the process's code and what was said to and by the worker.

    The reason is empty where the code says it all.
    `stopped`: the agent itself ended it, on purpose and for no fault of the worker's.
    """
    if stopped:
        return "left", code, "stopped by its agent"
    if code == 0:
        if record.released:
            return "left", 0, "left after a drain"
        if record.told_done or record.finished or not record.registered:
            return "done", 0, ""
        return "crash", 1, "exited with code 0 in the middle of the job, without having finished its script"
    if code == REJECTED and record.registered and record.formed == 0 and record.lineage == 0:
        return "rejected", code, "rejected: its model or its ring does not fit the job"
    if code == STALE and record.registered:
        return "stale", code, "cannot follow the others from where it is; started afresh"
    return "crash", code, ""
