"""Damage of the message log that a read found, recorded as an event.

If another replica may have the messages, they are not lost: nothing is recorded, and the partition
goes offline until that replica leads.
"""

from __future__ import annotations

from goq.broker.events.group_changes import GroupChanges
from goq.broker.events.writer import EventWriter
from goq.broker.partition_context import Availability, PartitionCallbacks
from goq.delivery.events.event import Corrupted
from goq.delivery.partition_state import PartitionState
from goq.storage.scanner import Damage


class DamageRecorder:
    """Records the damage of one partition."""

    def __init__(
        self,
        state: PartitionState,
        callbacks: PartitionCallbacks,
        availability: Availability,
        writer: EventWriter,
        changes: GroupChanges,
    ) -> None:
        self._state = state
        self._callbacks = callbacks
        self._availability = availability
        self._writer = writer
        self._changes = changes

    def record(self, damage: Damage) -> None:
        """Record damage that is not known yet; raise as :meth:`check_repairable` does."""
        self.check_repairable(damage)
        start, end = damage.start_offset, damage.end_offset
        is_known = any(r.start <= start and end <= r.end for r in self._state.corrupt)
        is_writable = self._availability.error is None and self._writer.has_room
        if not is_known and is_writable:
            self._writer.record([Corrupted(start, end, damage.reason)])

    def check_repairable(self, damage: Damage) -> None:
        """Go offline and raise ``PartitionOffline`` if another replica may have the data."""
        if self._callbacks.may_be_repaired(damage):
            self._changes.on_all_groups()
            raise self._availability.take_offline(
                "is damaged on this node; another is to lead it", retry_after_ms=1000
            )
