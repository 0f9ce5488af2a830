"""What the user asked for: one frozen dataclass. `asking` makes it from flags and variables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .access import Access
from .batch.requeue import WHEN
from .endpoint import Endpoint
from .hosts.asked import HostsAsked
from .output.settings import OutputSettings
from .program import Program
from .signal_names import DRAINING

DEFAULT_JOB = "default"


@dataclass(frozen=True)
class Options:
    """Durations in seconds. `min` and `max` count workers of the job, `nproc` those of this agent.

    `urls` are the rendezvous servers, empty if this agent serves the job itself, or finds out by `endpoint` where it is
    served. `describes_job` says whether this agent has
    a say in what the job is: it serves it, or was given --min or --max. `address` is what everything binds and advertises,
    None for that of the route to the server. `pod` is the unique id of the Kubernetes pod that this is, empty outside of one.
    `watch_pods` is a label selector of this agent's peers, which it watches; empty to watch none.
    `command` is what a worker runs that takes part in the job itself. With `restarts`, workers run `program`, which is
    started again at each change; with `real_horovod` it is led by Horovod's elastic mode, and `horovods_variables` are told to
    it. `python` is the interpreter, if it is not this one. `uses_torch` and `preload` say what is imported ahead of a restart.
    `drain_signals` (numbers) are those on which this agent's workers leave. `role` is the workers' ROLE_NAME; with
    `virtual_local_rank` each of them sees
    one GPU alone; `numa_binding` says how they are bound. `backend` is the ring for CPU tensors of workers that join the job
    themselves. `node` puts the ranks of this agent's scripts behind those of nodes
    with a smaller number; -1: in the order of arrival. `verbose` shows the protocol, `quiet` leaves the summary out; with
    `shows_events` there is a line of JSON for each worker's end. A server
    that `outstays` its own agent's workers stays for as long as other agents need it. `requeued_job` is the number of a Slurm
    job that this agent puts back into the queue when `requeue` says so. Where `everybody_is_signalled`, as by a batch system,
    each process of the job gets its signals, and not the agent alone.
    `hosts` are those that this is the launcher for, None where it is an agent; an agent that is `led` by one leaves the last
    words to it. `log_level` is as in logging, None for what
    `verbose` says.
    """

    command: tuple[str, ...]
    min: int = 1
    max: int = 1
    nproc: int = 1
    describes_job: bool = True
    job: str = DEFAULT_JOB
    urls: tuple[str, ...] = ()
    endpoint: Endpoint | None = None
    port: int = 0
    max_restarts: int = 3
    min_timeout: float = 600.0
    hang_timeout: float = 300.0
    shutdown_timeout: float = 30.0
    rendezvous_timeout: float = 60.0
    address: str | None = None
    host: str = "localhost"
    pod: str = ""
    watch_pods: str = ""
    log_dir: Path | None = None
    drain_signals: tuple[int, ...] = DRAINING
    everybody_is_signalled: bool = False
    outstays: bool = False
    requeue: str = WHEN[0]
    requeued_job: str = ""
    program: Program | None = None
    python: str = ""
    restarts: bool = False
    real_horovod: bool = False
    horovods_variables: Mapping[str, str] = field(default_factory=dict)
    uses_torch: bool = False
    preload: tuple[str, ...] = ()
    role: str = "default"
    virtual_local_rank: bool = False
    output: OutputSettings = field(default_factory=OutputSettings)
    verbose: bool = False
    quiet: bool = False
    shows_events: bool = False
    numa_binding: str = ""
    backend: str = "gloo"
    node: int = -1
    access: Access = field(default_factory=Access)
    hosts: HostsAsked | None = None
    log_level: int | None = None
    led: bool = False

    @property
    def shown_level(self) -> int:
        """Log records of that level or above are shown."""
        if self.log_level is not None:
            return self.log_level
        return logging.DEBUG if self.verbose else logging.WARNING

    @property
    def serves(self) -> bool:
        return not self.urls
