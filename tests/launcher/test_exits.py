from __future__ import annotations

import pytest

from elastic_launch.launcher.exits import classify, in_words
from elastic_launch.launcher.worker_record import WorkerRecord


def record(**fields: object) -> WorkerRecord:
    return WorkerRecord("a" * 32, 0, **fields)  # type: ignore[arg-type]


MEMBER = {"registered": True, "phase": "member", "formed": 3, "lineage": 3}


@pytest.mark.parametrize(
    ("code", "known", "stopped", "kind", "reported"),
    [
        (0, {}, False, "done", 0),
        (0, {**MEMBER, "finished": True, "told_done": True}, False, "done", 0),
        (0, {**MEMBER, "finished": True}, False, "done", 0),
        (0, {**MEMBER, "leaving": True, "released": True}, False, "left", 0),
        (0, {**MEMBER, "leaving": True}, False, "crash", 1),
        (0, MEMBER, False, "crash", 1),
        (0, {"registered": True}, False, "crash", 1),
        (3, {}, False, "crash", 3),
        (137, MEMBER, False, "crash", 137),
        (137, MEMBER, True, "left", 137),
        (0, MEMBER, True, "left", 0),
        (65, {"registered": True, "phase": "ready"}, False, "rejected", 65),
        (65, MEMBER, False, "crash", 65),
        (65, {}, False, "crash", 65),
        (66, MEMBER, False, "stale", 66),
        (66, {}, False, "crash", 66),
        (1, {**MEMBER, "released": True}, False, "crash", 1),
    ],
)
def test_an_end_is_taken_by_what_was_said_before(
    code: int, known: dict[str, object], stopped: bool, kind: str, reported: int
) -> None:
    assert classify(code, record(**known), stopped)[:2] == (kind, reported)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (128 + 9, "SIGKILL (killed)"),
        (128 + 11, "SIGSEGV (invalid memory access)"),
        (128 + 10, "SIGUSR1"),
        (255, "exit code 255"),
    ],
)
def test_codes_are_said_in_words(code: int, words: str) -> None:
    assert in_words(code) == words
