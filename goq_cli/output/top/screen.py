"""The live screen of ``goq top``: keys, signals and drawing; the terminal is always restored."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from goq_cli.interrupts import Terminated
from goq_cli.output.top.feed import TopAnswer, TopFeed, TopQuestion
from goq_cli.output.top.keyboard import KeyDecoder
from goq_cli.output.top.view import LineKind, TopLine, TopView

_STYLES: Final[dict[LineKind, str]] = {
    "plain": "",
    "title": "bold",
    "head": "bold underline",
    "chosen": "reverse",
    "notice": "bold red",
    "help": "dim",
}
_REDRAWN_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGWINCH)


class TopScreen:
    """Shows a feed until it is quit. Signals are noted, and obeyed where nothing is half done."""

    def __init__(self, interval_s: float, view: TopView) -> None:
        self._stdin = sys.stdin.fileno()
        self._noted: set[int] = set()
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waking, False)
        self._view = view
        self._feed = TopFeed(interval_s, self._question(), self._wake)
        self._decoder = KeyDecoder()
        self._answer: TopAnswer | None = None

    def run(self) -> None:
        """Show the screen; raise the error or the interrupt that ended it."""
        with self._signals():
            self._feed.start()
            try:
                while self._is_going():
                    with self._terminal() as live:
                        while self._is_going() and signal.SIGTSTP not in self._noted:
                            self._draw(live)
                            self._wait()
                    if signal.SIGTSTP in self._noted:
                        self._suspend()
            finally:
                self._feed.end()
        if self._feed.failure is not None:
            raise self._feed.failure
        if signal.SIGTERM in self._noted:
            raise Terminated
        if signal.SIGINT in self._noted:
            raise KeyboardInterrupt

    def _is_going(self) -> bool:
        is_ended = self._view.is_over or self._feed.failure is not None
        return not (is_ended or self._noted & {signal.SIGINT, signal.SIGTERM})

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it will wake up anyway
            os.write(self._waking, b"!")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, _frame: FrameType | None) -> None:
            self._noted.add(number)
            self._wake()

        before = {number: signal.signal(number, note) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _terminal(self) -> Iterator[Live]:
        """Take the terminal, without echo and on its other screen, and give it back."""
        before = termios.tcgetattr(self._stdin)
        try:
            tty.setcbreak(self._stdin)
            console = Console(highlight=False, markup=False, emoji=False)
            with Live(
                console=console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live:
                yield live
        finally:
            termios.tcsetattr(self._stdin, termios.TCSANOW, before)

    def _suspend(self) -> None:
        """Stop as any program does at Ctrl-Z, and return when it is continued."""
        self._noted.discard(signal.SIGTSTP)
        note = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, note)

    def _draw(self, live: Live) -> None:
        if self._answer is None or not self._view.is_paused:
            self._answer = self._feed.answer
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        columns, rows = columns or 80, rows or 24  # a serial line does not tell its size
        live.console.size = ConsoleDimensions(columns, rows)
        trouble = self._feed.trouble(time.monotonic())
        if self._answer is None:
            lines = [TopLine(trouble or "waiting for the first answer (q quit)", "notice")]
        else:
            answer = self._answer
            lines = self._view.lines(answer.moment, answer.waiting, trouble, columns, rows)
        text = Text(no_wrap=True, overflow="crop", end="")
        for number, line in enumerate(lines):
            text.append("\n" * bool(number))
            text.append(line.text, _STYLES[line.kind])
        live.update(text, refresh=True)

    def _wait(self) -> None:
        """Wait for a key, a signal, an answer, or the time to draw again."""
        ready, _, _ = select.select([self._stdin, self._woken], [], [], _REDRAWN_S)
        if self._woken in ready:
            os.read(self._woken, 65_536)
        if self._stdin not in ready:
            return
        try:
            data = os.read(self._stdin, 1024)
        except OSError:  # the terminal has gone
            data = b""
        if not data:
            self._view.press("q")
            return
        for key in self._decoder.keys(data):
            self._view.press(key)
        self._feed.ask(self._question())

    def _question(self) -> TopQuestion:
        view = self._view
        return TopQuestion(view.opened, view.order, view.search)
