"""The bound of the answers that clients have not taken yet, over all connections of a server.

Only connections count whose buffer is full: their client takes its answer slowly or not at all. At
the bound a large answer is refused with 429 instead of being buffered, and a stream that has one
ends. Clients that have taken nothing for ``STALLED_S`` lose their connection then.
"""

from __future__ import annotations

from typing import Final, Protocol

from goq.errors import TooManyRequests

LARGE_BYTES: Final = 64 * 1024
"""Smaller answers always have room."""
STALLED_S: Final = 10.0


class UnsentAnswer(Protocol):
    """A connection whose client has not taken its answer."""

    def is_stalled(self) -> bool:
        """Return whether the client has taken nothing for ``STALLED_S``."""

    def abort(self) -> None:
        """Close the connection at once."""


class UnsentAnswers:
    """The unsent answers of a server, at most about ``bytes_max`` together."""

    def __init__(self, bytes_max: int) -> None:
        self.size_bytes = 0
        """The unsent bytes of all answers."""
        self._bytes_max = bytes_max
        self._sizes: dict[UnsentAnswer, int] = {}

    def note(self, answer: UnsentAnswer, size_bytes: int) -> None:
        """Set how much of an answer is unsent; 0 when it is taken, or its connection is lost."""
        self.size_bytes += size_bytes - self._sizes.pop(answer, 0)
        if size_bytes:
            self._sizes[answer] = size_bytes

    def check_room(self, size_bytes: int) -> None:
        """Raise ``TooManyRequests`` unless a large answer of this size may be buffered."""
        if self.size_bytes + size_bytes <= self._bytes_max:
            return
        for answer in [each for each in self._sizes if each.is_stalled()]:
            answer.abort()
        raise TooManyRequests(
            "too many large answers wait for their clients to read them; ask again shortly",
            retry_after_ms=1000,
        )
