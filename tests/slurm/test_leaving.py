"""How members of a step leave: killed, signalled with the whole step, preempted, requeued."""

from __future__ import annotations

import signal

import pytest

from .jobs import SlurmLab


def test_a_killed_task_leaves_the_others_training(job: SlurmLab) -> None:
    srun = job.srun("-N3 --kill-on-bad-exit=0", "--min", "1", "--max", "3", open_ended=True, pause=0.02)
    job.wait_for_world(3)
    third = job.node("n3")
    for agent in job.agents(third):
        job.cluster.kill(third, agent, signal.SIGKILL)
    job.wait_for_world(2)
    job.wait_for_steps(5)
    job.finish()
    assert srun.wait() != 0, "srun hides that a task was killed"
    job.assert_exact(members=2)


def test_a_node_fails_and_the_job_goes_on_without_it(job: SlurmLab) -> None:
    line = "srun --no-kill --kill-on-bad-exit=0 " + job.line("--min", "1", open_ended=True, pause=0.02)
    number = job.submit(line, "-N3 --no-kill")
    job.wait_for_world(3)
    with job.cluster.crashed(job.node("n3")):
        job.wait_for_world(2)
        job.cluster.wait_for_node("n3", "down", limit=60)
        job.wait_for_steps(20)
        assert job.cluster.about_job(number)["JobState"] == "RUNNING"
        job.finish()
        job.wait(lambda: len(job.journal("end")) == 2, 60, "the end of the other two")
    job.assert_exact(members=2)


def test_a_signal_to_the_whole_step_ends_it_in_order_and_writes_the_last_checkpoint(job: SlurmLab) -> None:
    checkpoint = job.folder / "checkpoint"
    script = {"open_ended": True, "pause": 0.02, "checkpoint": checkpoint, "checkpoint_every": 10**6}
    srun = job.srun("-N2", "--min", "1", "--max", "2", "--signals-to-handle", "TERM,USR2", **script)
    job.wait_for_world(2)
    job.wait_for_steps(5)
    job.cluster.ask("scancel", "--signal=USR2", str(job.cluster.current_job()))
    assert srun.wait() == 0, srun.output
    last = job.step()
    assert not job.journal("redo")

    job.finish()
    again = job.srun("-N2", "--min", "2", "--job", "again", **script)
    assert again.wait() == 0, again.output
    ends = {entry["pid"] for entry in job.journal("end")}
    assert min(entry["step"] for entry in job.journal("step") if entry["pid"] in ends) == last + 1
    job.assert_exact(members=2)


def test_scancel_drains_with_data_loader_processes(job: SlurmLab) -> None:
    srun = job.srun("-N2", "--min", "1", "--max", "2", open_ended=True, pause=0.02, num_workers=1)
    job.wait_for_world(2)
    job.wait_for_steps(5)
    job.cluster.ask("scancel", str(job.cluster.current_job()))
    srun.wait()
    assert srun.output.count("drained: this agent's workers have left the job") == 2, srun.output
    assert "has ended" not in srun.output
    assert not job.journal("redo")


@pytest.mark.soak  # Slurm may start the next life before the last one has ended, and fail it for that
def test_a_job_that_is_preempted_goes_on_from_its_last_step_when_it_is_requeued(job: SlurmLab) -> None:
    script = {"open_ended": True, "pause": 0.02, "checkpoint": job.folder / "checkpoint", "checkpoint_every": 10**6}
    number = job.submit("srun " + job.line("--min", "2", **script), "-N2 --requeue --partition=work")
    job.wait_for_world(2)
    job.wait_for_steps(5)
    urgent = job.cluster.submit("true", "-N3", "--exclusive", "--partition=urgent")
    job.cluster.wait_for_job(urgent, "COMPLETED")
    last = job.step()
    assert not job.journal("redo")

    assert job.wait_for_return(number)["Restarts"] == "1"
    job.wait_for_step(last + 5)
    job.finish()
    job.cluster.wait_for_job(number, "COMPLETED")
    ends = {entry["pid"] for entry in job.journal("end")}
    assert (
        min(entry["step"] for entry in job.journal("step", generation=job.generation()) if entry["pid"] in ends) > last
    )
    job.assert_exact(members=2)


