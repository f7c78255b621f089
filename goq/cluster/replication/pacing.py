"""How fast replicas that a move makes are sent what they lack: a rate for the node that sends.

Pure: times come in as arguments. What was sent is paid for by waiting afterwards, so there are no
bursts, and a piece may be as large as the rate of a part of a second.
"""

from __future__ import annotations

from goq import limits

_PIECES_PER_S = 4


class Pacer:
    """Says when the next piece may be sent, and how large; ``bytes_per_s`` 0 is no bound."""

    def __init__(self, bytes_per_s: int = 0) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Return how long to wait before anything may be sent, 0 for not at all."""
        return max(self._free_ms - now_ms, 0.0) if self.bytes_per_s else 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to send at once; a larger frame still goes whole."""
        if not self.bytes_per_s:
            return limits.FETCH_LOG_BYTES_MAX
        piece = max(self.bytes_per_s // _PIECES_PER_S, limits.MOVE_PIECE_BYTES_MIN)
        return min(piece, limits.FETCH_LOG_BYTES_MAX)

    def sent(self, size_bytes: int, now_ms: int) -> None:
        """Take note of what was sent."""
        if self.bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + size_bytes * 1000 / self.bytes_per_s
