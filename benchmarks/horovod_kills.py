"""Kill -9 of one of the workers of an elastic Horovod script: how soon the survivors commit again, under each launcher.

    PYTHONPATH=/where/horovod/is python -m benchmarks.horovod_kills [--trials 5]

The same script by horovodrun with a discovery script, by elastic-launch with the real Horovod, and by elastic-launch
--horovod, on our ring. horovodrun never uses a host again on which a worker failed: each trial is a job of its own. To it the
machine is two hosts, and the one worker of the second is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

from .jobs import BenchmarkError, Program, ending, wait_for
from .kills import kill
from .machine import machine
from .settings import scratch_folder
from .summary import summarise
from .timeline import Event, Note, Recorded, Recordings

_CALM_STEPS = 30
_LIMIT = 180.0  # seconds
_DISCOVERY = "#!/bin/sh\necho localhost:{most}\necho 127.0.0.1:1\n"
LAUNCHERS = ("horovodrun", "elastic-launch", "elastic-launch --horovod")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5, help="of each launcher, which take turns")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    parser.add_argument("--out", type=Path, help="file for all trials, as JSON")
    asked = parser.parse_args()
    generator = random.Random(0)
    trials: dict[str, list[dict[str, float]]] = {launcher: [] for launcher in asked.only}
    for _ in range(asked.trials):
        for launcher in asked.only:
            trials[launcher].append(_trial(launcher, asked.workers, generator))
            print(launcher, json.dumps(trials[launcher][-1]), file=sys.stderr, flush=True)
    print(json.dumps(machine()))
    print(f"{asked.workers} workers, {asked.trials} kills under each launcher; kill to the survivors' next commit")
    print("\n| launcher | step | median | worst | of which dying | survivors that died of it | jobs that failed |")
    print("|---|---|---|---|---|---|---|")
    for launcher, found in trials.items():
        step, died = (median(trial[name] for trial in found) for name in ("step_ms", "died_ms"))
        recovery = summarise([trial["all_ms"] for trial in found if "all_ms" in trial])
        numbers = f"{recovery.median:.0f} ms | {recovery.worst:.0f} ms | {died:.0f} ms"
        also = sum(trial.get("also_lost", 0) for trial in found)
        print(f"| {launcher} | {step:.0f} ms | {numbers} | {also:.0f} | {len(found) - recovery.count} |")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"machine": machine(), "trials": trials}, indent=1) + "\n")


def _trial(launcher: str, workers: int, generator: random.Random) -> dict[str, float]:
    """Without `all_ms` if the job did not go on."""
    with scratch_folder() as name:
        folder = Path(name)
        job = Program(_command(launcher, workers, folder), folder / "launcher.log", _environment())
        recordings = Recordings(folder)
        with ending(job):
            members = wait_for(lambda: _members(recordings, workers, _CALM_STEPS), _LIMIT, "a calm ring", job)
            gaps = [(b.time - a.time) / 1e6 for each in members for a, b in pairwise(each.commits[-_CALM_STEPS:])]
            step_ms = median(gaps)
            time.sleep(generator.uniform(0.0, 2 * step_ms / 1e3))
            victim = _alone_on_its_host(members)
            killed_at, died_ms = kill(victim.pid)
            trial = {"step_ms": step_ms, "died_ms": died_ms}
            survivors = [each for each in members if each is not victim]
            try:
                going_on = wait_for(lambda: _going_on(survivors, killed_at, workers), _LIMIT, "the next commits", job)
            except BenchmarkError as error:
                print(f"{launcher}: {error}", file=sys.stderr)
                return trial
            if len(going_on) < len(survivors):
                print(f"{launcher}: {job.output[-3000:]}", file=sys.stderr)
            since = [(_after(each, killed_at, workers)[0].time - killed_at) / 1e6 for each in going_on]
    return {**trial, "also_lost": len(survivors) - len(going_on), "first_ms": min(since), "all_ms": max(since)}


def _going_on(survivors: list[Recorded], killed_at: int, workers: int) -> list[Recorded]:
    """Those that have not died of it, once each of them has committed again."""
    living = [each for each in survivors if psutil.pid_exists(each.pid)]
    return living if all(_after(each, killed_at, workers) for each in living) else []


def _alone_on_its_host(members: list[Recorded]) -> Recorded:
    """horovodrun ends all processes of a host on which one has failed. The last one where there is no such host."""
    names = [psutil.Process(each.pid).environ().get("HOROVOD_HOSTNAME") for each in members]
    return next((each for each, name in zip(members, names, strict=True) if names.count(name) == 1), members[-1])


def _command(launcher: str, workers: int, folder: Path) -> list[str]:
    script = [str(Path(__file__).with_name("horovod_script.py")), "--notes", str(folder)]
    if launcher == "horovodrun":
        discovery = folder / "discover.sh"
        discovery.write_text(_DISCOVERY.format(most=workers - 1))
        discovery.chmod(0o755)
        flags = ["-np", str(workers), "--min-np", "1", "--network-interfaces", "lo", "--gloo"]
        flags += ["--host-discovery-script", str(discovery)]
        return [sys.executable, "-m", "horovod.runner.launch", *flags, sys.executable, *script]
    ours = ["--horovod"] if launcher.endswith("--horovod") else []
    agent = ["elastic_launch.launcher.main", "--min", "1", "--max", str(workers)]
    return [sys.executable, "-m", *agent, *ours, *script]


def _environment() -> dict[str, str]:
    """`Program` puts this package first."""
    return {"PYTHONPATH": f"{Path(__file__).parent.parent}:{os.environ.get('PYTHONPATH', '')}"}


def _members(recordings: Recordings, size: int, steps: int) -> list[Recorded]:
    """By rank, once each has made so many steps in a ring of that size."""
    ranks = {}
    for each in recordings.all():
        commits = [note for note in each.commits if note.world_size == size]
        if len(commits) >= steps:
            ranks[commits[-1].rank] = each
    return [ranks[rank] for rank in sorted(ranks)] if len(ranks) == size else []


def _after(member: Recorded, killed_at: int, workers: int) -> list[Note]:
    """Its commits in the ring without the one that was killed."""
    return [
        note
        for note in member.notes
        if note.event is Event.COMMITTED and note.time > killed_at and note.world_size < workers
    ]


if __name__ == "__main__":
    main()
