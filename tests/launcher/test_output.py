from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from elastic_launch.launcher.output.lines import LONGEST_LINE, LinePrefixer
from elastic_launch.launcher.output.log_folders import host_folder, worker_folder
from elastic_launch.launcher.output.sinks import Descriptor, LogFile
from elastic_launch.launcher.output.spool import Spool
from elastic_launch.launcher.output.writing import FULL, OutputThread


def prefixed(*chunks: bytes, prefix: bytes = b"> ") -> bytes:
    prefixer = LinePrefixer()
    return b"".join(prefixer.feed(chunk, prefix) for chunk in chunks) + prefixer.finish(prefix)


def test_every_line_gets_a_prefix() -> None:
    assert prefixed(b"one\ntwo\n\nthree\n") == b"> one\n> two\n> \n> three\n"


def test_where_the_chunks_are_cut_makes_no_difference() -> None:
    text = b"one\ntwo\r\nthree\rfour\r\n\r\r\n\xff\x00\n\nend"
    whole = prefixed(text)
    for size in range(1, len(text)):
        assert prefixed(*(text[start : start + size] for start in range(0, len(text), size))) == whole
    assert whole == b"> one\n> two\r\n> three\r> four\r\n> \r> \r\n> \xff\x00\n> \n> end\n"


def test_an_unfinished_line_is_held_back_until_the_stream_ends() -> None:
    prefixer = LinePrefixer()
    assert prefixer.feed(b"one\ntw", b"> ") == b"> one\n"
    assert prefixer.feed(b"o", b"> ") == b""
    assert prefixer.finish(b"> ") == b"> two\n"
    assert prefixer.finish(b"> ") == b""


def test_a_progress_bar_is_shown_as_it_goes() -> None:
    prefixer = LinePrefixer()
    assert prefixer.feed(b"\r10%", b"> ") == b"> \r"
    assert prefixer.feed(b"\r20%", b"> ") == b"> 10%\r"


def test_a_line_of_many_megabytes_is_one_line() -> None:
    line = b"x" * (LONGEST_LINE - 10)
    assert (
        prefixed(*(line[start : start + 65536] for start in range(0, len(line), 65536)), b"\n") == b"> " + line + b"\n"
    )


