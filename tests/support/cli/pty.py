"""``goq`` at a terminal: a pseudo-terminal of a given size, and what is printed there."""

from __future__ import annotations

import fcntl
import os
import shlex
import struct
import subprocess
import termios
from collections.abc import Mapping
from typing import NamedTuple

from tests.support.cli.command import GOQ
from tests.support.cli.forked_goq import start_goq

COMMAND_S_MAX = 60


class Screen(NamedTuple):
    """What a command printed at a terminal, and its exit code."""

    text: str
    code: int

    @property
    def lines(self) -> list[str]:
        """The lines, without line ends."""
        return self.text.replace("\r\n", "\n").splitlines()


def at_terminal(
    columns: int, environment: Mapping[str, str], *arguments: str, shell: bool = False
) -> Screen:
    """Run ``goq`` with stdin, stdout and stderr at a terminal of so many columns.

    With ``shell`` the arguments are words of a shell, which may redirect.
    """
    command = ["sh", "-c", " ".join([*map(shlex.quote, GOQ), *arguments])]
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    with (
        subprocess.Popen(command, env=kept, **streams)
        if shell
        else start_goq(arguments, env=kept, **streams)
    ) as process:
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 65_536):
                pieces.append(piece)
        except OSError:  # EIO: the process has closed the terminal
            pass
        os.close(ours)
        code = process.wait(COMMAND_S_MAX)
    return Screen(b"".join(pieces).decode(), code)
