"""Everything at once, at random, for long: kills, stops, drains and arrivals on several agents."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from .conftest import Undisturbed
from .launching import Command, Lab

POINTS = ["announced", "connecting", "exchanging", "applying", "copying", "formed", "voting", "voted"]


class Chaos:
    """Disturbs a job of up to five workers on three agents or so; two workers, at least, are always left in peace."""

    def __init__(self, lab: Lab, seed: int, folder: Path) -> None:
        self.lab = lab
        self.source = random.Random(seed)
        self.server = lab.serve()
        self.folder = folder
        self.agents: list[Command] = [self.start(2), self.start(1), self.start(1)]

    def start(self, workers: int) -> Command:
        return self.lab.launch(
            "--rendezvous", self.server.url, "--min", "1", "--max", "5", "--nproc-per-node", str(workers),
            "--max-restarts", "10000", "--hang-timeout", "4",
            open_ended=True, pause=0.01, evaluate=True, num_workers=self.source.randrange(2),
            checkpoint=self.folder, checkpoint_every=50,
        )  # fmt: skip

    def disturb(self) -> None:
        kinds = [self.kill, self.kill, self.kill, self.die_at_a_point, self.stop_briefly, self.drain, self.kill_agent]
        self.lab.wait(lambda: self.lab.world_size() >= 3, 90, "a ring of three or more")
        with contextlib.suppress(ProcessLookupError):  # it has just died of an earlier disturbance
            self.source.choice(kinds)()
        self.lab.wait_for_steps(self.source.randrange(1, 12), 90)

    def kill(self) -> None:
        self.lab.kill_rank(self.source.randrange(self.lab.world_size()))

    def die_at_a_point(self) -> None:
        note = self.lab.plan_death(self.source.choice(POINTS), 0)
        self.kill()
        time.sleep(self.source.random())
        note.unlink(missing_ok=True)

    def stop_briefly(self) -> None:
        pid = self.lab.pid_of_rank(self.source.randrange(self.lab.world_size()))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.source.choice([0.05, 0.5, 8]))
        os.kill(pid, signal.SIGCONT)

    def drain(self) -> None:
        agent = self.replace_one()
        agent.signal(signal.SIGTERM)
        assert agent.wait(60) == 0

    def kill_agent(self) -> None:
        self.replace_one().signal(signal.SIGKILL)

    def replace_one(self) -> Command:
        """Any but the first agent, once it has started its workers; another one takes its place."""
        agent = self.agents.pop(self.source.randrange(1, len(self.agents)))
        self.agents.append(self.start(1))
        self.lab.wait(agent.workers, 30, "the workers of an agent")
        return agent


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_40_disturbances_of_all_kinds_cost_no_sample(
    lab: Lab, undisturbed: Undisturbed, tmp_path: Path, seed: int
) -> None:
    chaos = Chaos(lab, seed, tmp_path / "checkpoints")
    for _ in range(40):
        chaos.disturb()
    lab.finish()
    assert {agent.wait() for agent in chaos.agents} == {0}
    lab.assert_exact()
    assert not lab.journal("change", cause="restored"), "somebody held the state all the time"
    lab.assert_follows(undisturbed("--epochs", str(lab.journal("end")[0]["epochs"])))
