"""The next pieces of an export, cut so that a file name always means the same rows, and when.

A plan covers the offsets from the end of the last plan to the current end of the logs, cut at
multiples of a fixed number. It is stored before anything is written and finished before the next
plan is made, so an interrupted export that runs again writes the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

PIECE_MESSAGES = 1_000_000


class Piece(NamedTuple):
    """Offsets of one partition from ``start`` up to ``end``, written as a file for each date."""

    partition: int
    start: int
    end: int


def pieces(
    reached: Mapping[int, int], ends: Mapping[int, int], *, messages_max: int = PIECE_MESSAGES
) -> Iterator[Piece]:
    """Yield the pieces from the end of the last plan to the end of each partition.

    A partition that ``reached`` lacks begins at 0. Cuts are at multiples of ``messages_max``, so
    all files but the last of each plan are full.
    """
    for partition in sorted(ends):
        start, end = reached.get(partition, 0), ends[partition]
        while start < end:
            cut = min(end, (start // messages_max + 1) * messages_max)
            yield Piece(partition, start, cut)
            start = cut


def pieces_before(
    began: Mapping[int, int], starts: Mapping[int, int], *, messages_max: int = PIECE_MESSAGES
) -> Iterator[Piece]:
    """Yield the pieces before the first exported offsets, for archives that are read now."""
    for partition in sorted(began.keys() & starts.keys()):
        yield from pieces(
            {partition: starts[partition]}, {partition: began[partition]}, messages_max=messages_max
        )


def began_after(began: Mapping[int, int], done: Iterable[Piece]) -> dict[int, int]:
    """Return the first exported offset of each partition, with these pieces."""
    after = dict(began)
    for piece in done:
        after[piece.partition] = min(after.get(piece.partition, 0), piece.start)
    return after


def reached_after(reached: Mapping[int, int], done: Iterable[Piece]) -> dict[int, int]:
    """Return the end of each partition, with these pieces."""
    after = dict(reached)
    for piece in done:
        after[piece.partition] = max(after.get(piece.partition, 0), piece.end)
    return after


def file_name(piece: Piece) -> str:
    """Return the name of a piece's file in the folder of a date."""
    return f"{piece.partition:05d}-{piece.start}-{piece.end}.parquet"


class ExportGate:
    """When a following export writes files: enough rows for a useful size, or long enough.

    Decides by topic. All times are seconds of a monotonic clock.

    A topic is due with ``rows_min`` new rows, or ``wait_s_max`` after its first new row was seen.
    Without a minimum every topic is always due, also without rows.
    """

    def __init__(self, rows_min: int = 0, wait_s_max: float = 0.0) -> None:
        self._rows_min = rows_min
        self._wait_s_max = wait_s_max
        self._seen_s: dict[str, float] = {}

    def is_due(self, topic: str, rows: int, now_s: float) -> bool:
        """Whether to export a topic that has so many new rows now; if so, its wait begins anew."""
        if not self._rows_min:
            return True
        if not rows:
            return False
        seen_s = self._seen_s.setdefault(topic, now_s)
        if rows < self._rows_min and now_s - seen_s < self._wait_s_max:
            return False
        del self._seen_s[topic]
        return True
