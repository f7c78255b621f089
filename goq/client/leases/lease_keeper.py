"""The lease keeper: the thread of a consume loop that keeps its leases from ending.

It extends the leases of messages that wait to be yielded, and with ``auto_extend`` those that the
caller has. It is a thread with connections of its own for both clients: a handler that blocks the
event loop does not stop it. Nor does a node that hangs: a request is sent once, and waits for a
part of a lease. What failed comes again at the next look.

A caller that has one message for a whole lease may be hung. Then the waiting messages are released
to other consumers, which costs no attempt. The streams are paused before, or they would bring the
same messages again; the loop resumes them when its caller comes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from goq.client._sync.consume.received_message import extend_leases, give_back
from goq.client._sync.consume.settlement import Settler
from goq.client._sync.http import Http
from goq.client.cluster_map import ClusterMap
from goq.client.leases.message_buffer import MessageBuffer
from goq.client.protocol.request_builder import HttpOptions
from goq.client.retry import BackoffPolicy
from goq.errors import GoqError

_CHECKS_PER_LEASE: Final = 6
_PERIOD_S_MIN, _PERIOD_S_MAX = 0.02, 10.0
_ANSWER_MS_MIN: Final = 500


class PausableStream(Protocol):
    """A stream of the loop; ``is_paused`` tells the loop to grant it ``window`` messages again."""

    is_paused: bool
    window: int

    @property
    def place(self) -> tuple[str, str] | None:
        """The node and the path of the stream, None while it is not open."""
        ...


class LeaseKeeper:
    """Keeps the leases of one loop's buffer from ``start`` to ``stop``.

    ``streams`` returns the open streams of the loop.
    """

    def __init__(
        self,
        options: HttpOptions,
        cluster_map: ClusterMap,
        buffer: MessageBuffer[Any],
        streams: Callable[[], Sequence[PausableStream]],
    ) -> None:
        self._options = options
        self._cluster_map = cluster_map
        self._buffer = buffer
        self._streams = streams
        self._http: Http | None = None
        self._stopped = False

    def start(self) -> None:
        """Start the thread. It does not keep the program from ending."""
        threading.Thread(target=self._work, name="goq-leases", daemon=True).start()

    def stop(self) -> None:
        """Stop extending. The thread ends by itself."""
        with self._buffer.changed:
            self._stopped = True
            self._buffer.changed.notify_all()

    def _work(self) -> None:
        try:
            while self._wait():
                self._keep()
        finally:
            if self._http is not None:
                self._http.close()

    def _wait(self) -> bool:
        """Wait for a part of the shortest lease; return False when the loop has ended."""
        began_s = time.monotonic()
        with self._buffer.changed:
            while not self._stopped:
                period_s = self._buffer.lease_s_min / _CHECKS_PER_LEASE
                period_s = min(max(period_s, _PERIOD_S_MIN), _PERIOD_S_MAX)
                left_s = began_s + period_s - time.monotonic()
                if left_s <= 0:
                    return True
                self._buffer.changed.wait(left_s)
        return False

    def _keep(self) -> None:
        now_s = time.monotonic()
        lent_s = self._buffer.left_alone_since_s(now_s)
        if lent_s is not None and all(self._pause(stream, lent_s) for stream in self._streams()):
            give_back(self._settler(), self._buffer.drain())
        if due := self._buffer.due(now_s):
            extend_leases(self._settler(), self._buffer, due)

    def _pause(self, stream: PausableStream, lent_s: float) -> bool:
        """Pause a stream; return False if the node refused, or the caller came back meanwhile."""
        place = stream.place
        if place is not None and not self._grant(*place, {"max_in_flight": 0}):
            return False
        stream.is_paused = True
        if self._buffer.lent_s == lent_s:
            return True
        if place is not None:  # the loop may have granted messages before the pause
            self._grant(*place, {"more": stream.window})
        return False

    def _grant(self, server: str, path: str, asked: dict[str, int]) -> bool:
        try:
            self._connection().ask(server, "PATCH", path, asked)
        except GoqError:
            return False
        return True

    def _settler(self) -> Settler:
        return Settler(self._connection())

    def _connection(self) -> Http:
        """Return the sender, anew where a lease is shorter than those before."""
        timeout_ms = max(_ANSWER_MS_MIN, int(self._buffer.lease_s_min * 1000 / _CHECKS_PER_LEASE))
        http = self._http
        if http is None or timeout_ms < http.options.timeout_ms:
            if http is not None:
                http.close()
            timeout_ms = min(timeout_ms, self._options.timeout_ms)
            options = replace(self._options, timeout_ms=timeout_ms, retry=BackoffPolicy(0))
            self._http = http = Http(options, 1, self._cluster_map)
        return http
