"""The command line and the environment, read into `Options`."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence

from ...errors import UsageError
from ...rendezvous import worker_environment
from ...rendezvous.names import check_job_name
from ..batch.requeue import WHEN, job_to_requeue
from ..batch.scheduler import name_of_scheduler
from ..flags import horovodrun, own, slurm, torchrun
from ..flags.output_words import log_folder, output_settings
from ..flags.parsing import build_parser
from ..flags.words import Said, flags_first, from_flags, from_variables
from ..hosts import asked as hosts_asked
from ..logs import level_of
from ..options import DEFAULT_JOB, Options
from ..peer_selector import checked_selector
from ..signal_names import DRAINING, draining_signals
from .asked import Asked
from .place import Place, find_access, find_address, find_place, find_port, find_urls, is_a_pod
from .running import follows, interpreter, numa_binding, preloaded, program_of
from .sizes import sizes, sizes_over


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Raises SystemExit(2), after a message that says what to do, for everything that cannot work. So it does after --check."""
    parser = build_parser()
    flags = parser.parse_args(arguments)
    try:
        asked = Asked(parser, flags, flags_first(_origins(flags, environ)), environ)
    except UsageError as error:
        parser.error(str(error))
    if flags.check:
        sys.exit(_check(asked))
    return _options(asked)


def _origins(flags: argparse.Namespace, environ: Mapping[str, str]) -> list[dict[str, Said]]:
    """What was said, by whom; of two flags, or of two variables, the first one counts."""
    return [
        from_flags(flags, own.NAMES),
        from_variables(environ, (*own.NAMES, *horovodrun.NAMES, *hosts_asked.NAMES)),
        torchrun.said(flags, environ),
        horovodrun.said(flags, environ),
        slurm.said(environ),
    ]


def _check(asked: Asked) -> int:
    """The exit code."""
    from ..checking.check import check

    in_a_lone_pod = is_a_pod(asked) and not {"rendezvous", "standalone"} & {*asked.words}
    urls = () if in_a_lone_pod else find_urls(asked)
    return check(urls, _job(asked), find_access(asked, urls), asked.environ, in_a_lone_pod)


def _options(asked: Asked) -> Options:
    program = program_of(asked)
    python = interpreter(asked)
    following = follows(asked, program, python)
    for line in asked.understood(lambda: horovodrun.without_effect(asked.flags, following.real_horovod)):
        print(f"elastic-launch: warning: {line}", file=sys.stderr)
    hosts = asked.understood(lambda: hosts_asked.asked_hosts(asked.words, asked.environ))
    place = find_place(asked) if hosts is None else Place()
    serves = place.serves and hosts is None
    minimum, maximum, nproc = (*sizes_over(asked, hosts), 1) if hosts else sizes(asked, place, following.restarts)
    output = output_settings(asked.words, asked.fail, folds_tracebacks=not asked.is_on("verbose"))
    return Options(
        command=program.command(python or sys.executable),
        program=program.under(python) if python and following.restarts else program,
        python=python,
        restarts=following.restarts,
        real_horovod=following.real_horovod,
        horovods_variables=asked.understood(lambda: horovodrun.horovods_variables(asked.flags))
        if following.real_horovod
        else {},
        uses_torch=program.kind == "executable" or following.uses_torch,
        preload=preloaded(asked),
        role=asked.text("role", "default"),
        virtual_local_rank=asked.is_on("virtual_local_rank"),
        numa_binding=numa_binding(asked, program),
        backend=asked.one_of("backend", worker_environment.BACKENDS),
        node=asked.count("node", least=0, default=-1),
        job=_job(asked),
        min=minimum,
        max=maximum,
        nproc=nproc,
        describes_job=_describes_job(asked, place),
        max_restarts=asked.count("max_restarts", least=0, default=3),
        min_timeout=asked.seconds("min_timeout", 600.0),
        hang_timeout=asked.seconds("hang_timeout", 300.0),
        shutdown_timeout=asked.seconds("shutdown_timeout", 30.0),
        rendezvous_timeout=asked.seconds("rendezvous_timeout", 60.0),
        urls=place.urls,
        endpoint=place.endpoint,
        outstays=place.endpoint is not None,
        port=0 if place.step is not None else find_port(asked, serves=place.serves),
        address=find_address(asked, serves),
        access=find_access(asked, place.urls),
        hosts=hosts,
        host=asked.environ.get(worker_environment.HOST) or socket.gethostname(),
        pod=asked.environ.get(worker_environment.POD, ""),
        watch_pods=asked.read("watch_pods", checked_selector, ""),
        drain_signals=asked.read("signals_to_handle", draining_signals, DRAINING),
        everybody_is_signalled=bool(name_of_scheduler(asked.environ)),
        requeue=asked.one_of("requeue", WHEN),
        requeued_job=job_to_requeue(asked.environ),
        log_dir=log_folder(asked.words, output, asked.fail),
        output=output,
        verbose=asked.is_on("verbose"),
        quiet=asked.is_on("quiet"),
        shows_events=asked.text("event_log_handler") == "console",
        log_level=asked.read("log_level", level_of, None),
    )


def _job(asked: Asked) -> str:
    return asked.read("job", check_job_name, DEFAULT_JOB)


def _describes_job(asked: Asked, place: Place) -> bool:
    """All agents of a step say the same. A stranger's server at its place is to say that it does not know the job."""
    if place.step is not None:
        return place.step.serves
    return not place.urls or asked.said("min") is not None or asked.said("max") is not None
