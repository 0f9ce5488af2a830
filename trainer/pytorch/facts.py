"""What the torch of this interpreter can do, as one line of JSON: asked by `elastic-launch --check`, which never imports it."""

from __future__ import annotations

import datetime
import json
from typing import Any


def facts() -> dict[str, Any]:
    """`error` alone if torch cannot be imported."""
    try:
        import torch
        import torch.distributed
    except Exception as error:
        return {"error": f"cannot be imported: {type(error).__name__}: {error}"}
    dist: Any = torch.distributed  # much of it is not declared as exported
    if not dist.is_available():
        return {"error": f"{torch.__version__} was built without torch.distributed"}
    found: dict[str, Any] = {
        "version": torch.__version__,
        "built_for": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only",
        "backends": [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if _has(dist, name)],
        "gpus": [],
        "gpu_error": "",
        "gloo_error": "",
    }
    try:
        found["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        if found["gpus"]:
            torch.zeros(1, device="cuda").add_(1).item()
    except Exception as error:
        found["gpus"], found["gpu_error"] = [], f"({error})"
    if "gloo" in found["backends"]:
        try:
            limit = datetime.timedelta(seconds=20)
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
        except Exception as error:
            found["gloo_error"] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return found


def _has(dist: Any, name: str) -> bool:
    is_there = getattr(dist, f"is_{name}_available", None)
    return is_there is not None and bool(is_there())


if __name__ == "__main__":
    print(json.dumps(facts()))
