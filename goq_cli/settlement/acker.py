"""Acknowledgement of printed messages: when the reader of the output has taken them.

A file and a terminal have a message when it is written. A pipe holds it until its reader takes it,
and a reader may end with messages that it took and did not use. So a message in a pipe is
acknowledged when its reader took it and then read on, or was still there 50 ms later. Nothing is
acknowledged after the pipe was closed: what its reader took last is nacked, and what the reader
cannot have taken, in the pipe or never written, is released without an attempt.
The writer cannot see more: a reader that reads ahead and crashes later loses what it had read.

A thread acknowledges the messages of a pipe, as the reader may be slow. It ends the consume loop
when the pipe is closed. The caller has the leases extended meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from goq.errors import GoqError, TimedOut, TopicNotFound

if TYPE_CHECKING:
    from goq.client import Client, ReceivedMessage, Settled
    from goq_cli.interrupts import Interrupts
    from goq_cli.output.message_format import Writer
    from goq_cli.settlement.pipe import Pipe

_STAYS_S: Final = 0.05
_CHECK_S: Final = 0.01
_IDLE_S: Final = 1.0
_READER_ENDED: Final = "the reader of the output ended"


class Printed(NamedTuple):
    """A printed message, and the range of its bytes in the output."""

    message: ReceivedMessage
    start: int
    end: int


class Acker:
    """Prints messages, and acknowledges them when the output is flushed.

    ``has_failed`` tells of a lease that was lost, or an ack whose outcome is not known.
    """

    keeps_leases = False
    """Whether messages are settled later, so that their leases must be extended."""

    def __init__(self, client: Client, writer: Writer, prefetch: int, *, ack: bool) -> None:
        self._client = client
        self._writer = writer
        self._batch = (prefetch + 1) // 2  # the node sends one half while the other is printed
        self._ack = ack
        self._printed: list[Printed] = []
        self.has_failed = False

    def __enter__(self) -> Acker:
        return self

    def __exit__(self, *_error: object) -> None:
        """Settle what is left."""
        self.settle_all()

    def take(self, message: ReceivedMessage) -> None:
        """Print a message; acknowledge a batch of printed ones when it is full."""
        self._print(message)
        if len(self._printed) >= self._batch:
            self.settle()

    def settle(self) -> None:
        """Flush the output, then acknowledge the printed messages."""
        self._writer.flush()
        printed, self._printed = self._printed, []
        if self._ack and printed:
            self._acknowledge(printed)

    def settle_all(self) -> None:
        """Acknowledge printed messages; give them back where the output cannot be written."""
        try:
            self.settle()
        except OSError:
            self._give_back(self._writer.written_bytes)
            raise

    def _print(self, message: ReceivedMessage) -> bool:
        """Print a message; return whether nothing is buffered."""
        start = self._writer.printed_bytes
        try:
            return self._writer.write(message)
        finally:
            self._printed.append(Printed(message, start, self._writer.printed_bytes))

    def _give_back(self, taken: int) -> None:
        """Nack printed messages whose output begins before ``taken``; release the others."""
        printed, self._printed = self._printed, []
        if self._ack and printed:
            self._client.release_many([each.message for each in printed if each.start >= taken])
            begun = [each.message for each in printed if each.start < taken]
            self._client.nack_many(begun, reason=_READER_ENDED)

    def _acknowledge(self, printed: Sequence[Printed]) -> None:
        if said := complaint(self._client.ack_many(each.message for each in printed)):
            self.has_failed = True
            sys.stderr.write(said)


class PipeAcker(Acker):
    """Prints messages to a pipe, and acknowledges those that its reader took.

    ``settle`` does not wait for the reader; ``settle_all`` does, until it has taken all messages or
    has ended, or until another interrupt. Once the reader has ended, the loop is interrupted.
    """

    keeps_leases = True

    def __init__(
        self,
        client: Client,
        writer: Writer,
        prefetch: int,
        pipe: Pipe,
        interrupts: Interrupts,
    ) -> None:
        super().__init__(client, writer, prefetch, ack=True)
        self._pipe = pipe
        self._interrupts = interrupts
        self._written: deque[Printed] = deque()
        """Messages that are written and not acknowledged."""
        self._taken = self._confirmed = 0
        self._taken_s = 0.0
        self._error: GoqError | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="goq-acks", daemon=True)

    def __enter__(self) -> PipeAcker:
        self._thread.start()
        return self

    def take(self, message: ReceivedMessage) -> None:
        """Print a message."""
        if self._print(message):
            self._note()

    def settle(self) -> None:
        """Flush the output; raise what an ack raised."""
        self._writer.flush()
        self._note()
        if self._error is not None:
            raise self._error

    def settle_all(self) -> None:
        """Wait until the reader took everything or ended; give back what it did not use.

        Raises ``BrokenPipeError`` if it ended before.
        """
        if self._stopped:
            return
        was_interrupted = self._interrupts.is_pending
        try:
            self.settle()
            with self._changed:
                while self._is_used() and self._interrupts.is_pending == was_interrupted:
                    self._changed.wait(_CHECK_S)
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            self._thread.join()
            self._printed[:0] = self._written
            is_left = bool(self._printed)
            self._give_back(self._taken_at_most())
        if self._error is not None:
            raise self._error
        if is_left:
            self._interrupts.check()
            raise BrokenPipeError

    def _is_used(self) -> bool:
        """Return whether messages are still to be acknowledged, and can be."""
        return bool(self._written) and self._error is None and not self._pipe.is_closed()

    def _taken_at_most(self) -> int:
        """Return the position up to which the reader has taken the output, or still may."""
        written = self._writer.written_bytes
        return written - self._pipe.unread_bytes() if self._pipe.is_closed() else written

    def _note(self) -> None:
        if self._printed:
            with self._changed:
                self._written.extend(self._printed)
                self._changed.notify_all()
            self._printed = []

    def _work(self) -> None:
        try:
            while self._wait():
                if self._pipe.is_closed():
                    self._interrupts.end(BrokenPipeError)
                    continue
                taken = self._confirm()
                if taken is None:
                    continue
                if used := self._used(taken):
                    self._acknowledge(used)
                for _ in used:
                    self._written.popleft()
        except GoqError as error:
            self._error = error
            with self._changed:
                self._changed.notify_all()

    def _used(self, taken: int) -> list[Printed]:
        """Return the messages whose output ends by ``taken``."""
        with self._changed:
            return [*takewhile(lambda each: each.end <= taken, self._written)]

    def _wait(self) -> bool:
        """Wait a moment, longer without messages; return False when it is over."""
        with self._changed:
            if not self._written and not self._stopped:
                self._changed.wait(_IDLE_S)
            if self._written and not self._stopped:
                self._changed.wait(_CHECK_S)
            return not self._stopped

    def _confirm(self) -> int | None:
        """Return the position up to which the reader has used the output, None if it has ended.

        What is written meanwhile makes the position too small, never too large.
        """
        written = self._writer.written_bytes
        taken = written - self._pipe.unread_bytes()
        if self._pipe.is_closed():
            return None
        now_s = time.monotonic()
        if taken > self._taken:
            self._confirmed, self._taken, self._taken_s = self._taken, taken, now_s
        elif now_s - self._taken_s >= _STAYS_S:
            self._confirmed = self._taken
        return self._confirmed


def make_acker(
    client: Client, writer: Writer, prefetch: int, interrupts: Interrupts, *, ack: bool
) -> Acker:
    """Return the acker for what stdout is."""
    from goq_cli.settlement.pipe import pipe_of

    pipe = pipe_of(sys.stdout.fileno()) if ack else None
    if pipe is None:
        return Acker(client, writer, prefetch, ack=ack)
    return PipeAcker(client, writer, prefetch, pipe, interrupts)


def complaint(settled: Settled) -> str:
    """Return what to say of receipts that were not settled; nothing if all were."""
    unknown = sum(each.code == TimedOut.code for each in settled.failed)
    gone = sum(each.code == TopicNotFound.code for each in settled.failed)
    lost = len(settled.failed) - unknown - gone
    said = ""
    if unknown:
        said += (
            f"goq: it is not known whether {_receipts(unknown)} acknowledged; messages that were"
            " not come again\n"
        )
    if gone:
        said += f"goq: {_receipts(gone)} not acknowledged: the topic was deleted meanwhile\n"
    if lost == 1:
        said += (
            "goq: a lease had ended before its message was acknowledged; it comes again"
            " (see --visibility)\n"
        )
    elif lost:
        said += (
            f"goq: {lost} leases had ended before their messages were acknowledged; they come again"
            " (see --visibility)\n"
        )
    return said


def _receipts(count: int) -> str:
    return "1 receipt was" if count == 1 else f"{count} receipts were"
