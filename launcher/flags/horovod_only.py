"""The flags of horovodrun that have no meaning here, with the reason and what to use instead.

One that tunes or shows something of Horovod's core changes nothing about what is trained: it is taken with a warning, so
that a line goes on working. One that would change what runs is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class HorovodOnly:
    """Several names of one flag; `why` goes behind its name, in a warning or an error."""

    flags: tuple[str, ...]
    takes_value: bool
    answer: Literal["silence", "warning", "refusal"]
    why: str


_CORE = (
    "it tunes Horovod's core, which is not used here (buckets of gradients are DistributedDataParallel's bucket_cap_mb)"
)
_ALGORITHM = "the algorithm of the reduction is gloo's or NCCL's own (NCCL_ALGO chooses NCCL's)"
_AUTOTUNE = "there is nothing here to tune"
_TIMELINE = "no timeline is written here: use torch.profiler in the script"
_STALL = "peers that wait report a member without progress, which is evicted after --hang-timeout"
_MPI = "there is no MPI here"


def _warn(why: str, *flags: str, value: bool = True) -> list[HorovodOnly]:
    return [HorovodOnly((flag,), value, "warning", why) for flag in flags]


def _agree(why: str, *flags: str) -> list[HorovodOnly]:
    """They ask for what is so anyway."""
    return [HorovodOnly((flag,), False, "silence", why) for flag in flags]


def _refuse(why: str, flag: str, value: bool) -> HorovodOnly:
    return HorovodOnly((flag,), value, "refusal", why)


FLAGS = (
    *_agree("nothing is cached: hosts are reached anew each time", "--disable-cache"),
    *_agree("gloo and NCCL are what there is, chosen by the script's backend", "--gloo"),
    *_agree(
        _ALGORITHM,
        "--no-hierarchical-allreduce",
        "--no-hierarchical-allgather",
        "--no-torus-allreduce",
        "--no-autotune",
    ),
    *_agree(_TIMELINE, "--no-timeline-mark-cycles"),
    *_agree(_MPI, "--mpi-threads-disable", "--no-mpi-threads-disable"),
    *_agree("lines carry a time only with --prefix time", "--log-without-timestamp", "--log-hide-timestamp"),
    *_agree(_STALL, "--stall-check"),
    *_warn(_CORE, "--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity"),
    *_warn(_ALGORITHM, "--hierarchical-allreduce", "--hierarchical-allgather", "--torus-allreduce", value=False),
    *_warn(_AUTOTUNE, "--autotune", value=False),
    *_warn(
        _AUTOTUNE,
        "--autotune-log-file",
        "--autotune-warmup-samples",
        "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples",
        "--autotune-gaussian-process-noise",
    ),
    *_warn(_TIMELINE, "--timeline-filename"),
    *_warn(_TIMELINE, "--timeline-mark-cycles", value=False),
    *_warn(_STALL, "--stall-check-warning-time-seconds"),
    *_warn("gloo uses TCP only; for NCCL set NCCL_IB_DISABLE=1", "--tcp", value=False),
    *_warn("set NCCL's own variables, such as NCCL_MIN_NCHANNELS", "--num-nccl-streams"),
    *_warn("there is no background thread of Horovod's here", "--thread-affinity"),
    *_warn("a lost peer is noticed without a timeout, a hung one after --hang-timeout", "--gloo-timeout-seconds"),
    _refuse(f"{_MPI}. Leave it out: gloo or NCCL does the reductions, over TCP or NCCL's own ways", "--mpi", False),
    _refuse(f"{_MPI}, and so no jsrun. Start `elastic-launch --rendezvous URL` once on each host", "--jsrun", False),
    _refuse(
        f"{_MPI} to pass arguments to. Variables (-x NAME) reach the workers as they are set here; placement is by -H",
        "--mpi-args",
        True,
    ),
    _refuse(
        f"{_MPI} to bind processes. Run the script under numactl or taskset: elastic-launch ... numactl ... python train.py",
        "--binding-args",
        True,
    ),
)
