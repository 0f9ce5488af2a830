"""What goes wrong in the user's script: it ends that worker with a traceback, costs a restart, and fails the job when it must."""

from __future__ import annotations

from .launching import Lab


def test_an_exception_at_one_rank_costs_one_restart_and_no_sample(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", raise_at="5:1", open_ended=True, pause=0.02)
    lab.begin_together(3)
    lab.wait_for_entry("change", world_size=2, cause="lost")
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)
    assert "ValueError: the script's own mistake" in agent.output
    assert "has ended in step 5: exit code 1" in agent.output


def test_an_exception_at_all_ranks_fails_the_job_with_the_traceback_in_the_last_words(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--max-restarts", "100", raise_at="5:all", pause=0.02)
    assert agent.wait() == 1
    last_words = agent.output[agent.output.index("has failed") :]
    assert "ValueError: the script's own mistake" in last_words
    assert "in disturb" in last_words, "the traceback is missing"
    assert lab.step() == 4


def test_a_sample_that_crashes_whoever_gets_it_fails_the_job(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", "--max-restarts", "100", poison=17, pause=0.02)
    assert agent.wait() == 128 + 11
    assert "two workers crashed in step" in agent.output


def test_the_code_of_sys_exit_in_the_middle_is_the_jobs_when_no_restart_is_left(lab: Lab) -> None:
    agent = lab.launch("--max", "2", "--max-restarts", "0", exit_at="4:1:3", pause=0.02)
    lab.begin_together(2)
    assert agent.wait() == 3
    assert "1 crash, --max-restarts is 0" in agent.output


def test_a_worker_that_runs_out_of_memory_is_replaced_and_one_killed_for_it_too(lab: Lab) -> None:
    """The limit of the process stands for an allocation that fails, SIGKILL for the kernel's way."""
    agent = lab.launch("--min", "1", "--max", "2", starve_at="5:1", open_ended=True, pause=0.02)
    lab.begin_together(2)
    lab.wait_for_entry("change", world_size=1)
    lab.wait_for_world(2)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact()
    assert "can't allocate memory" in agent.output or "MemoryError" in agent.output


def test_a_joiner_that_crashes_again_and_again_comes_with_growing_delay_and_disturbs_nobody(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "2", "--max-restarts", "100", stillborn=1, open_ended=True, pause=0.02)
    lab.wait_for_world(2)
    survivor = lab.pid_of_rank(0)
    slot = lab.journal("ready", pid=lab.pid_of_rank(1))[0]["local_rank"]
    lab.kill_rank(1 if slot == 1 else 0)
    survivor = lab.pid_of_rank(0) if slot == 1 else lab.pid_of_rank(1)
    for delay in (1, 2, 4):
        lab.wait_for_text(agent, f"slot 1: a fresh worker starts in {delay} s")
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=1)
    assert lab.journal("end", pid=survivor)
    assert lab.generation() == 2


def test_a_joiner_that_crashes_more_often_than_is_allowed_fails_the_job_with_its_code(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "2", "--max-restarts", "2", stillborn=1, exit_at="3:1:4", open_ended=True)
    lab.begin_together(2)
    assert agent.wait() == 5
    assert "3 crashes, --max-restarts is 2" in agent.output


def test_a_script_that_never_joins_is_a_success_when_it_ends_and_too_few_when_it_does_not(lab: Lab) -> None:
    joining = ("--on-change", "in-process", "--max", "2")
    ending = lab.launch(*joining, script="plain.py")
    endless = lab.launch(*joining, "--min-timeout", "3", script="plain.py", sleep=100)
    assert ending.wait(30) == 0
    assert ending.output.count("nothing to train") == 2
    assert endless.wait(30) == 75
    assert "2 processes run but have not called elastic.join()" in endless.output


def test_fewer_than_min_for_too_long_has_an_exit_code_of_its_own(lab: Lab) -> None:
    agent = lab.launch("--min", "2", "--max", "2", "--nproc-per-node", "1", "--min-timeout", "4", epochs=1)
    assert agent.wait() == 75
    assert "fewer than 2 workers for 4 s" in agent.output
    assert not lab.journal("step")


def test_a_member_of_another_shape_is_rejected_alone_with_the_difference(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", odd_local_rank=1, epochs=2)
    assert agent.wait() == 0
    lab.assert_exact(epochs=2, members=2)
    assert "this worker's model does not fit the job's" in agent.output
    assert "net.3.weight" in agent.output
    assert len(lab.journal("ready")) == 3, "a rejected worker was started again"


def test_a_joiner_of_another_shape_is_rejected_while_the_job_goes_on(lab: Lab) -> None:
    first = lab.launch("--max", "2", "--nproc-per-node", "1", open_ended=True, pause=0.02)
    lab.wait_for_world(1)
    second = lab.launch("--rendezvous", first.url, "--nproc-per-node", "1", odd_local_rank=0)
    assert second.wait() == 65
    assert "none of this agent's workers fits job 'default'" in second.output
    assert "net.3.weight" in second.output
    lab.wait_for_steps(3)
    lab.finish()
    assert first.wait() == 0
    lab.assert_exact(members=1)


def test_a_joiner_with_another_backend_is_told_both_and_the_job_goes_on(lab: Lab) -> None:
    first = lab.launch("--max", "2", "--nproc-per-node", "1", "--backend", "gloo", open_ended=True, pause=0.02)
    lab.wait_for_world(1)
    second = lab.launch("--rendezvous", first.url, "--nproc-per-node", "1", "--backend", "tcp")
    assert second.wait() == 65
    assert "this worker's ring is tcp for PyTorch, the job's is gloo for PyTorch" in second.output
    lab.wait_for_steps(3)
    lab.finish()
    assert first.wait() == 0
    lab.assert_exact(members=1)
