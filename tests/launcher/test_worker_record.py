from __future__ import annotations

from elastic_launch.launcher.worker_record import WorkerRecord
from elastic_launch.rendezvous.messages import (
    Announce,
    Broken,
    Drain,
    Evicted,
    Finished,
    Formed,
    Place,
    Ready,
    Registered,
    Release,
    WorkerClaim,
)

NONCE = "a" * 32


def announce(generation: int, rank: int, formed: int = 0) -> Announce:
    return Announce(generation, 2, [Place(NONCE, rank)], "127.0.0.1:1", "secret", formed=formed)


def member_of(generation: int, rank: int = 1) -> WorkerRecord:
    record = WorkerRecord(NONCE, 0)
    record.said(Registered(NONCE))
    record.said(Ready(NONCE))
    record.told(announce(generation, rank))
    record.said(Formed(NONCE, generation))
    record.told(Release(generation))
    return record


def test_a_fresh_worker_prepares() -> None:
    assert WorkerRecord(NONCE, 2).claim() == WorkerClaim(NONCE, 2, "preparing")


def test_a_member_claims_what_it_has_formed() -> None:
    assert member_of(4).claim() == WorkerClaim(NONCE, 0, "member", lineage=4, formed=4)


def test_a_generation_that_is_not_known_to_be_durable_is_no_lineage() -> None:
    record = member_of(4)
    record.told(announce(5, 0, formed=4))
    record.said(Formed(NONCE, 5))
    assert (record.lineage, record.formed) == (4, 5)
    record.told(announce(6, 0, formed=5))
    assert (record.lineage, record.formed) == (5, 5)


def test_a_release_of_another_generation_changes_nothing() -> None:
    record = member_of(4)
    record.told(Release(9))
    assert record.lineage == 4


def test_an_evicted_worker_that_is_ready_again_has_answered() -> None:
    record = member_of(4)
    record.told(Evicted(NONCE))
    assert record.evicted
    record.said(Ready(NONCE, lineage=4, checkpoint=100))
    assert not record.evicted
    assert record.claim() == WorkerClaim(NONCE, 0, "ready", lineage=4, formed=4, checkpoint=100)


def test_a_claim_says_broken_leaving_and_finished() -> None:
    record = member_of(4)
    record.said(Broken(NONCE, 4))
    record.told(Drain(NONCE))
    record.said(Finished(NONCE))
    claim = record.claim()
    assert (claim.broken, claim.leaving, claim.phase) == (4, True, "finished")


def test_lines_are_labelled_with_the_ring_that_the_worker_is_in() -> None:
    assert WorkerRecord(NONCE, 2).label("host") == ("host", 2, 0, -1, "")
    record = member_of(4, rank=1)
    assert record.label("host")[2:4] == (4, 1)
    record.told(announce(5, 0))
    assert record.label("host")[2:4] == (4, 1)
    record.said(Formed(NONCE, 5))
    assert record.label("host")[2:4] == (5, 0)


def test_a_leaver_keeps_its_label() -> None:
    record = member_of(4, rank=1)
    record.told(announce(5, -1))
    assert record.label("host")[2:4] == (4, 1)
