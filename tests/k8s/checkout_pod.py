"""Pods that run this checkout: the machine's own system folders, the virtual environment and the repository are mounted into
an empty image, so that nothing has to be built. That needs a cluster whose (only) node is this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
EMPTY_IMAGE = "docker.io/library/host:latest"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ssl")


def pod_template(container: str, journal: Path) -> dict[str, Any]:
    """A pod's spec, to be merged in. `journal` is mounted at /journal."""
    folders = dict.fromkeys([*SYSTEM, str(ROOT), sys.prefix, sys.base_prefix])
    venv = Path(sys.prefix).resolve()
    environment = {
        "PATH": f"{venv}/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    mounts = [{"name": "journal", "mountPath": "/journal"}]
    volumes: list[dict[str, Any]] = [{"name": "journal", "hostPath": {"path": str(journal)}}]
    for number, folder in enumerate(dict.fromkeys([*folders, str(venv)])):
        mounts.append({"name": f"machine-{number}", "mountPath": folder})
        volumes.append({"name": f"machine-{number}", "hostPath": {"path": str(Path(folder).resolve())}})
    return {
        "containers": [
            {
                "name": container,
                "workingDir": str(ROOT),
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
