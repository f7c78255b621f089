"""The share of a replay that was read, by offsets: an estimate, for progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goq.errors import GoqError
from goq.units import format_time_us

if TYPE_CHECKING:
    from goq.client import Client
    from goq.client.replay_plan import Replay


class LogShare:
    """Counts the offsets between the bounds of a replay, and those that were read."""

    def __init__(self, client: Client, replay: Replay) -> None:
        self._client = client
        self._replay = replay
        self._starts: dict[int, int] = {}
        self._reached: dict[int, int] = {}

    def total(self) -> int | None:
        """Ask the node how many offsets lie between the bounds; None if it does not answer."""
        replay, total = self._replay, 0
        try:
            for part in self._client.describe_topic(replay.topic).partitions:
                if replay.partition not in (None, part.partition):
                    continue
                least = 0 if replay.include_deleted else part.start_offset
                start, end = replay.from_offset or 0, part.high_watermark
                if replay.to_offset is not None:
                    end = min(end, replay.to_offset)
                start = max(start, least, self._offset_at(part.partition, replay.from_time_us) or 0)
                until = self._offset_at(part.partition, replay.to_time_us)
                self._starts[part.partition] = start
                total += max(0, (end if until is None else min(end, until)) - start)
        except GoqError:
            return None
        return total

    def _offset_at(self, partition: int, time_us: int | None) -> int | None:
        """Return the offset of the first message from a time on; None without a time."""
        if time_us is None:
            return None
        batch = self._client.read(
            self._replay.topic,
            partition=partition,
            from_time=format_time_us(time_us),
            limit=1,
            include_deleted=self._replay.include_deleted,
        )
        return batch.messages[0].offset if batch.messages else batch.next

    def reach(self, partition: int, offset: int) -> None:
        """Count the messages of a partition up to an offset as read."""
        self._reached[partition] = offset + 1

    def position(self) -> int:
        """Return how many offsets were read."""
        return sum(
            max(0, offset - self._starts.get(partition, 0))
            for partition, offset in self._reached.items()
        )
