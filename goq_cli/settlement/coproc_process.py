"""One worker process of ``goq consume --coproc``: records in, an answer a line out, in order.

A record that is written and not answered is at work. The worker's window bounds these: as many as
it answered in half a second, so that an interrupt waits no longer. When the process ends, the first
of them failed with it; the work of the others did not begin, as far as one can know, and they are
released without an attempt.

Two threads serve a process: one writes records, one reads answers. Both end with the process.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Final

from goq_cli.settlement.answer import ANSWER_BYTES_MAX, UnknownAnswer, parse_answer
from goq_cli.settlement.process_output import output_until_end
from goq_cli.settlement.settlements import RELEASE, Outcome

if TYPE_CHECKING:
    from goq.client import ReceivedMessage

WINDOW_FIRST: Final = 8
WINDOW_MAX: Final = 5000
_WINDOW_S: Final = 0.5

Settle = Callable[[Iterable[tuple["ReceivedMessage", Outcome]]], None]


class CoprocProcess:
    """A worker process; ``changed`` is notified when it answers and when it ends.

    ``settle`` gets the outcomes. ``answered`` counts answers, ``end`` says how the process ended,
    and ``has_failed`` whether records were left without an answer, or one had another.
    """

    def __init__(
        self, command: str, retry_delay: str, settle: Settle, changed: threading.Condition
    ) -> None:
        self._settle = settle
        self._retry_delay = retry_delay
        self._changed = changed
        self._records: deque[bytes] = deque()
        self._at_work: deque[ReceivedMessage] = deque()
        self._has_records = threading.Condition()
        self._is_closed = False
        self._window = WINDOW_FIRST
        self._window_s = time.monotonic()
        self._window_answers = 0
        self._complaint: str | None = None
        self.answered = 0
        self.end: str | None = None
        self.has_failed = False
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at the terminal is for goq, which closes stdin
        )
        self._threads = [
            threading.Thread(target=work, name="goq-coproc", daemon=True)
            for work in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, None while it runs."""
        return self._process.returncode

    @property
    def at_work(self) -> int:
        """The number of records without an answer."""
        return len(self._at_work)

    @property
    def has_room(self) -> bool:
        """Whether the window has room for a record."""
        return self.end is None and len(self._at_work) < self._window

    def send(self, message: ReceivedMessage, record: bytes) -> bool:
        """Give the worker a record; return False if it has ended."""
        with self._has_records:
            if self.end is not None or self._is_closed:
                return False
            self._at_work.append(message)
            self._records.append(record)
            self._has_records.notify()
            return True

    def close(self) -> None:
        """Close the worker's stdin once its records are written: it answers, and ends."""
        with self._has_records:
            self._is_closed = True
            self._has_records.notify()

    def kill(self) -> None:
        """End the process with all that it started."""
        try:
            os.killpg(self._process.pid, 9)
        except ProcessLookupError:
            pass

    def join(self) -> None:
        """Wait until the process has ended."""
        self.close()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            while True:
                with self._has_records:
                    self._has_records.wait_for(
                        lambda: self._records or self._is_closed or self.end is not None
                    )
                    if not self._records or self.end is not None:
                        return
                    rest = memoryview(b"".join(self._records))
                    self._records.clear()
                while rest:
                    rest = rest[stdin.write(rest) or 0 :]
        except OSError:
            return  # the process has closed its stdin: what it did not read gets no answer
        finally:
            stdin.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        partial = b""
        with closing(output_until_end(stdout.fileno(), self._process.wait)) as output:
            for data in output:
                *lines, partial = (partial + data).split(b"\n")
                if not self._take(lines) or len(partial) > ANSWER_BYTES_MAX:
                    self._complaint = self._complaint or "an answer has no end"
                    self.kill()
                    break
        stdout.close()
        self._end()

    def _take(self, lines: list[bytes]) -> bool:
        """Settle by answers; return False for one that cannot be."""
        outcomes: list[tuple[ReceivedMessage, Outcome]] = []
        for line in lines:
            if not self._at_work:
                self._complaint = "it answered more than it was asked"
                break
            try:
                outcome = parse_answer(line, self._retry_delay)
            except UnknownAnswer as error:
                self._complaint = str(error)
                break
            outcomes.append((self._at_work.popleft(), outcome))
        if outcomes:
            self._settle(outcomes)
        with self._changed:
            self.answered += len(outcomes)
            self._resize(len(outcomes))
            self._changed.notify_all()
        return self._complaint is None

    def _resize(self, answers: int) -> None:
        """Resize the window to what the worker answers in half a second."""
        self._window_answers += answers
        elapsed_s = time.monotonic() - self._window_s
        if elapsed_s < _WINDOW_S / 10 and self._window_answers < self._window:
            return
        fitting = int(self._window_answers * _WINDOW_S / max(elapsed_s, 1e-6))
        self._window = max(1, min(fitting, 2 * self._window, WINDOW_MAX))
        self._window_s, self._window_answers = time.monotonic(), 0

    def _end(self) -> None:
        """Settle what has no answer: the first failed, the others did not begin."""
        code = self._process.returncode
        what = f"the worker ended with {code}" if self._complaint is None else self._complaint
        with self._has_records:
            self.end = what
            left = [*self._at_work]
            self.has_failed = bool(left) or self._complaint is not None
            self._at_work.clear()
            self._has_records.notify()
        failed = Outcome("nack", self._retry_delay, what)
        if left and code in (126, 127) and not self.answered:
            failed = RELEASE  # the shell could not run it
        if left:
            self._settle([(left[0], failed), *((message, RELEASE) for message in left[1:])])
        with self._changed:
            self._changed.notify_all()
