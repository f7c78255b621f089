"""What a log's writer waits for besides its own disk, before it acknowledges anything.

A node on its own has nothing to wait for. In a cluster enough of a partition's replicas must have
on disk what is acknowledged or shown; how far that is, is the log's *high watermark*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Quorum(Protocol):
    """How far one log of a partition is on enough nodes; called on the event loop."""

    def follow(self, advance: Callable[[int], None]) -> None:
        """Say whom to tell of each new high watermark: an offset, all before it is safe."""

    def check(self) -> None:
        """Raise why nothing could be acknowledged if it were written now."""

    def appended(self, end_offset: int) -> None:
        """Hear that the leader has everything before ``end_offset`` on its disk."""

    def holders(self, offset: int) -> Sequence[str]:
        """Return which nodes have an offset on their disks; none where there is one node alone."""

    def confirm(self, then: Callable[[], None]) -> None:
        """Call ``then`` once it is sure that no other node had begun to lead when this was asked.

        Never, where one had.
        """

    def copied_to(self) -> int:
        """Return before which offset everybody has everything that copies the log now."""
