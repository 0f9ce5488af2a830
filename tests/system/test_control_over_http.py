"""A running job is watched, resized and stopped over HTTP, with real agents and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from .launching import Command, Lab

TOKEN = "open-sesame"


def ask(server: Command, method: str, path: str = "", **options: Any) -> httpx.Response:
    url = f"{server.url}/v1/jobs/default{path}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.request(method, url, headers=headers, trust_env=False, timeout=10, **options)


def test_a_job_is_watched_resized_and_stopped_over_http(lab: Lab, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    server = lab.serve("--token-file", str(token))
    shared = ("--rendezvous", server.url, "--token-file", str(token), "--min", "1", "--max", "3")
    first, second = (
        lab.launch(*shared, "--nproc-per-node", nproc, open_ended=True, pause=0.02) for nproc in ("1", "2")
    )
    lab.wait_for_world(3)

    def moves() -> bool:
        job = ask(server, "GET").json()
        speeds = [worker["steps_per_second"] for worker in job["workers"]]
        return job["state"] == "running" and len(speeds) == 3 and min(speeds) > 0 and job["samples_per_second"] > 0

    lab.wait(moves, 30, "the speed of every worker")
    assert ask(server, "PATCH", json={"max": 1}).json()["spec"]["max"] == 1
    lab.wait_for_world(1)
    lab.wait(
        lambda: len(ask(server, "GET").json()["workers"]) == 1, 30, "the end of the agent's workers that had to go"
    )
    assert ask(server, "PATCH", json={"max": 3}).status_code == 200
    lab.wait_for_world(3)
    lab.wait_for_steps(3)
    lab.assert_nothing_redone()
    kinds = [event["kind"] for event in ask(server, "GET", "/events").json()["events"]]
    assert kinds.count("resized") == 2 and "crash" not in kinds
    assert ask(server, "DELETE").status_code == 202
    assert [first.wait(30), second.wait(30)] == [130, 130]
    assert "was stopped" in first.output
    assert ask(server, "DELETE").json()["state"] == "removed"
    assert TOKEN not in server.output + first.output + second.output


def test_an_agent_with_a_wrong_token_ends_with_a_clear_error(lab: Lab, tmp_path: Path) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text(TOKEN)
    wrong.write_text("open-barley")
    first = lab.launch("--max", "2", "--nproc-per-node", "1", "--token-file", str(token), open_ended=True)
    joining = ("--rendezvous", first.url, "--nproc-per-node", "1", "--token-file")
    other = lab.launch(*joining, str(wrong), open_ended=True)
    assert other.wait(60) == 78
    assert "does not take this agent's token" in other.output and "open-barley" not in other.output
    third = lab.launch(*joining, str(token), open_ended=True)
    lab.wait_for_world(2)
    lab.finish()
    assert [first.wait(), third.wait()] == [0, 0]
