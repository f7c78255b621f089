"""The reader of a pipe, as far as its writer can see it."""

from __future__ import annotations

import array
import fcntl
import os
import select
import stat
import termios


class Pipe:
    """The write end of a pipe. Other writers make a reader seem slower, never faster."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def unread_bytes(self) -> int:
        """Return how many bytes no reader has taken from the pipe."""
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count)
        return count[0]

    def is_closed(self) -> bool:
        """Return whether the pipe has no reader."""
        poll = select.poll()  # of each call: one must not be used by two threads at once
        poll.register(self._fd, 0)
        return bool(poll.poll(0))


def pipe_of(fd: int) -> Pipe | None:
    """Return the pipe that a descriptor writes to, None if it is something else."""
    return Pipe(fd) if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
