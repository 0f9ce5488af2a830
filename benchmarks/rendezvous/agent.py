"""A simulated agent: it says what `elastic-launch` says for one worker that is always well and trains in no time."""

from __future__ import annotations

import time

from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Broken,
    Dying,
    Exited,
    Formed,
    Hello,
    JobSpec,
    Message,
    Ready,
    Registered,
    Release,
    Restart,
    Started,
    Welcome,
    decode_to_agent,
    encode,
)

from .wire import Line, Received

SIGKILL = 137


class Agent:
    """One connection and one worker in slot 0. Times are `time.monotonic()`, the same clock in all processes."""

    def __init__(self, number: int, spec: JobSpec, received: Received) -> None:
        self.number = number
        self.welcome = False
        self.generation = 0
        """The newest that it was told of, and how large that is."""
        self.world_size = 0
        self.told: dict[int, float] = {}
        self.released: dict[int, float] = {}
        self.problem = ""
        self._lives = 0
        self._spec = spec
        self._received = received
        self._lineage = 0
        self._step = 1
        self._begin()

    async def connect(self, url: str) -> None:
        self._line = Line(self._received, self._hear, self._lost)
        await self._line.open(url)
        self.say(Hello(self._name, f"host-{self.number}", f"10.0.0.1:{20000 + self.number}", self._spec))
        self.say(Started(self._worker, 0))
        self.say(Registered(self._worker))

    def ready(self) -> None:
        self.say(Ready(self._worker))

    def beat(self) -> None:
        """As agents do, with a ping that shows whether the server lives."""
        self._step += 1
        self.say(Beat([(self._worker, self._step, 64.0 * self._step)]))
        self._line.ping()

    def report_broken(self) -> None:
        self.say(Broken(self._worker, self.generation, "Connection closed by peer"))

    def crash(self) -> None:
        """Its worker is killed."""
        self.say(Dying(self._worker, SIGKILL))
        self.say(Exited(self._worker, SIGKILL, step=self._step, reason="killed", local_rank=0))

    def vanish(self) -> None:
        """It is killed itself."""
        self.welcome = False
        self._line.reset()

    def start_another_worker(self) -> None:
        self._begin_worker()
        self.say(Started(self._worker, 0))
        self.say(Registered(self._worker))
        self.ready()

    async def come_anew(self, url: str) -> None:
        """Another agent in its place."""
        self._begin()
        await self.connect(url)
        self.ready()

    def say(self, message: Message) -> None:
        self._line.send(encode(message))

    def _begin(self) -> None:
        self._lives += 1
        self._name = f"agent-{self.number:05}-{self._lives:04}-{'f' * 16}"
        self._begin_worker()

    def _begin_worker(self) -> None:
        self._lives += 1
        self._worker = f"worker-{self.number:05}-{self._lives:04}-{'f' * 16}"
        self._lineage = 0

    def _hear(self, text: bytes) -> None:
        now = time.monotonic()
        message = decode_to_agent(text)
        if isinstance(message, Announce):
            if message.generation > self.generation:
                self.generation, self.world_size = message.generation, message.world_size
                self.told[message.generation] = now
                self.say(Formed(self._worker, message.generation, self._step))
        elif isinstance(message, Release):
            self._lineage = message.generation
            self.released[message.generation] = now
        elif isinstance(message, Welcome):
            self.welcome = True
        elif not isinstance(message, Restart):
            self.problem = f"agent {self.number} was told {message}"

    def _lost(self, error: str) -> None:
        self.welcome = False
        self.problem = f"agent {self.number} has lost its connection: {error}"
