"""A script that knows nothing of this package: it writes down where it is, and does what files in its folder tell it.

`finish` or `finish-RANK`: it ends well. `crash-RANK`: it takes the file away and fails; if it is terminated before it has seen
that, because another one has failed, the file is not for its next life either. `stubborn`: it ignores SIGTERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--journal") + 1])
names = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS", "TF_CONFIG",
)  # fmt: skip
place = {name: os.environ[name] for name in names if name in os.environ}
rank = place["RANK"]


def write(event: str) -> None:
    entry = {"event": event, "pid": os.getpid(), "at": time.time(), "arguments": sys.argv[1:], **place}
    descriptor = os.open(folder / "plain.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps(entry) + "\n").encode())
    os.close(descriptor)


def terminated(number: int, frame: object) -> None:
    write("terminated")
    if not (folder / "stubborn").exists():
        (folder / f"crash-{rank}").unlink(missing_ok=True)
        sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    write("start")
    print(f"rank {rank} is here", flush=True)
    while not (folder / "finish").exists() and not (folder / f"finish-{rank}").exists():
        if (folder / f"crash-{rank}").exists():
            (folder / f"crash-{rank}").unlink()
            write("crash")
            raise ValueError(f"rank {rank} has no luck")
        time.sleep(0.02)
    write("end")
