"""The flags of horovodrun that have no meaning here, with the reason and what to use instead.

One that tunes or shows something of Horovod's core changes nothing about what is trained: it is taken with a warning, so
that a line goes on working. One that would change what runs is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Without:
    """Several names of one flag; `why` goes behind its name."""

    flags: tuple[str, ...]
    takes_value: bool
    why: str
    refused: bool = False


_CORE = (
    "it tunes Horovod's core, which is not used here (buckets of gradients are DistributedDataParallel's bucket_cap_mb)"
)
_ALGORITHM = "the algorithm of the reduction is gloo's or NCCL's own (NCCL_ALGO chooses NCCL's)"
_AUTOTUNE = "there is nothing here to tune"
_TIMELINE = "no timeline is written here: use torch.profiler in the script"
_STALL = "peers that wait report a member without progress, which is evicted after --hang-timeout"
_MPI = "there is no MPI here"
_TIMES = "the launcher's lines carry no time: `elastic-launch ... 2>&1 | ts` adds one to every line"


def _value(why: str, *flags: str) -> list[Without]:
    return [Without((flag,), True, why) for flag in flags]


def _switch(why: str, *flags: str) -> list[Without]:
    return [Without((flag,), False, why) for flag in flags]


IGNORED = (
    *_switch("nothing is cached: hosts are reached anew each time", "--disable-cache"),
    *_switch("gloo and NCCL are what there is, chosen by the script's backend", "--gloo"),
    *_value(_CORE, "--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity"),
    *_switch(
        _ALGORITHM,
        "--hierarchical-allreduce",
        "--no-hierarchical-allreduce",
        "--hierarchical-allgather",
        "--no-hierarchical-allgather",
        "--torus-allreduce",
        "--no-torus-allreduce",
    ),
    *_switch(_AUTOTUNE, "--autotune", "--no-autotune"),
    *_value(
        _AUTOTUNE,
        "--autotune-log-file",
        "--autotune-warmup-samples",
        "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples",
        "--autotune-gaussian-process-noise",
    ),
    *_value(_TIMELINE, "--timeline-filename"),
    *_switch(_TIMELINE, "--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    *_value(_STALL, "--stall-check-warning-time-seconds"),
    *_switch(_MPI, "--mpi-threads-disable", "--no-mpi-threads-disable"),
    *_switch("gloo uses TCP only; for NCCL set NCCL_IB_DISABLE=1", "--tcp"),
    *_value("set NCCL's own variables, such as NCCL_MIN_NCHANNELS", "--num-nccl-streams"),
    *_value("there is no background thread of Horovod's here", "--thread-affinity"),
    *_value("a lost peer is noticed without a timeout, a hung one after --hang-timeout", "--gloo-timeout-seconds"),
    *_switch(_TIMES, "--log-with-timestamp", "--no-log-hide-timestamp"),
    *_switch("the launcher's lines carry no time", "--log-without-timestamp", "--log-hide-timestamp"),
    Without(("-prefix-timestamp", "--prefix-output-with-timestamp"), False, _TIMES),
)
"""Taken, with a warning where they were given."""

SILENT = frozenset({
    "--disable-cache", "--gloo", "--no-autotune", "--no-timeline-mark-cycles", "--no-hierarchical-allreduce",
    "--no-hierarchical-allgather", "--no-torus-allreduce", "--mpi-threads-disable", "--no-mpi-threads-disable",
    "--log-without-timestamp", "--log-hide-timestamp",
})  # fmt: skip
"""Of these, the ones that ask for what is so anyway: there is nothing to warn of."""

REFUSED = (
    Without(
        ("--mpi",), False, f"{_MPI}. Leave it out: gloo or NCCL does the reductions, over TCP or NCCL's own ways", True
    ),
    Without(
        ("--jsrun",), False, f"{_MPI}, and so no jsrun. Start `elastic-launch --rendezvous URL` once on each host", True
    ),
    Without(
        ("--mpi-args",),
        True,
        f"{_MPI} to pass arguments to. Variables (-x NAME) reach the workers as they are set here; placement is by -H",
        True,
    ),
    Without(
        ("--binding-args",),
        True,
        f"{_MPI} to bind processes. Run the script under numactl or taskset: elastic-launch ... numactl ... python train.py",
        True,
    ),
)
