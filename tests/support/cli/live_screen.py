"""A program that draws a whole screen again and again, on a pseudo-terminal that it controls."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.cli.command import GOQ

DEADLINE_S = 60
HOME = "\x1b[H"
OTHER_SCREEN = ("\x1b[?1049h", "\x1b[?1049l")
CURSOR_SHOWN = "\x1b[?25h"


class LiveScreen:
    """A terminal with ``goq`` in its foreground. Use :func:`live_screen`."""

    def __init__(self, ours: int, theirs: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self._theirs = theirs
        self.process = process
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def modes(self) -> list[object]:
        """The modes of the terminal: echo, line by line, and others."""
        return termios.tcgetattr(self._theirs)

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the system tells the program."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def lines(self) -> list[str]:
        """Return the last screen that was drawn whole, without colours."""
        frames = self.text.split(HOME)
        if len(frames) < 3:
            return []
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frames[-2])
        return plain.replace("\r\n", "\n").split("\n")

    def wait(self, is_there: Callable[[list[str]], bool], what: str) -> list[str]:
        """Return the first screen that is as wanted; fail if the program ends before."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_there(found := self.lines()):
            assert time.monotonic() < deadline_s, (what, found)
            assert self.process.poll() is None, (what, self.text)
            self._read()
        return found

    def wait_for(self, text: str) -> list[str]:
        """Return the first screen with a text."""
        return self.wait(lambda lines: any(text in line for line in lines), text)

    def code(self) -> int:
        """Return the exit code, once the program has ended."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, self.text
            self._read()
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bool:
        """Read what was drawn, or wait a little; return whether there was anything."""
        poll = select.poll()  # a process of many tests has more files than select() takes
        poll.register(self._ours, select.POLLIN)
        ready = poll.poll(100)
        if ready:
            self.text += self._decoder.decode(os.read(self._ours, 1 << 20))
        return bool(ready)


@contextmanager
def live_screen(
    columns: int, rows: int, environment: Mapping[str, str], arguments: Sequence[str]
) -> Iterator[LiveScreen]:
    """Run ``goq`` on a terminal of this size until the block ends."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        ["setsid", "--ctty", *GOQ, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color"},
    )
    try:
        yield LiveScreen(ours, theirs, process)
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
