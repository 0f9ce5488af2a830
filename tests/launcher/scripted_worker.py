"""A worker without torch: speaks the control protocol, and does what its arguments say, in order.

register, ready, form (waits for an announcement and its release), finish, await-done, await-released (after Drain), step=N,
print=TEXT, error=TEXT, raise=TEXT, exit=N, quit=N (os._exit), kill=N, once=FILE:STEP (unless FILE exists, which it makes),
child=FILE (a process in the same group that keeps the pipes; its pid in FILE), escape=FILE (one in a group of its own),
deaf (ignores signals), sleep, environ=NAME, lines=N, raw=HEX, say-nonsense, fill-memory=CGROUP
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

from elastic_launch.rendezvous import worker_environment
from elastic_launch.rendezvous.messages import (
    Announce,
    Done,
    Drain,
    Finished,
    Formed,
    Message,
    Ready,
    Registered,
    Release,
    Released,
    decode_to_worker,
    encode,
)
from elastic_launch.rendezvous.progress import Progress, ProgressPage

Kind = TypeVar("Kind", bound=Message)


class ScriptedWorker:
    def __init__(self) -> None:
        self.worker = os.environ[worker_environment.WORKER]
        self.line = socket.socket(fileno=int(os.environ[worker_environment.CONTROL_FD]))
        self.page = ProgressPage(int(os.environ[worker_environment.PROGRESS_FD]))
        self.received = self.line.makefile("rb")

    def say(self, message: Message) -> None:
        self.line.sendall(encode(message) + b"\n")

    def expect(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; others are left out."""
        for line in self.received:
            message = decode_to_worker(line)
            if isinstance(message, kind):
                return message
        raise SystemExit("the agent is gone")

    def do(self, step: str) -> None:
        name, _, value = step.partition("=")
        if name == "register":
            self.say(Registered(self.worker))
        elif name == "ready":
            self.say(Ready(self.worker))
        elif name == "form":
            announce = self.expect(Announce)
            self.say(Formed(self.worker, announce.generation))
            self.expect(Release)
        elif name == "finish":
            self.say(Finished(self.worker))
        elif name == "await-done":
            self.expect(Done)
        elif name == "await-released":
            self.expect(Drain)
            self.expect(Released)
        elif name == "step":
            self.page.write(Progress(1, 0, 1, int(value), 0.0))
        elif name == "print":
            print(value, flush=True)
        elif name == "error":
            print(value, file=sys.stderr, flush=True)
        elif name == "raise":
            raise ValueError(value)
        elif name == "exit":
            sys.exit(int(value))
        elif name == "quit":
            os._exit(int(value))
        elif name == "kill":
            os.kill(os.getpid(), int(value))
        elif name == "once":
            self.do_once(*value.split(":", 1))
        elif name in ("child", "escape"):
            child = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=name == "escape"
            )
            Path(value).write_text(str(child.pid))
        elif name == "fill-memory":
            (Path(value) / "cgroup.procs").write_text(str(os.getpid()))
            held = []
            while True:
                held.append(b"x" * (1 << 20))
        elif name == "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        elif name == "sleep":
            time.sleep(600)
        elif name == "environ":
            print(value, "is", os.environ.get(value), flush=True)
        elif name == "lines":
            sys.stdout.write("".join(f"line {number}\n" for number in range(int(value))))
            sys.stdout.flush()
        elif name == "raw":
            sys.stdout.buffer.write(bytes.fromhex(value))
            sys.stdout.buffer.flush()
        elif name == "say-nonsense":
            self.line.sendall(b"this is no message\n")
        else:
            raise SystemExit(f"{step!r} is not a step of this script")

    def do_once(self, marker: str, step: str) -> None:
        if not os.path.exists(marker):
            Path(marker).touch()
            self.do(step)


if __name__ == "__main__":
    worker = ScriptedWorker()
    for step in sys.argv[1:]:
        worker.do(step)
