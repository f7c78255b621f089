"""One run of a shell command: input, environment, stderr, exit code."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from goq_cli.settlement.process_output import output_until_end

SHELL: Final = "/bin/sh"
NOT_RUN: Final = (126, 127)
"""How a shell exits that does not find the command, or may not run it."""
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def run_command(
    command: str,
    value: bytes,
    environment: Mapping[str, str],
    on_stderr: Callable[[bytes], None],
) -> int:
    """Run a command with ``value`` as stdin; return its exit code, negative for a signal.

    ``on_stderr`` gets its stderr as it comes. A process that the command leaves behind is not
    waited for, and what that one writes to stderr later is lost.

    Stdin is a file in memory: the command may leave it unread. It starts by ``posix_spawn``, which
    copies nothing of this process. All its descriptors but 0 to 2 are closed.
    """
    stdin = _file_of(value)
    try:
        reading, writing = os.pipe()
        try:
            pid = os.posix_spawn(
                SHELL,
                [SHELL, "-c", command],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, writing, 2),
                ],
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
    finally:
        os.close(stdin)
    status = 0

    def wait() -> None:
        nonlocal status
        _, status = os.waitpid(pid, 0)

    try:
        with closing(output_until_end(reading, wait)) as output:
            for part in output:
                on_stderr(part)
    finally:
        os.close(reading)
    return os.waitstatus_to_exitcode(status)


def _file_of(value: bytes) -> int:
    """Return a descriptor of a nameless file with ``value``, at its beginning."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("goq-value", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        rest = memoryview(value)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
