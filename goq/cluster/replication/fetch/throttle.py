"""The rate at which replicas that a reassignment adds are sent data."""

from __future__ import annotations

from goq import limits

_PIECES_PER_S = 4


class Throttle:
    """The rate at which added replicas are sent data; ``bytes_per_s`` 0 is no limit.

    Pure: times come in as arguments. What was sent is paid for by waiting afterwards, so there are
    no bursts. A piece may be as large as the rate of a fraction of a second.
    """

    def __init__(self, bytes_per_s: int = 0) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Return how long to wait before anything may be sent."""
        return max(self._free_ms - now_ms, 0.0) if self.bytes_per_s else 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to send at once; a larger frame is still sent whole."""
        if not self.bytes_per_s:
            return limits.FETCH_LOG_BYTES_MAX
        piece = max(self.bytes_per_s // _PIECES_PER_S, limits.REASSIGNMENT_CHUNK_BYTES_MIN)
        return min(piece, limits.FETCH_LOG_BYTES_MAX)

    def on_sent(self, size_bytes: int, now_ms: int) -> None:
        """Note that bytes were sent."""
        if self.bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + size_bytes * 1000 / self.bytes_per_s
