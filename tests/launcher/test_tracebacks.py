from __future__ import annotations

import pytest

from elastic_launch.launcher.output.tracebacks import Folder, Shown

BOOM = b"""Traceback (most recent call last):
  File "/train.py", line 3, in <module>
    main(%d)
    ^^^^^^^
ValueError: worker %d has lost its way
"""
CHAINED = (
    BOOM + b"\nDuring handling of the above exception, another exception occurred:\n\n" + BOOM.replace(b"lost", b"left")
)


def shown_of(*streams: bytes, size: int = 1 << 20) -> list[bytes]:
    """What is shown of each worker's stream, if they come one after the other, in pieces of `size` bytes."""
    shown = Shown()
    found = []
    for rank, text in enumerate(streams):
        folder = Folder(shown)
        pieces = [folder.feed(text[start : start + size], f"rank {rank}") for start in range(0, len(text), size)]
        found.append(b"".join(pieces) + folder.finish())
    return found


def boom(rank: int, text: bytes = BOOM) -> bytes:
    return text.replace(b"%d", b"%d" % rank)


def test_the_first_worker_s_traceback_is_shown_and_the_others_last_lines() -> None:
    first, *others = shown_of(*(boom(rank) for rank in range(8)))
    assert first == boom(0)
    for rank, other in enumerate(others, 1):
        text = b"ValueError: worker %d has lost its way  (the traceback is the same as that of rank 0)\n"
        assert other == text % rank


@pytest.mark.parametrize("size", [1, 2, 5, 17, 64])
def test_where_the_pieces_are_cut_makes_no_difference(size: int) -> None:
    texts = [b"before\n\r10%\r20%\n" + boom(rank) + b"after %d\nlast" % rank for rank in range(3)]
    assert shown_of(*texts, size=size) == shown_of(*texts)


def test_chained_tracebacks_are_shown_once_with_what_stands_between() -> None:
    first, second = shown_of(boom(0, CHAINED), boom(1, CHAINED))
    assert first == boom(0, CHAINED)
    assert second.count(b"the same as that of rank 0") == 2
    assert second.count(b"\n") == 2


def test_what_torch_puts_in_front_of_each_line_makes_no_difference() -> None:
    texts = [b"".join(b"[rank%d]: " % rank + line for line in boom(rank).splitlines(keepends=True)) for rank in (0, 1)]
    first, second = shown_of(*texts)
    assert first == texts[0]
    assert second.startswith(b"[rank1]: ValueError: worker 1 has lost its way  (the traceback is the same")


def test_what_follows_a_traceback_is_left_out_only_as_long_as_it_is_the_same() -> None:
    frames = b"Exception raised from f at a.cpp:%d\nframe #0: 0x7f%d\n"
    first, second = shown_of(
        *(boom(rank) + boom(rank, frames) + b"own %s\n" % name for rank, name in ((0, b"a"), (1, b"b")))
    )
    assert first == boom(0) + boom(0, frames) + b"own a\n"
    assert second.count(b"\n") == 2 and second.endswith(b"own b\n")


def test_what_a_worker_goes_on_with_after_a_traceback_is_shown_though_it_differs_in_numbers_only() -> None:
    lines = b"".join(b"step %d, loss 0.%d\n" % (step, step) for step in range(50))
    first, second = shown_of(boom(0) + lines, boom(1) + lines)
    assert first == boom(0) + lines
    assert second.endswith(lines)


def test_another_traceback_is_shown() -> None:
    _, second = shown_of(boom(0), boom(1).replace(b"main", b"other"))
    assert second == boom(1).replace(b"main", b"other")


def test_a_worker_s_own_traceback_is_shown_each_time() -> None:
    assert shown_of(boom(0) * 3) == [boom(0) * 3]


def test_what_is_unfinished_is_shown_at_the_end() -> None:
    text = b"".join(BOOM.splitlines(keepends=True)[:3])
    assert shown_of(text) == [text]


def test_other_output_passes_as_it_comes() -> None:
    folder = Folder(Shown())
    for piece in (b"a line\n", b"\r10%", b"\r20%\r", b"no end", b"\xff\x00\n", b"Trace me\n"):
        assert folder.feed(piece, "rank 0") == piece
    assert folder.finish() == b""