@pytest.mark.soak  # Slurm may start the next life before the last one has ended, and fail it for that
def test_a_job_that_its_time_limit_warns_is_requeued_if_it_says_so(job: SlurmLab) -> None:
    script = {"open_ended": True, "pause": 0.02, "checkpoint": job.folder / "checkpoint", "checkpoint_every": 10**6}
    number = job.submit("srun " + job.line("--requeue", "always", **script), "-N2 --requeue --time=30 --signal=USR1@60")
    job.wait_for_world(2)
    job.wait_for_steps(5)
    job.cluster.ask("scancel", "--signal=USR1", str(number))  # what Slurm does a minute before the limit
    job.wait_for_return(number)
    job.wait_for_steps(5)
    job.finish()
    job.cluster.wait_for_job(number, "COMPLETED")
    assert not job.journal("redo")
    job.assert_exact()


def test_a_script_that_knows_nothing_of_the_job_is_drained_by_scancel(job: SlurmLab) -> None:
    script = job.folder / "plain.py"
    script.write_text(
        "import os, time, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('in a world of', dist.get_world_size(), flush=True)\n"
        "time.sleep(600)\n"
    )
    srun = job.srun("-N2", "--min", "1", "--max", "2", script=str(script))
    job.wait_for_text(srun, "in a world of 2")
    job.cluster.ask("scancel", str(job.cluster.current_job()))
    srun.wait()
    assert srun.output.count("drained: this agent's workers have left the job") == 2, srun.output
    assert "Traceback" not in srun.output


def test_a_drained_node_is_left_alone_until_its_job_is_over(job: SlurmLab) -> None:
    """Slurm lets running jobs be: a drained node only gets no others. Whoever wants it sooner signals the step."""
    srun = job.srun("-N2 -w n1,n2", "--min", "1", "--max", "2", open_ended=True, pause=0.02)
    job.wait_for_world(2)
    job.cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=maintenance")
    job.wait_for_steps(20)
    assert job.world_size() == 2
    second = job.node("n2")
    for agent in job.agents(second):
        job.cluster.kill(second, agent, signal.SIGUSR1)
    job.wait_for_world(1)
    job.finish()
    assert srun.wait() == 0, srun.output
    assert not job.journal("redo")
    job.assert_exact(members=1)


def test_the_first_agent_leaves_and_its_server_stays_for_the_others(job: SlurmLab) -> None:
    srun = job.srun("-N3 --kill-on-bad-exit=0", "--min", "1", "--max", "3", open_ended=True, pause=0.02)
    job.wait_for_world(3)
    first, third = job.node("n1"), job.node("n3")
    for agent in job.agents(first):
        job.cluster.kill(first, agent, signal.SIGTERM)
    job.wait_for_world(2)
    job.wait_for_text(srun, "it goes on until they have left")
    for agent in job.agents(third):
        job.cluster.kill(third, agent, signal.SIGKILL)
    job.wait_for_world(1)
    job.finish()
    assert srun.wait() != 0
    assert "[elastic-launch n2] job 'slurm-test-" in srun.output
    job.assert_exact(members=1)


@pytest.mark.soak  # Slurm may start the next life before the last one has ended, and fail it for that
def test_elements_of_an_array_are_one_job_by_a_server_of_its_own(job: SlurmLab) -> None:
    """Preemptible jobs of one node each: one that is requeued comes back as a joiner."""
    server = job.serve(host=job.cluster.head.address, inside=job.cluster.head.inside)
    launch = job.line(
        "--rendezvous", server.url, "--job", "pool", "--min", "1", "--max", "3", open_ended=True, pause=0.05
    )
    array = job.submit("srun " + launch, "-N1 --exclusive --array=0-2 --requeue --partition=work")
    job.wait_for_world(3)
    job.cluster.ask("scontrol", "requeue", f"{array}_1")
    job.wait_for_world(2)
    job.wait_for_return(f"{array}_1")
    job.wait_for_world(3)
    job.finish()
    for element in range(3):
        job.cluster.wait_for_job(f"{array}_{element}", "COMPLETED")
    assert not job.journal("redo")
    job.assert_exact()
