"""The system tests' training script in a process that eats all the memory there is, when a note in the journal says so."""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path

TRAIN = Path(__file__).parent.parent.parent / "system" / "scripts" / "train.py"
NOTE = Path("/journal/eat")


def eat() -> None:
    while not NOTE.exists():
        time.sleep(0.05)
    try:
        NOTE.unlink()
    except FileNotFoundError:
        return  # another one is hungrier
    meals = []
    while True:
        meals.append(bytearray(b"x" * (16 << 20)))


threading.Thread(target=eat, daemon=True).start()
sys.path.insert(0, str(TRAIN.parent))
sys.argv[0] = str(TRAIN)
runpy.run_path(str(TRAIN), run_name="__main__")
