"""What an export writes next: pieces of partitions, cut so that a name always means the same rows.

A plan is made from where the last one ended and from where the logs end now. Its pieces are cut at
multiples of a number of offsets. It is stored before anything is written, and finished before
another is made: whoever runs an export again after it was stopped makes the same files.
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
    """Yield what lies between where each partition was left and its end.

    A partition that ``reached`` does not name begins at 0. Cut at multiples of ``messages_max``,
    so that all files but the last of each plan are whole.
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
    """Yield what lies before where partitions began: an archive is read that was not before."""
    for partition in sorted(began.keys() & starts.keys()):
        yield from pieces(
            {partition: starts[partition]}, {partition: began[partition]}, messages_max=messages_max
        )


def began_after(began: Mapping[int, int], done: Iterable[Piece]) -> dict[int, int]:
    """Return where each partition begins once these pieces are written."""
    after = dict(began)
    for piece in done:
        after[piece.partition] = min(after.get(piece.partition, 0), piece.start)
    return after


def reached_after(reached: Mapping[int, int], done: Iterable[Piece]) -> dict[int, int]:
    """Return where each partition stands once these pieces are written."""
    after = dict(reached)
    for piece in done:
        after[piece.partition] = max(after.get(piece.partition, 0), piece.end)
    return after


def file_name(piece: Piece) -> str:
    """Return the name of a piece's file in the folder of a date."""
    return f"{piece.partition:05d}-{piece.start}-{piece.end}.parquet"
