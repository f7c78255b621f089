"""The deadlines of a connection, watched by one lazily armed timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from goq.http.context import HttpLimits
from goq.http.request.request_parser import Phase

LINGER_MS: Final = 2_000


class Timeouts:
    """Two deadlines of one connection: for the client's next bytes, and for reading its answer.

    Moving a deadline is one assignment and touches no timer. The timer fires every ``_step_s``, the
    shortest of the timeouts, or at the next deadline if that is sooner. No deadline is ever set
    nearer than ``_step_s``, so none is missed. While nothing is expected of the client, as when it
    waits for messages, the timer is off: thousands of clients may wait at a time.

    ``on_reading`` is called when bytes are overdue, ``on_writing`` when the client has taken less
    than ``taken_bytes_min`` of an answer in a whole timeout. So a stuck client is found after one
    to two timeouts. ``on_sampled`` gets the unsent bytes from time to time while there are some.
    """

    __slots__ = (
        "_is_resting",
        "_last_taken_s",
        "_limits",
        "_loop",
        "_on_reading",
        "_on_sampled",
        "_on_writing",
        "_reading_s",
        "_sampled_bytes",
        "_step_s",
        "_timer",
        "_transport",
        "_unsent_bytes",
        "_writing_s",
        "phase",
        "request_number",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        limits: HttpLimits,
        on_reading: Callable[[], None],
        on_writing: Callable[[], None],
        on_sampled: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._limits = limits
        self._on_reading = on_reading
        self._on_writing = on_writing
        self._on_sampled = on_sampled
        self._reading_s = inf
        self._writing_s = inf
        self.phase: Phase | None = None
        self.request_number = 0
        self._unsent_bytes = 0
        self._sampled_bytes = 0
        self._last_taken_s = 0.0
        self._is_resting = False
        shortest_ms = min(
            limits.header_timeout_ms,
            limits.body_timeout_ms,
            limits.idle_timeout_ms,
            limits.write_timeout_ms,
            LINGER_MS,
        )
        self._step_s = shortest_ms / 1000
        self._timer: asyncio.TimerHandle | None = loop.call_later(self._step_s, self._fire)

    def expect_bytes(self, phase: Phase | None, request_number: int) -> None:
        """Expect the client to send what ``phase`` of a request needs; nothing for ``None``.

        A repeated call for the same phase of the same request keeps the deadline.
        """
        if phase is self.phase and request_number == self.request_number:
            return
        self.phase = phase
        self.request_number = request_number
        if phase is None:
            self._reading_s = inf
            return
        limits = self._limits
        if phase is Phase.IDLE:
            timeout_ms = limits.idle_timeout_ms
        elif phase is Phase.HEAD:
            timeout_ms = limits.header_timeout_ms
        else:
            timeout_ms = limits.body_timeout_ms
        self._reading_s = self._loop.time() + timeout_ms / 1000
        if self._is_resting:
            self._wake()

    def expect_taken(self, timeout_ms: int) -> None:
        """Expect the client to read some of its answer, or to close."""
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._writing_s == inf:
            self._sampled_bytes, self._last_taken_s = self._unsent_bytes, self._loop.time()
        self._writing_s = self._loop.time() + timeout_ms / 1000
        if self._is_resting:
            self._wake()

    def stalled_s(self) -> float:
        """Return for how long the client has taken nothing of its answer."""
        return 0.0 if self._writing_s == inf else self._loop.time() - self._last_taken_s

    def _sample(self, now: float) -> None:
        size_bytes = self._transport.get_write_buffer_size()
        if size_bytes < self._sampled_bytes:
            self._last_taken_s = now
        self._sampled_bytes = size_bytes
        self._on_sampled(size_bytes)

    def taken(self) -> None:
        """Clear the write deadline: the client has read enough."""
        self._writing_s = inf

    def stop(self) -> None:
        """Stop the timer for good, and let go of the connection, which has this object."""
        del self._on_reading, self._on_writing, self._on_sampled
        self._is_resting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._is_resting = False
        self._timer = self._loop.call_later(self._step_s, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        if self._writing_s != inf:
            self._sample(now)
        if now >= self._writing_s:
            least = min(self._limits.taken_bytes_min, max(1, self._unsent_bytes))
            if self._unsent_bytes - self._transport.get_write_buffer_size() >= least:
                self.expect_taken(self._limits.write_timeout_ms)
            else:
                self._writing_s = inf
                self._on_writing()
        elif now >= self._reading_s:
            self._reading_s = inf
            self._on_reading()
        if self._timer is None:
            return  # stopped by a callback
        if self._reading_s == self._writing_s == inf:
            self._timer = None
            self._is_resting = True
        else:
            due = min(self._reading_s, self._writing_s, now + self._step_s)
            self._timer = self._loop.call_at(due, self._fire)
