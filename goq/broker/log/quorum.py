"""The quorum of a log: the replicas that an acknowledgement requires, and the high watermark.

A standalone node has no quorum. In a cluster enough replicas must have a frame on disk before it is
acknowledged or readable. The offset up to which they have the log is the *high watermark*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from goq.storage.log.segment import WriteBatch


class Quorum(Protocol):
    """The quorum of one log of a partition; called on the event loop."""

    def follow(self, advance: Callable[[int], None]) -> None:
        """Set the callback for each new high watermark."""

    def check(self) -> None:
        """Raise the error if no append could be acknowledged now."""

    def check_leads(self) -> None:
        """Raise ``NotLeader`` if another node may lead by now, and have later appends."""

    def offer(self, batch: WriteBatch) -> bool:
        """Send a batch to other nodes before it is written here; return whether any may get it.

        After True the batch is written, or nothing more in this leadership: other nodes may have
        it at its offsets.
        """

    def keep(self, batch: WriteBatch) -> None:
        """Keep a written batch that was not offered in memory for other nodes, if there is room."""

    def appended(self, end_offset: int) -> None:
        """Record that the leader has everything before ``end_offset`` on disk."""

    def holders(self, offset: int) -> Sequence[str]:
        """Return the nodes that have an offset on disk; empty on a standalone node."""

    def confirm(self, then: Callable[[], None]) -> None:
        """Call ``then`` once it is certain that no other node led at the time of this call.

        It is never called if one did.
        """

    def copied_to(self) -> int:
        """Return the offset up to which all current followers have copied the log."""
