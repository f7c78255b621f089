"""Outcomes of messages, settled by a thread: many with one request while another is under way."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from goq.errors import GoqError
from goq_cli.settlement.acker import complaint

if TYPE_CHECKING:
    from goq.client import Client, ReceivedMessage, Settled


class Outcome(NamedTuple):
    """The outcome of a message. ``release`` is for one whose work did not begin."""

    verb: Literal["ack", "nack", "reject", "release"]
    delay: str | None = None
    reason: str | None = None


ACK = Outcome("ack")
RELEASE = Outcome("release")


class Settlements:
    """Settles messages in the order in which outcomes are added.

    ``has_failed`` tells of an outcome other than an ack or a release, or of a message that could
    not be settled.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[tuple[ReceivedMessage, Outcome]] = deque()
        self._changed = threading.Condition()
        self._is_busy = self._is_closed = False
        self._error: GoqError | None = None
        self._thread = threading.Thread(target=self._work, name="goq-settle", daemon=True)
        self.has_failed = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, outcomes: Iterable[tuple[ReceivedMessage, Outcome]]) -> None:
        """Settle messages soon."""
        with self._changed:
            self._waiting.extend(outcomes)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until everything is settled; raise the error that prevents it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or not (self._waiting or self._is_busy)
            )
        self.check()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                batch = [*self._waiting]
                self._waiting.clear()
                self._is_busy = True
            try:
                self._settle(batch)
            except GoqError as error:
                with self._changed:
                    self._error, self._is_busy = error, False
                    self._changed.notify_all()
                return

    def _settle(self, batch: list[tuple[ReceivedMessage, Outcome]]) -> None:
        alike: dict[Outcome, list[ReceivedMessage]] = {}
        for message, outcome in batch:
            alike.setdefault(outcome, []).append(message)
        for outcome, messages in alike.items():
            if outcome.verb == "release":
                self._client.release_many(messages)
                continue
            if outcome.verb == "ack":
                settled = self._client.ack_many(messages)
            elif outcome.verb == "nack":
                settled = self._client.nack_many(messages, outcome.delay, outcome.reason)
            else:
                settled = self._client.reject_many(messages, outcome.reason)
            self._tell(outcome, settled)

    def _tell(self, outcome: Outcome, settled: Settled) -> None:
        said = complaint(settled)
        self.has_failed = self.has_failed or outcome.verb != "ack" or bool(said)
        if said:
            sys.stderr.write(said)
            sys.stderr.flush()
