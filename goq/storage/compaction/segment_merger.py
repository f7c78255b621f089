"""The merge of small neighbours into one segment, their frames byte for byte as they are.

The new file is the next generation of the first of them. Before it gets its name, a marker says up
to which offset it reaches; it goes after the files of the others. So at any moment each offset is
in one segment. Neighbours with damaged bytes stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from goq import limits
from goq.errors import CorruptData
from goq.storage.compaction.segment_rewriter import (
    SegmentWriter,
    install_generation,
    write_generation,
)
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment
from goq.storage.scanner import BadRegion, Scanner


def mergeable(segments: Sequence[Segment], bytes_max: int) -> list[Sequence[Segment]]:
    """Group neighbours that are worth being one segment, of at most so many bytes.

    A group is joined by the next one if it is at most twice as large, so a byte is written again as
    often as the logarithm of the size. The sizes of what is left at least halve from one to the
    next, unless two are too large together.
    """
    groups: list[list[Segment]] = []
    sizes: list[int] = []
    for segment in segments:
        groups.append([segment])
        sizes.append(segment.size_bytes)
        while (
            len(groups) > 1
            and sizes[-2] <= 2 * sizes[-1]
            and sizes[-2] + sizes[-1] <= bytes_max
            and groups[-2][-1].end_offset == groups[-1][0].base_offset
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
            sizes[-2:] = [sizes[-2] + sizes[-1]]
    return [*groups]


def merge_segments(
    disk: Disk, segments: Sequence[Segment], pause: Callable[[], None], *, time_before_us: int
) -> Segment:
    """Write neighbours as the next generation of the first one, durably, and give it its name.

    Calls ``pause`` between frames. ``time_before_us`` is the running maximum of append times before
    them. :func:`remove_merged` is next. Raises ``CorruptData`` if they have damaged bytes; they
    stay as they were then, and also if ``pause`` or the disk fails.
    """

    def copy(writer: SegmentWriter) -> None:
        for segment in segments:
            scanner = Scanner(disk, segment.path, segment.size_bytes, chunk_bytes=limits.MIB)
            for place in scanner.frames(0, segment.base_offset):
                pause()
                if isinstance(place, BadRegion):
                    raise CorruptData(f"{segment.path} is damaged: {place.reason}")
                writer.add(place.view.header, place.view.buffer)

    new = write_generation(disk, segments, time_before_us, copy)
    disk.replace(new.merged_path, b"")
    install_generation(disk, new)
    return new


def remove_merged(disk: Disk, segments: Sequence[Segment], new: Segment) -> None:
    """Delete the files of segments that a new one holds, then its marker.

    Raises ``OSError``; the next start removes what is left then.
    """
    for segment in segments:
        segment.remove(disk)
    disk.remove(new.merged_path)
