"""Where the agents of a step meet, and what they say when they cannot."""

from __future__ import annotations

from .jobs import SlurmLab

TAKE_THE_PORT = """\
import os, socket, subprocess, sys
if os.environ["SLURMD_NODENAME"] == "n1":
    from elastic_launch.launcher.batch.step import find_step
    taken = socket.create_server(("0.0.0.0", find_step(os.environ).port))
sys.exit(subprocess.run([*sys.argv[1:]]).returncode)
"""

BE_A_STRANGER = """\
import os, pathlib, subprocess, sys, time
from elastic_launch.launcher.batch.step import find_step
over, *command = sys.argv[1:]
first = os.environ["SLURMD_NODENAME"] == "n1"
if first:
    stranger = [sys.executable, "-m", "elastic_launch.rendezvous.main", "--host", "0.0.0.0", "--port"]
    server = subprocess.Popen([*stranger, str(find_step(os.environ).port)], stdout=subprocess.PIPE)
    server.stdout.readline()
print("this task has ended with", subprocess.run(command).returncode, flush=True)
if first:
    while not os.path.exists(over):
        time.sleep(0.1)
    server.kill()
pathlib.Path(over).touch()
sys.exit(1)
"""


def test_a_taken_port_is_named_with_the_way_out(job: SlurmLab) -> None:
    wrapper = job.folder / "taking.py"
    wrapper.write_text(TAKE_THE_PORT)
    launch = job.line("--rendezvous-timeout", "5", epochs=1).split()
    srun = job.cluster.run("-N2", launch[0], str(wrapper), *launch)
    assert srun.wait() != 0
    assert "endpoint n1:25" in srun.output and "Choose another port" in srun.output, srun.output

    other = job.cluster.run("-N2", launch[0], str(wrapper), *launch[:4], "--port", "24999", *launch[4:])
    assert other.wait() == 0, other.output


def test_a_server_of_somebody_elses_at_the_steps_place_is_no_meeting(job: SlurmLab) -> None:
    """Its port taken by another job's server, the step ends with errors on all nodes, and nobody trains apart."""
    script = job.folder / "other.py"
    script.write_text(BE_A_STRANGER)
    launch = job.line("--min", "1", "--max", "2", epochs=1).split()
    srun = job.cluster.run("-N2", launch[0], str(script), str(job.folder / "over"), *launch)
    assert srun.wait() != 0
    assert "this task has ended with 2" in srun.output and "this task has ended with 78" in srun.output, srun.output
    assert not job.journal("step")


def test_a_batch_script_of_several_nodes_without_srun_is_refused(job: SlurmLab) -> None:
    number = job.submit(job.line(epochs=1), "-N2")
    job.cluster.wait_for_job(number, "FAILED")
    assert "this Slurm job has 2 nodes, but srun has not started this launcher" in job.cluster.output_of(number)
    assert "Put srun in front" in job.cluster.output_of(number)


def test_two_steps_at_the_same_time_are_two_jobs(job: SlurmLab) -> None:
    line = "srun -N2 -n2 --exact " + job.line("--min", "2", epochs=1)
    number = job.submit(f"{line} & {line} & wait", "-N2 -n4 --ntasks-per-node=2")
    job.cluster.wait_for_job(number, "COMPLETED", limit=120)
    said = job.cluster.output_of(number)
    for step in (0, 1):
        assert said.count(f"serving job 'slurm-test-{number}.{step}' for 2 to 2 workers") == 1, said
        assert said.count(f"job 'slurm-test-{number}.{step}' is done") == 2, said


def test_a_heterogeneous_step_is_one_job(job: SlurmLab) -> None:
    step = f"#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N2 -n2\nsrun --het-group=0,1 {job.line('--min', '3', epochs=1)}"
    number = job.submit(step, "")
    job.cluster.wait_for_job(number, "COMPLETED", limit=120)
    job.assert_exact(epochs=1, members=3)


def test_np_is_the_number_of_workers_of_all_tasks_together(job: SlurmLab) -> None:
    srun = job.srun("-N2 -n4 --ntasks-per-node=2", "-np", "4", epochs=1)
    assert srun.wait() == 0, srun.output
    assert srun.output.count("serving job") == 1 and "for 4 to 4 workers" in srun.output, srun.output
    job.assert_exact(epochs=1, members=4)
    assert [entry["local_rank"] for entry in job.journal("ready")] == [0] * 4  # each task has one
