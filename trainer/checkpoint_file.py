"""One checkpoint as a file: a header, the state's plain data, the tensors' bytes, and a checksum of all of it.

    16 bytes  magic        8 bytes  step        8 bytes  length of the plain data        8 bytes  length of the rest
    the plain data (`Image.meta`), the tensors' bytes (`Image.payload`), 16 bytes xxh3-128 of everything before

Numbers are little-endian. The plain data may hold pickled objects of the user's: whoever can write to the directory
decides what is run when it is restored.
"""

from __future__ import annotations

import os
import re
import struct
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import xxhash

from .state.payload import Payload

if TYPE_CHECKING:
    from .state.replica import Replica

_MAGIC = b"elastic-state-01"
_HEADER = struct.Struct("<16sQQQ")
_SUM = 16
_CHUNK = 8 << 20
_NAME = re.compile(r"step-(\d{12})\.ckpt")


class Damaged(Exception):
    """The file is not what was written; the message says in which way."""


def step_of(path: Path) -> int | None:
    """The step of a complete checkpoint, from its name; None for any other file."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def write(directory: Path, step: int, meta: bytes, payload: Payload) -> Path:
    """Writes a file that is there completely or not at all, whenever the machine stops. OSError if it cannot."""
    path = directory / f"step-{step:012}.ckpt"
    temporary = directory / f".{path.name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        with open(temporary, "wb", buffering=0) as file:
            hasher = xxhash.xxh3_128()
            header = _HEADER.pack(_MAGIC, step, len(meta), payload.nbytes)
            cursor = payload.cursor()
            for piece in (header, meta):
                _put(file, memoryview(piece), hasher)
            for start in range(0, payload.nbytes, _CHUNK):
                for view in cursor.load(start, min(start + _CHUNK, payload.nbytes)):
                    _put(file, view, hasher)
            _put(file, memoryview(hasher.digest()), None)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the name, too, is on the disk
    finally:
        os.close(descriptor)
    return path


def remove_leftovers(directory: Path) -> None:
    """Removes what writers that were killed have left."""
    for path in directory.glob(".step-*.tmp"):
        path.unlink(missing_ok=True)


def verify(path: Path) -> None:
    """Reads all of it. Damaged, or OSError, if it is not intact."""
    with open(path, "rb", buffering=0) as file:
        _, meta_nbytes, nbytes, hasher = _open(file)
        left = meta_nbytes + nbytes
        chunk = memoryview(bytearray(min(_CHUNK, max(left, 1))))
        while left:
            piece = chunk[: min(left, len(chunk))]
            _fill(file, piece, hasher)
            left -= len(piece)
        _check_sum(file, hasher)


def load_into(path: Path, replica: Replica) -> None:
    """Reads the state into the replica, straight into its tensors; it is invalid if this fails half-way."""
    with open(path, "rb", buffering=0) as file:
        _, meta_nbytes, nbytes, hasher = _open(file)
        meta = bytearray(meta_nbytes)
        _fill(file, memoryview(meta), hasher)
        incoming = replica.prepare(bytes(meta))
        if incoming.payload().nbytes != nbytes:
            raise Damaged(f"it has {nbytes} bytes of tensors and describes {incoming.payload().nbytes}")
        cursor = incoming.payload().cursor()
        for start in range(0, nbytes, _CHUNK):
            stop = min(start + _CHUNK, nbytes)
            for view in cursor.room(start, stop):
                _fill(file, view, hasher)
            cursor.store(start, stop)
        _check_sum(file, hasher)
        incoming.commit()


def _open(file: BinaryIO) -> tuple[int, int, int, xxhash.xxh3_128]:
    """Step, length of the plain data, length of the tensors, and the checksum so far."""
    hasher = xxhash.xxh3_128()
    header = bytearray(_HEADER.size)
    _fill(file, memoryview(header), hasher)
    magic, step, meta_nbytes, nbytes = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise Damaged("it does not begin as a checkpoint of this version")
    size, whole = os.fstat(file.fileno()).st_size, _HEADER.size + meta_nbytes + nbytes + _SUM
    if size != whole:
        raise Damaged(f"it has {size} bytes of {whole}")
    return step, meta_nbytes, nbytes, hasher


def _check_sum(file: BinaryIO, hasher: xxhash.xxh3_128) -> None:
    found = bytearray(_SUM)
    _fill(file, memoryview(found), None)
    if bytes(found) != hasher.digest():
        raise Damaged("its checksum is wrong")


def _put(file: BinaryIO, view: memoryview, hasher: xxhash.xxh3_128 | None) -> None:
    if hasher is not None:
        hasher.update(view)
    while view.nbytes:
        view = view[file.write(view) :]


def _fill(file: BinaryIO, view: memoryview, hasher: xxhash.xxh3_128 | None) -> None:
    left = view
    while left.nbytes:
        count = file.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise Damaged("it ends too early")
        left = left[count:]
    if hasher is not None:
        hasher.update(view)