def test_an_endless_line_does_not_fill_the_memory() -> None:
    prefixer = LinePrefixer()
    written = [prefixer.feed(b"x" * 65536, b"> ") for _ in range(2 * LONGEST_LINE // 65536)]
    assert sum(map(len, written)) >= LONGEST_LINE


def test_writes_to_a_descriptor_keep_their_order() -> None:
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    output = OutputThread(print)
    for number in range(1000):
        output.write(pipe, b"%d\n" % number)
    output.close_sink(pipe)
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b"".join(b"%d\n" % number for number in range(1000))
    assert output.close(5)


def test_a_reader_that_is_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    os.close(reading)
    other_reading, other_writing = os.pipe()
    other = Descriptor(other_writing, "other")
    output = OutputThread(print)
    output.write(pipe, b"lost")
    output.write(other, b"kept")
    assert os.read(other_reading, 100) == b"kept"
    assert output.close(5)
    for descriptor in (writing, other_reading, other_writing):
        os.close(descriptor)


def test_a_reader_that_is_slow_makes_the_writers_pause_and_go_on() -> None:
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    output = OutputThread(print)
    output.write(pipe, bytes(FULL + 200_000))
    assert output.is_full
    there_is_room = threading.Event()
    output.when_there_is_room(there_is_room.set)
    assert not there_is_room.is_set()
    left = FULL + 200_000
    while left:
        left -= len(os.read(reading, 1 << 20))
    assert there_is_room.wait(5)
    assert output.close(5)
    os.close(reading)
    os.close(writing)


def test_output_that_nobody_takes_does_not_hold_the_end() -> None:
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    output = OutputThread(print)
    output.write(pipe, bytes(1 << 20))
    assert not output.close(0.2)
    os.close(reading)
    assert output.close(5)
    os.close(writing)


def test_a_descriptor_in_non_blocking_mode_gets_everything() -> None:
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    os.set_blocking(writing, False)
    output = OutputThread(print)
    output.write(pipe, bytes(1 << 20))
    output.close_sink(pipe)
    with os.fdopen(reading, "rb") as end:
        assert len(end.read()) == 1 << 20
    assert output.close(5)


def test_a_slow_console_makes_nobody_wait_and_gets_everything_in_order() -> None:
    """Ten times what is kept in memory; the rest lies in a file meanwhile."""
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    output = OutputThread(print, spool=Spool())
    pieces = [b"%07d\n" % number * 8192 for number in range(10 * FULL // 65536)]
    for piece in pieces:
        output.write(pipe, piece)
        assert not output.is_full
    output.close_sink(pipe)
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b"".join(pieces)
    assert output.close(5)


def test_where_no_spool_can_be_written_the_writers_are_asked_to_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    reading, writing = os.pipe()
    pipe = Descriptor(writing, "pipe", is_ours=True)
    output = OutputThread(print, spool=Spool())
    pieces = [b"%07d\n" % number * 8192 for number in range(2 * FULL // 65536)]
    for piece in pieces:
        output.write(pipe, piece)
    assert output.is_full
    there_is_room = threading.Event()
    output.when_there_is_room(there_is_room.set)
    output.close_sink(pipe)
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b"".join(pieces)
    assert there_is_room.wait(5)
    assert output.close(5)


def test_the_end_waits_for_a_console_that_is_slow_but_not_for_one_that_takes_nothing() -> None:
    reading, writing = os.pipe()
    output = OutputThread(print, spool=Spool())
    output.write(Descriptor(writing, "pipe"), bytes(1 << 20))
    took: list[int] = []

    def read_slowly() -> None:
        while sum(took) < 1 << 20:
            took.append(len(os.read(reading, 65536)))
            time.sleep(0.2)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    began = time.monotonic()
    assert output.close(2.0)
    assert time.monotonic() - began > 2.0
    reader.join(5)
    os.close(reading)
    os.close(writing)


def log_lines(*chunks: bytes, most_bytes: int, files: int, folder: Path) -> list[bytes]:
    """What the files hold, the oldest first."""
    log = LogFile(folder / "a.log", most_bytes, files)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    names = [f"a.log.{number}" for number in range(files, 0, -1)] + ["a.log"]
    return [(folder / name).read_bytes() for name in names if (folder / name).exists()]


@pytest.mark.parametrize("size", [1, 3, 7, 64, 1000])
def test_a_log_that_is_begun_anew_loses_nothing_and_tears_no_line(size: int, tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(100))
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    found = log_lines(*chunks, most_bytes=100, files=50, folder=tmp_path)
    assert b"".join(found) == text
    assert len(found) >= len(text) // 100
    assert all(len(content) < 100 + len(b"line 99\n") and content.endswith(b"\n") for content in found)


def test_no_more_files_are_kept_than_were_asked_for(tmp_path: Path) -> None:
    text = [b"line %d\n" % number for number in range(100)]
    found = log_lines(*text, most_bytes=50, files=3, folder=tmp_path)
    assert len(found) == 3
    assert b"".join(text).endswith(b"".join(found))
    assert len([*tmp_path.iterdir()]) == 3


def test_a_line_that_is_longer_than_a_file_stays_in_one_piece(tmp_path: Path) -> None:
    found = log_lines(b"short\n", b"x" * 300, b"x" * 300 + b"\n", b"end\n", most_bytes=100, files=9, folder=tmp_path)
    assert found == [b"short\n", b"x" * 600 + b"\n", b"end\n"]


def test_a_log_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    log_lines(b"one\n", most_bytes=9, files=2, folder=tmp_path)
    assert log_lines(b"two\n", b"three\n", most_bytes=9, files=2, folder=tmp_path) == [b"one\ntwo\n", b"three\n"]


def test_links_lead_to_the_latest_job_and_the_latest_worker_of_each_slot(tmp_path: Path) -> None:
    for job, worker in (("first", "a" * 32), ("second", "b" * 32), ("second", "c" * 32)):
        host_folder(tmp_path, job, "here")
        worker_folder(tmp_path, job, "here", 0, worker)
    assert (tmp_path / "latest").resolve() == tmp_path / "second"
    assert (tmp_path / "latest" / "here" / "worker-0").resolve().name == "worker-0-cccccccc"
    assert (tmp_path / "first" / "here" / "worker-0").resolve().name == "worker-0-aaaaaaaa"


def test_a_folder_that_is_called_latest_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    host_folder(tmp_path, "first", "here")
    assert not (tmp_path / "latest").is_symlink()
