"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    model = ""
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "date": date.today().isoformat(),
        "cpu": model or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
    }
