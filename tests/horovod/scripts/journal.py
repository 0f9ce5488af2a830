"""What a script writes down for the test that runs it: a line for each event, in a file of this process's own."""

import json
import os
import time


class Journal:
    def __init__(self, folder):
        self.folder = folder

    def write(self, event, **fields):
        if self.folder:
            entry = {"event": event, "pid": os.getpid(), "time": time.time(), **fields}
            with open(os.path.join(self.folder, f"{os.getpid()}.jsonl"), "a") as file:
                file.write(json.dumps(entry) + "\n")

    def has(self, name):
        """Whether the test has left a note of that name."""
        return bool(self.folder) and os.path.exists(os.path.join(self.folder, name))

    def hold(self, place):
        """Wait where the test wants somebody to wait."""
        if self.has(f"hold-{place}"):
            self.write("held", place=place)
            while self.has(f"hold-{place}"):
                time.sleep(0.02)
