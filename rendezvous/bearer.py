"""The secret that agents and people show to the server, kept in a file that may be replaced while everybody runs."""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path

from ..errors import UsageError

logger = logging.getLogger(__name__)

_LONGEST = 64 * 1024  # bytes


class TokenFile:
    """One token a line. Whoever shows a token shows the first, and each of them is accepted.

    So a token is rotated without a moment in which somebody is refused: the accepting side gets the next one as a second
    line, then the others get it, then the first line goes. The file is read again when it changes; while it cannot be read,
    or is empty, what it held last counts. UsageError if it never could be.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._tokens: tuple[bytes, ...] = ()
        try:
            self._read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(
                f"the token file {str(path)!r} cannot be used: {reason}. Give one with a token a line"
            ) from None

    def token(self) -> str:
        self._look()
        return self._tokens[0].decode()

    def accepts(self, shown: bytes) -> bool:
        """Takes as long for a wrong one as for a right one."""
        self._look()
        return sum(hmac.compare_digest(shown, token) for token in self._tokens) > 0

    def _look(self) -> None:
        try:
            self._read()
        except (OSError, ValueError) as error:
            logger.warning("the token file %s cannot be read, its last content counts: %s", self._path, error)

    def _read(self) -> None:
        status = os.stat(self._path)
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen == self._seen:
            return
        if status.st_size > _LONGEST:
            raise ValueError(f"it is longer than {_LONGEST} bytes")
        lines = [line.strip() for line in self._path.read_bytes().splitlines()]
        tokens = tuple(line for line in lines if line)
        if not tokens:
            raise ValueError("it is empty")
        if not all(token.isascii() and all(33 <= byte <= 126 for byte in token) for token in tokens):
            raise ValueError("a token is printable ASCII without spaces, one a line")
        self._tokens, self._seen = tokens, seen
