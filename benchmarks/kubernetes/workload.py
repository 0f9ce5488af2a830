"""The workload of `benchmarks.recovery` in a pod: it notes in a folder of the pod's own, as every pod counts processes from 1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks import workload

if __name__ == "__main__":
    folder = Path("/journal") / os.environ["ELASTIC_POD_UID"]
    folder.mkdir(exist_ok=True)
    sys.argv += ["--timeline", str(folder)]
    workload.main()
