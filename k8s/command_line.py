"""The commands of `elastic-job` and their flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import yaml

from ..completion import PrintCompletion
from ..errors import ElasticError, UsageError
from ..help import HelpFormatter
from ..nearest import Parser
from . import changing, following, showing
from .cluster import Cluster, default_namespace
from .errors import Unreachable
from .manifests import manifests
from .submit_flags import add_submit_flags, request_from
from .submitting import submit

_EXAMPLES = """\
examples:
  elastic-job submit digits --image registry/digits:1 --min 2 --max 8 -- train.py --epochs 20
  elastic-job submit -f job.yaml
  elastic-job status digits --watch
  elastic-job logs digits --rank 0 --follow
  elastic-job scale digits --max 4

environment:
  KUBECONFIG    which cluster (default: ~/.kube/config, or the pod's own service account)

exit codes:
  0    done; of wait: the job is done; of logs: they have been shown, even if the job has failed
  1    no answer from the cluster, or it or the job cannot do that; of logs: nothing to be shown
  2    bad flags
  3    of wait: the job was not over within --timeout
  130  ended by Ctrl-C
  of wait else the exit code of the job

elastic-job COMMAND --help says more. See also: elastic-launch --help, elastic-rendezvous --help
"""
_OTHER_CLUSTER = "Is it running, and is it the right one? KUBECONFIG or --context chooses another"
_JOB = "the job's name"


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code; SystemExit(2) for flags that cannot work."""
    own, command = _split(arguments)
    parser, act = _parse(own)
    options = act[0]
    try:
        return int(act[1](options, command))
    except UsageError as error:
        parser.error(str(error))
    except Unreachable as error:
        print(f"elastic-job: {error}. {_OTHER_CLUSTER}", file=sys.stderr)
        return 1
    except ElasticError as error:
        print(f"elastic-job: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first `--`."""
    words = [*arguments]
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


Act = Callable[[argparse.Namespace, list[str]], int]


def _parse(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, tuple[argparse.Namespace, Act]]:
    parser = build_parser()
    options = parser.parse_args(arguments)
    return parser, (options, options.act)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="elastic-job",
        description="Elastic training jobs on Kubernetes: pods come and go, training goes on.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--print-completion", action=PrintCompletion, whole=parser)
    commands = parser.add_subparsers(
        dest="subcommand", required=True, metavar="COMMAND", title="commands", help="one of these"
    )
    submitting = _command(commands, "submit", "start a job", _submit)
    submitting.usage = "elastic-job submit [flags] NAME -- script [args ...]"
    add_submit_flags(submitting)
    _command(commands, "list", "the jobs of the namespace", _list)
    status = _command(commands, "status", "members, generation, last events and pods of a job", _status)
    status.add_argument("name", help=_JOB)
    status.add_argument("--watch", action="store_true", help="show it again and again until the job is over")
    status.add_argument("--json", action="store_true", help="as JSON, for programs")
    logs = _command(commands, "logs", "what the workers, or the controller, have written", _logs)
    logs.add_argument("name", help=_JOB)
    logs.add_argument("--rank", type=int, metavar="N", help="of the pod with this rank only (default: of all)")
    logs.add_argument("--controller", action="store_true", help="of the controller")
    logs.add_argument(
        "--follow", action="store_true", help="go on until the job is over, done or failed, with pods that come later"
    )
    logs.add_argument("--tail", type=int, metavar="N", help="the last N lines of each pod only (default: all)")
    scale = _command(commands, "scale", "change the number of pods of a running job", _scale)
    scale.add_argument("name", help=_JOB)
    scale.add_argument("--min", type=int, metavar="N", help="fewest pods that train (default: as it is)")
    scale.add_argument("--max", type=int, metavar="N", help="most pods (default: as it is)")
    drain = _command(commands, "drain", "have a pod leave in order; it is replaced when there is room", _drain)
    drain.add_argument("name", metavar="pod", help="its name, as elastic-job status shows it")
    delete = _command(commands, "delete", "end a job and remove all that belongs to it", _delete)
    delete.add_argument("name", help=_JOB)
    wait = _command(commands, "wait", "wait for a job's end, and exit with its exit code", _wait)
    wait.add_argument("name", help=_JOB)
    wait.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="exit with 3 if it is not over after this many seconds (default: never)",
    )
    return parser


def _command(commands: argparse._SubParsersAction[Parser], name: str, text: str, act: Act) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="where the job is (default: that of the kubeconfig's context)",
    )
    parser.add_argument("--context", metavar="NAME", help="which of the kubeconfig (default: the current one)")
    parser.set_defaults(act=act)
    return parser


def _cluster(options: argparse.Namespace) -> Cluster:
    return Cluster.connect(options.namespace, options.context)


def _submit(options: argparse.Namespace, command: list[str]) -> int:
    request = request_from(options, command)
    if options.dry_run:
        namespace = options.namespace or default_namespace(options.context)
        print(yaml.safe_dump_all(manifests(request, namespace), sort_keys=False), end="")
        return 0
    submit(_cluster(options), request)
    print(f"job {request.name} is submitted: see elastic-job status {request.name}")
    return 0


def _list(options: argparse.Namespace, command: list[str]) -> int:
    return showing.show_jobs(_cluster(options))


def _status(options: argparse.Namespace, command: list[str]) -> int:
    return showing.show_status(_cluster(options), options.name, options.watch, options.json)


def _logs(options: argparse.Namespace, command: list[str]) -> int:
    cluster = _cluster(options)
    return following.logs(cluster, options.name, options.rank, options.controller, options.follow, options.tail)


def _scale(options: argparse.Namespace, command: list[str]) -> int:
    return changing.scale(_cluster(options), options.name, options.min, options.max)


def _drain(options: argparse.Namespace, command: list[str]) -> int:
    return changing.drain(_cluster(options), options.name)


def _delete(options: argparse.Namespace, command: list[str]) -> int:
    return changing.delete(_cluster(options), options.name)


def _wait(options: argparse.Namespace, command: list[str]) -> int:
    return following.wait(_cluster(options), options.name, options.timeout)
