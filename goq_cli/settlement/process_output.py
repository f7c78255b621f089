"""The output of a process up to its end, even if another process still has the output open.

A command may leave a process behind that keeps its stdout and stderr: then the pipe has no end when
the command has.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Generator
from typing import Final

_READ_BYTES: Final = 64 * 1024
_PIPE_BYTES_MAX: Final = 1024 * 1024
"""The most that a pipe holds, unless the system is set to let it hold more."""


def output_until_end(fd: int, wait: Callable[[], object]) -> Generator[bytes]:
    """Yield what comes from a pipe until it is closed or ``wait`` returns; then what is there.

    ``wait`` waits for the end of the process. It has returned when the iteration ends, however that
    is.
    """
    ended, ending = os.pipe()

    def wait_and_tell() -> None:
        try:
            wait()
        finally:
            os.close(ending)

    waiter = threading.Thread(target=wait_and_tell, name="goq-process-end", daemon=True)
    waiter.start()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(ended, select.POLLIN)
    try:
        while ended not in dict(poll.poll()):
            data = os.read(fd, _READ_BYTES)
            if not data:
                return
            yield data
        os.set_blocking(fd, False)
        try:
            data = os.read(fd, _PIPE_BYTES_MAX)
        except BlockingIOError:
            return
        if data:
            yield data
    finally:
        waiter.join()
        os.close(ended)
