"""One run of a shell command: input, environment, exit code, stderr."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from typing import Final, NamedTuple

SHELL: Final = "/bin/sh"
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class CommandEnd(NamedTuple):
    """The end of a command: its exit code, negative for a signal, and its stderr."""

    code: int
    stderr: bytes


def run_command(command: str, value: bytes, environment: Mapping[str, str]) -> CommandEnd:
    """Run a command with ``value`` as stdin, and wait for its end.

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
    parts = []
    try:
        while part := os.read(reading, 65_536):
            parts.append(part)
    finally:
        os.close(reading)
        _, status = os.waitpid(pid, 0)
    return CommandEnd(os.waitstatus_to_exitcode(status), b"".join(parts))


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
