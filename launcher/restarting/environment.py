"""The environment of a script: torchrun's, as its documentation lists it ("Environment Variables"), and TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...rendezvous import worker_environment
from ...rendezvous.tf_config import TF_CONFIG, tf_config
from .world import Seat

RESTARTED = "1"


@dataclass(frozen=True)
class ScriptSettings:
    """What all scripts of an agent have in common, in torchrun's words."""

    run_id: str
    role: str = "default"
    max_restarts: int = 3
    virtual_local_rank: bool = False


def script_environment(
    environ: Mapping[str, str], settings: ScriptSettings, seat: Seat, generation: int, error_file: str
) -> dict[str, str]:
    """`environ` is the agent's own, without what another launcher has put into it.

    TORCHELASTIC_RESTART_COUNT must be the same on all hosts, for it separates the keys of one start from those of the next
    in the store: it is counted in generations.
    """
    host, _, port = seat.store.rpartition(":")
    made = {
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(seat.world_size),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_world_size),
        "GROUP_RANK": str(seat.group_rank),
        "GROUP_WORLD_SIZE": str(seat.group_world_size),
        "ROLE_NAME": settings.role,
        "ROLE_RANK": str(seat.role_rank),
        "ROLE_WORLD_SIZE": str(seat.role_world_size),
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(seat.store_is_served),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        TF_CONFIG: tf_config(seat.workers, seat.rank),
        worker_environment.RESTARTED: RESTARTED,
    }
    if settings.virtual_local_rank:
        made |= _only_device(environ, seat.local_rank)
    return {**environ, **made}


def _only_device(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Every script sees one device, which is number 0 to it."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    device = visible[local_rank] if local_rank < len(visible) else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
