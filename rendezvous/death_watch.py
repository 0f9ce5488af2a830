"""Noticing a process's death before the kernel has freed its memory.

A process that is killed gives back its memory first, about a quarter of a second a gigabyte, and only then do its sockets
and its pidfd tell anybody. A robust mutex is given up before that (futex(2), "robust futexes"; pthread_mutexattr_setrobust(3)):
the worker's main thread holds one in the page that it shares with its agent, and a thread of the agent waits for it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap

SIZE = 64  # bytes, at least sizeof(pthread_mutex_t)

_library = ctypes.CDLL(None)


class DeathWatch:
    """The mutex at `offset` of a shared page. Made once, by `create`, on either side."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._memory = (ctypes.c_char * SIZE).from_buffer(page, offset)

    def create(self) -> bool:
        """Make it; False if this system has no robust mutexes, and then nobody may use it."""
        attributes = ctypes.create_string_buffer(64)
        return (
            _call("pthread_mutexattr_init", attributes)
            and _call("pthread_mutexattr_setpshared", attributes, 1)
            and _call("pthread_mutexattr_setrobust", attributes, 1)
            and _call("pthread_mutex_init", self._memory, attributes)
        )

    def hold(self) -> None:
        """By the thread whose end counts as the process's: its main thread."""
        if _call("pthread_mutex_lock", self._memory):
            # For ever: were the page unmapped at the interpreter's end, the kernel would not find the mutex at the process's.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))

    def let_go(self) -> None:
        """By the thread that holds it, before a planned exit: nobody is to take that for a death."""
        _call("pthread_mutex_unlock", self._memory)

    def wait(self) -> bool:
        """Blocks until the holder dies (True) or lets go (False). Without the GIL; to be called on a thread of its own."""
        died = bool(_library.pthread_mutex_lock(self._memory) == errno.EOWNERDEAD)
        if not died:
            self.let_go()
        return died


def _call(function: str, *arguments: object) -> bool:
    return hasattr(_library, function) and getattr(_library, function)(*arguments) == 0


def exit_status(pid: int) -> int | None:
    """The exit code that a dying process has been given (128 + n for signal n); None where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rsplit(b" ", 1)[1])
    except (OSError, ValueError, IndexError):
        return None
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8
