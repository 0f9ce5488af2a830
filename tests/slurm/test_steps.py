"""`srun elastic-launch` on a real Slurm: the flags of a job of one's own are enough."""

from __future__ import annotations

import re

from .jobs import SlurmLab


def test_one_task_a_node_makes_one_job_of_all_nodes(job: SlurmLab) -> None:
    srun = job.srun("-N3 --ntasks-per-node=1", "--min", "2", "--max", "3", epochs=3, pause=0.02)
    assert srun.wait() == 0, srun.output
    job.assert_exact(epochs=3)
    assert re.search(r"serving job 'slurm-test-\d+\.0' for 2 to 3 workers at http://n1:2\d{4}", srun.output)


def test_several_tasks_a_node_and_several_workers_a_task_meet_too(job: SlurmLab) -> None:
    srun = job.srun("-N2 -n3 --distribution=cyclic", "--nproc-per-node", "2", "--min", "6", epochs=3)
    assert srun.wait() == 0, srun.output
    job.assert_exact(epochs=3, members=6)
    assert "for 6 to 6 workers" in srun.output


def test_tasks_of_one_node_meet_on_it(job: SlurmLab) -> None:
    srun = job.srun("-N1 -n2", "--min", "2", epochs=3)
    assert srun.wait() == 0, srun.output
    job.assert_exact(epochs=3, members=2)
    assert "http://127.0.0.1:" in srun.output


def test_a_single_task_is_a_job_of_its_own(job: SlurmLab) -> None:
    srun = job.srun("-N1 -n1", "--max", "2", "--min", "2", epochs=2)
    assert srun.wait() == 0, srun.output
    job.assert_exact(epochs=2, members=2)
