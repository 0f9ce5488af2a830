from __future__ import annotations

import os
import threading

from elastic_launch.launcher.output import FULL, LONGEST_LINE, LinePrefixer, OutputThread


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
    output = OutputThread()
    for number in range(1000):
        output.write(writing, b"%d\n" % number)
    output.close_descriptor(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"".join(b"%d\n" % number for number in range(1000))
    assert output.close(5)


def test_a_reader_that_is_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    other_reading, other_writing = os.pipe()
    output = OutputThread()
    output.write(writing, b"lost")
    output.write(other_writing, b"kept")
    assert os.read(other_reading, 100) == b"kept"
    assert output.close(5)
    for descriptor in (writing, other_reading, other_writing):
        os.close(descriptor)


def test_a_reader_that_is_slow_makes_the_writers_pause_and_go_on() -> None:
    reading, writing = os.pipe()
    output = OutputThread()
    output.write(writing, bytes(FULL + 200_000))
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
    output = OutputThread()
    output.write(writing, bytes(1 << 20))
    assert not output.close(0.2)
    os.close(reading)
    assert output.close(5)
    os.close(writing)


def test_a_descriptor_in_non_blocking_mode_gets_everything() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    output = OutputThread()
    output.write(writing, bytes(1 << 20))
    output.close_descriptor(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert len(pipe.read()) == 1 << 20
    assert output.close(5)
