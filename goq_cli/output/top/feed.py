"""The thread of ``goq top`` that asks the node, and keeps its last answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from goq.errors import GoqError
from goq_cli.output.top.rates import GroupRate, Moment, RateMeter
from goq_cli.session import SESSION

_SILENT_S_MAX = 3.0
"""An answer that comes later than this after its time is told to be late."""


@dataclass(frozen=True, slots=True)
class TopAnswer:
    """The last answer: a moment, and the groups of the open topic with lanes and tenants."""

    moment: Moment
    waiting: tuple[GroupRate, ...]
    at_s: float


class TopFeed(threading.Thread):
    """Asks for a state each interval, for as long as a node takes to come back.

    ``on_change`` is called in this thread. Attributes are read by others and replaced whole.
    """

    def __init__(self, interval_s: float, on_change: Callable[[], None]) -> None:
        super().__init__(name="top", daemon=True)
        self.answer: TopAnswer | None = None
        self.failure: GoqError | None = None
        self._interval_s = interval_s
        self._on_change = on_change
        self._error: str | None = None
        self._opened: str | None = None
        self._wakes = threading.Event()
        self._is_over = False
        self._servers = " ".join(SESSION.servers_and_token()[0])

    def open(self, topic: str | None) -> None:
        """Ask for lanes and tenants of a topic, too, at once; None for no topic."""
        if topic != self._opened:
            self._opened = topic
            self._wakes.set()

    def end(self) -> None:
        """Ask no more."""
        self._is_over = True
        self._wakes.set()

    def trouble(self, now_s: float) -> str | None:
        """Return why the last answer is not current, if it is not."""
        since_s = now_s - self.answer.at_s if self.answer is not None else 0.0
        if self._error is not None:
            return f"{self._servers} is away for {since_s:.0f} s: {self._error}"
        if since_s > self._interval_s + _SILENT_S_MAX:
            return f"{self._servers} has not answered for {since_s:.0f} s"
        return None

    def run(self) -> None:
        """Ask until the end, or an error that does not go by itself."""
        meter = RateMeter()
        try:
            with SESSION.patient_client(self._failed) as client:
                while not self._is_over:
                    self._wakes.clear()
                    moment = meter.moment(client.get_live_state())
                    waiting: tuple[GroupRate, ...] = ()
                    if (opened := self._opened) is not None:
                        waiting = tuple(RateMeter().moment(client.get_live_state(opened)).groups)
                    self.answer = TopAnswer(moment, waiting, time.monotonic())
                    self._error = None
                    self._on_change()
                    self._wakes.wait(self._interval_s)
        except GoqError as error:
            self.failure = error
            self._on_change()

    def _failed(self, error: GoqError, _failing_s: float) -> bool:
        self._error = error.detail
        self._on_change()
        return not self._is_over
