"""Training jobs on a Slurm cluster, by the lines that users write, and what their workers wrote down."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from tests.system.launching import SCRIPTS, Command, Lab

from .clusters import Cluster, Node

LAUNCH = f"{sys.executable} -u -m elastic_launch.launcher.main"


class SlurmLab(Lab):
    """One job's journal. Processes of its journal are known by the numbers that they have on their own nodes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster

    def line(self, *flags: str, script: str = "train.py", **options: Any) -> str:
        """`elastic-launch FLAGS SCRIPT ...` for a shell; keyword options become the script's flags (True: a bare flag)."""
        words = [*flags, str(SCRIPTS / script), "--journal", str(self.folder)]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
        return f"{LAUNCH} {shlex.join(words)}"

    def srun(self, flags: str, *launcher_flags: str, script: str = "train.py", **options: Any) -> Command:
        """srun in the foreground, with these flags of its own."""
        command = self.cluster.run(*flags.split(), *shlex.split(self.line(*launcher_flags, script=script, **options)))
        self.commands.append(command)
        return command

    def submit(self, script: str, flags: str) -> int:
        """sbatch with these flags; the job's number."""
        return self.cluster.submit(script, *flags.split())

    def wait_for_return(self, job: int | str) -> dict[str, str]:
        """Until a job that was requeued runs again, without the two minutes that Slurm would have it wait."""
        self.cluster.wait_for_job(job, "PENDING")
        self.cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
        return self.cluster.wait_for_job(job, "RUNNING", limit=90)

    def agents(self, node: Node) -> list[int]:
        return [pid for pid in self.cluster.processes(node, "elastic_launch.launcher.main") if pid > 1]

    def node(self, name: str) -> Node:
        return next(node for node in self.cluster.nodes if node.name == name)
