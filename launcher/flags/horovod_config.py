"""The file of `--config-file`: YAML in horovodrun's own schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .words import Said

# Section and keys, as horovod.runner.common.util.config_parser reads them.
_SECTIONS = {
    "params": {
        "fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "hierarchical_allreduce", "hierarchical_allgather",
        "torus_allreduce",
    },
    "autotune": {
        "enabled", "log_file", "warmup_samples", "steps_per_sample", "bayes_opt_max_samples", "gaussian_process_noise",
    },
    "timeline": {"filename", "mark_cycles"},
    "stall_check": {"enabled", "warning_time_seconds", "shutdown_time_seconds"},
    "library_options": {"mpi_threads_disable", "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds"},
    "logging": {"level", "with_timestamp"},
}  # fmt: skip
NEVER = 7 * 24 * 3600  # seconds, in place of no limit


@dataclass
class Config:
    """What the file says in this launcher's own words, and a line for each part of it that means nothing here."""

    words: dict[str, Said] = field(default_factory=dict)
    without_effect: list[str] = field(default_factory=list)


def read_config(name: str) -> Config:
    """UsageError for a file that cannot be read, or is not in that schema."""
    try:
        text = Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config-file is {name!r}, which cannot be read: {reason}. Check the path") from None
    # Loaded where it is needed only.
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--config-file {name!r} is no YAML: {error}. Correct it there") from None
    config = Config()
    for section, value in _mapping(content, name).items():
        if section == "controller":
            _take_controller(value, name)
            continue
        if section not in _SECTIONS:
            raise UsageError(f"--config-file {name!r} has {section!r}: give {', '.join(['controller', *_SECTIONS])}")
        for key, entry in _mapping(value, f"{name}: {section}").items():
            if key not in _SECTIONS[section]:
                raise UsageError(
                    f"--config-file {name!r} has {section}.{key}: give {', '.join(sorted(_SECTIONS[section]))}"
                )
            if entry is not None:
                _take(config, section, key, entry, name)
    return config


def _take(config: Config, section: str, key: str, entry: Any, name: str) -> None:
    where = f"{section}.{key} in {name}"
    meaning = _MEANINGS.get((section, key))
    if meaning is None:
        config.without_effect.append(f"{where} has no effect: it is about Horovod's core, which is not used here")
    else:
        config.words.update({word: Said(value, where) for word, value in meaning(entry).items()})


def _take_controller(value: Any, name: str) -> None:
    if value is not None and str(value).lower() != "gloo":
        raise UsageError(
            f"--config-file {name!r} asks for the controller {value!r}: there is no MPI here, leave it out"
        )


def _hang_limit(seconds: Any) -> dict[str, str]:
    return {} if str(seconds) == "0" else {"hang_timeout": str(seconds)}


_MEANINGS: dict[tuple[str, str], Callable[[Any], dict[str, str]]] = {
    ("logging", "level"): lambda level: {"log_level": str(level)},
    ("logging", "with_timestamp"): lambda wanted: {"prefix": "time"} if wanted else {},
    ("stall_check", "enabled"): lambda enabled: {} if enabled else {"hang_timeout": str(NEVER)},
    ("stall_check", "shutdown_time_seconds"): _hang_limit,
}


def _mapping(value: Any, where: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"--config-file {where} holds {value!r}: give a mapping of names to values")
    return value
