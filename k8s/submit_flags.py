"""The flags of `elastic-job submit`, and the same words in a job file, as one `JobRequest`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..errors import UsageError
from .request import JobRequest, check

Json = dict[str, Any]

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def add_submit_flags(parser: argparse.ArgumentParser) -> None:
    """All defaults are None: what a job file says counts where a flag is missing."""
    parser.add_argument("name", nargs="?", help="the job's name: lower-case letters, digits and '-'")
    parser.add_argument(
        "-f",
        "--file",
        type=Path,
        metavar="F",
        help="job file (YAML): the flags' names and their values (default: none)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the manifests and change nothing")
    job = parser.add_argument_group("job")
    job.add_argument(
        "--image", help="image with elastic-launch[kubernetes], the script and what it imports (no default)"
    )
    job.add_argument("--min", type=int, metavar="N", help="fewest pods that train; below it they wait (default 1)")
    job.add_argument("--max", type=int, metavar="N", help="most pods (default: --min)")
    job.add_argument("--nproc-per-pod", type=int, metavar="N", help="workers of a pod (default: --gpu, else 1)")
    job.add_argument("--ttl", type=int, metavar="S", help="remove the job this long after its end (default: never)")
    job.add_argument(
        "--backoff-limit", type=int, metavar="N", help="crashes of workers and failures of pods in all (default 3)"
    )
    job.add_argument(
        "--active-deadline", type=int, metavar="S", help="the job fails when it takes longer (default: never)"
    )
    job.add_argument(
        "--min-timeout", type=float, metavar="S", help="fail when below --min for longer (default: a week)"
    )
    job.add_argument(
        "--hang-timeout", type=float, metavar="S", help="without progress for this long is hung (default 300)"
    )
    job.add_argument("--grace-period", type=int, metavar="S", help="for a pod to leave in order (default 60)")
    job.add_argument("--network-policy", action="store_true", default=None, help="let nobody else reach the job's pods")
    job.add_argument("--store", metavar="ETCD", help="keep the job's state in this etcd (default: in a ConfigMap)")
    pod = parser.add_argument_group("worker pods")
    pod.add_argument("--cpu", metavar="N", help="CPUs requested, as 500m or 2 (default: none)")
    pod.add_argument("--memory", metavar="N", help="memory requested and allowed, as 512Mi or 8Gi (default: none)")
    pod.add_argument("--gpu", type=int, metavar="N", help="NVIDIA GPUs (default 0)")
    pod.add_argument("--priority-class", metavar="NAME", help="of the pods (default: the cluster's)")
    pod.add_argument("--env", action="append", metavar="K=V", help="a variable; may be repeated (default: none)")
    pod.add_argument(
        "--volume",
        action="append",
        metavar="KIND:SOURCE:PATH[:ro]",
        help="host:/on/node, claim:NAME or config:NAME, to be mounted at PATH; may be repeated (default: none)",
    )
    pod.add_argument(
        "--node-selector",
        action="append",
        metavar="K=V",
        help="a label of the nodes; may be repeated (default: any node)",
    )
    pod.add_argument(
        "--toleration",
        action="append",
        metavar="KEY[=VALUE][:EFFECT]",
        help="of a taint; may be repeated (default: none)",
    )
    pod.add_argument(
        "--service-account", metavar="NAME", help="of the workers, which need no rights of their own (default: default)"
    )
    pod.add_argument(
        "--image-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        metavar="WHEN",
        help="Always, IfNotPresent or Never (default: Kubernetes' own)",
    )
    pod.add_argument("--user", type=int, metavar="UID", help="user and group that everything runs as (default 1000)")
    pod.add_argument(
        "--pod-template", metavar="FILE", help="anything else a pod can have (YAML), merged in (default: none)"
    )
    controller = parser.add_argument_group("controller pod")
    controller.add_argument("--controller-image", metavar="IMAGE", help="one without the framework (default: --image)")
    controller.add_argument("--controller-pod-template", metavar="FILE", help="as --pod-template (default: none)")
    controller.add_argument(
        "--controller-service-account", metavar="NAME", help="use this one, and make no role (default: one of its own)"
    )


def request_from(flags: argparse.Namespace, command: Sequence[str]) -> JobRequest:
    """`command` is what stood after `--`. UsageError for what cannot work."""
    said = _from_file(flags.file) if flags.file is not None else {}
    for name in {*_SINGLE, *_PARSED} & vars(flags).keys():
        value = getattr(flags, name)
        if value is not None:
            said[name] = value
    if command:
        said["command"] = [*command]
    return _request(said)


def _from_file(path: Path) -> Json:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--file {path}: {error}. Give a YAML file of flags and values") from error
    if not isinstance(content, dict):
        raise UsageError(f"--file {path}: give names of flags and their values, as in min: 2")
    said = {str(key).replace("-", "_"): value for key, value in content.items()}
    unknown = sorted(said.keys() - {*_SINGLE, *_PARSED})
    if unknown:
        known = ", ".join(sorted(name.replace("_", "-") for name in {*_SINGLE, *_PARSED}))
        raise UsageError(f"--file {path}: {unknown[0]!r} is none of {known}")
    for name in ("pod_template", "controller_pod_template"):
        if isinstance(said.get(name), str):
            said[name] = str(path.parent / said[name])
    return said


def _request(said: Json) -> JobRequest:
    values = {name: said[name] for name in _SINGLE if name in said}
    for name, (field, parse) in _PARSED.items():
        if name in said:
            try:
                values |= parse(said[name]) if field is None else {field: parse(said[name])}
            except (TypeError, AttributeError, ValueError) as error:
                raise UsageError(f"--{name.replace('_', '-')} is {said[name]!r}: {error}") from error
    for name, flag in (("name", "the job's name"), ("image", "--image")):
        if not values.get(name):
            raise UsageError(f"{flag} is missing: give it on the command line or in the --file")
    values.setdefault("command", [])
    values.setdefault("max", max(values.get("min", 1), 1))
    if values.get("gpu"):
        values.setdefault("nproc_per_pod", values["gpu"])
    try:
        return check(msgspec.convert(values, JobRequest))
    except msgspec.ValidationError as error:
        raise UsageError(f"{error}: see elastic-job submit --help for what it takes") from error


def _pairs(given: Any) -> dict[str, str]:
    """A mapping, or a list of K=V."""
    if isinstance(given, dict):
        return {str(key): str(value) for key, value in given.items()}
    pairs = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UsageError(f"{text!r} is no pair: give it as NAME=VALUE")
        pairs[key] = value
    return pairs


def _volumes(given: Sequence[str]) -> Json:
    """Both halves of each volume: where it comes from, and where it is mounted."""
    volumes, mounts = [], []
    for number, text in enumerate(given):
        kind, _, rest = text.partition(":")
        source, _, path = rest.partition(":")
        path, _, mode = path.partition(":")
        if kind not in _SOURCES or not source or not path.startswith("/") or mode not in ("", "ro"):
            raise UsageError(
                f"{text!r} is no volume: give host:/on/node:/in/pod, claim:NAME:/in/pod or config:NAME:/in/pod"
            )
        name = f"volume-{number}"
        volumes.append({"name": name, **_SOURCES[kind](source)})
        mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if mode else {})})
    return {"volumes": volumes, "volume_mounts": mounts}


def _tolerations(given: Sequence[Any]) -> list[Json]:
    return [text if isinstance(text, dict) else _toleration(text) for text in given]


def _toleration(text: str) -> Json:
    rest, _, effect = text.partition(":")
    key, separator, value = rest.partition("=")
    if effect and effect not in _EFFECTS:
        raise UsageError(f"{text!r} is no toleration: give an effect of {', '.join(_EFFECTS)}")
    toleration: Json = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
    if key:
        toleration["key"] = key
    if effect:
        toleration["effect"] = effect
    return toleration


def _template(given: Any) -> Json:
    """A mapping, or the name of a file with one."""
    if isinstance(given, str):
        try:
            given = yaml.safe_load(Path(given).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise UsageError(f"the pod template cannot be read: {error}. Give a YAML file") from error
    if not isinstance(given, dict):
        raise UsageError("this is no pod template: give a mapping with metadata and spec, or a pod's spec alone")
    return given


_SOURCES: dict[str, Callable[[str], Json]] = {
    "host": lambda source: {"hostPath": {"path": source}},
    "claim": lambda source: {"persistentVolumeClaim": {"claimName": source}},
    "config": lambda source: {"configMap": {"name": source}},
}
_PARSED: dict[str, tuple[str | None, Callable[[Any], Any]]] = {
    "cpu": ("cpu", str),
    "memory": ("memory", str),
    "env": ("env", _pairs),
    "volume": (None, _volumes),
    "node_selector": ("node_selector", _pairs),
    "toleration": ("tolerations", _tolerations),
    "pod_template": ("pod_template", _template),
    "controller_pod_template": ("controller_pod_template", _template),
    "command": ("command", lambda words: [str(word) for word in words]),
}
_SINGLE = frozenset(
    {
        *("name", "image", "min", "max", "nproc_per_pod", "gpu", "priority_class", "service_account"),
        *(
            "controller_image",
            "controller_service_account",
            "image_pull_policy",
            "user",
            "ttl",
            "backoff_limit",
            "active_deadline",
        ),
        *("grace_period", "min_timeout", "hang_timeout", "network_policy", "store"),
    }
)
