"""One parser for the flags of all origins, and the manual page that its help is."""

from __future__ import annotations

import argparse

from ...completion import PrintCompletion
from ...help import HelpFormatter
from .. import exits
from . import horovodrun, own, slurm, torchrun
from .spelling import Parser
from .words import flag_of

_DESCRIPTION = """\
Run SCRIPT as an elastic training job: workers may come and go while it trains.

This command is an agent: it starts the workers of one host and looks after them. Without
--rendezvous or --endpoint it serves the job itself; further agents, on this or other machines, join
it with --rendezvous http://HOST:PORT --job NAME, at any time. A script that calls
elastic_launch.join() goes on in its processes when workers come or go; the processes of any other
script are started again, as torchrun does it.
"""

_EPILOG = """\
examples:
{examples}

environment:
  ELASTIC_MAX_RESTARTS ...    each flag has a variable, which it overrides
  PET_NNODES ...              torchrun's variables; ours come first
  CUDA_VISIBLE_DEVICES        the GPUs that count as this host's
  OMP_NUM_THREADS             for the workers: 1 if several share this host and it is not set
  ELASTIC_HOST                this host's name in messages (default: its hostname)
  SLURM_*                     in a step of srun: the job's name, its agents and where they meet
  Workers that are started again get RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ... as from torchrun;
  the others get ELASTIC_LOCAL_RANK, ELASTIC_JOB, ELASTIC_HOST.

signals:
  SIGTERM, SIGHUP, SIGQUIT    this agent's workers leave the job after a step, and it exits with 0;
                              under Slurm SIGUSR1 too. --signals-to-handle names others
  SIGINT                      the whole job is stopped in order; a second one ends this agent now

files:
  DIR/JOB/HOST/               with --log-dir: agent.log, worker-SLOT-ID/{{stdout,stderr}}.log, links
                              to the latest ones

{exit_codes}

see also: elastic-rendezvous --help, elastic-job --help
"""


def build_parser() -> argparse.ArgumentParser:
    examples = (*own.EXAMPLES, *torchrun.EXAMPLES, *horovodrun.EXAMPLES, *slurm.EXAMPLES)
    parser = Parser(
        prog="elastic-launch",
        usage="elastic-launch [flags] [-m] script [args ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(examples="\n".join(f"  {line}" for line in examples), exit_codes=exits.TABLE),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    own.add_flags(parser)
    torchrun.add_flags(parser)
    horovod = horovodrun.add_flags(parser)
    parser.shortened = ([flag_of(name) for name in torchrun.NAMES], horovod)
    own.add_script(parser)
    parser.add_argument("--print-completion", action=PrintCompletion, whole=parser)
    return parser
