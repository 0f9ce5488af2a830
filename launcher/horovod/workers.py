"""The workers of an agent whose script trains with the real Horovod, and the endpoint that leads their processes."""

from __future__ import annotations

from ..options import Options
from ..reporter import Reporter
from ..worker import Hooks, Worker
from ..worker_process import Surroundings, without_other_launchers
from ..worker_record import WorkerRecord
from ..workers import Workers
from .endpoint import Endpoint
from .environment import host_name
from .process import ProcessSettings
from .worker import HorovodSettings, HorovodWorker


class HorovodWorkers(Workers):
    def __init__(self, options: Options, surroundings: Surroundings, agent: str, reporter: Reporter) -> None:
        assert options.program is not None
        self._endpoint = Endpoint()
        process = ProcessSettings(
            job=options.job,
            host=options.host,
            hostname=host_name(options.host, agent),
            address=surroundings.address,
            program=options.program,
            python=options.python,
            environ=without_other_launchers(surroundings.environ),
            output=surroundings.output,
            guard=surroundings.guard,
            endpoint=self._endpoint,
            log_dir=options.log_dir,
        )
        self._settings = HorovodSettings(agent, options.shutdown_timeout, process, reporter)

    def start(self, record: WorkerRecord, hooks: Hooks) -> Worker:
        return HorovodWorker(self._settings, record, hooks)

    def resize(self, slots: int) -> None:
        """Processes are told their place in each ring."""

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    async def close(self) -> None:
        await self._endpoint.close()
