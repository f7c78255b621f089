"""The files of a log's segments, by their names: which count, and which an interruption left.

The highest generation of a base offset is the segment. One that holds others, by its marker, counts
instead of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from goq.storage.column_index.file import SUFFIX as COLUMNS_SUFFIX
from goq.storage.disk import Disk
from goq.storage.log.segment import (
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    NAME_DIGITS,
    SPANS_SUFFIX,
    SUFFIX,
    TEMP_SUFFIX,
    Segment,
)

_GENERATION_DIGITS = 9
_NAME = re.compile(
    rf"([0-9]{{{NAME_DIGITS}}})(?:\.([1-9][0-9]{{0,{_GENERATION_DIGITS - 1}}}))?(\..*)"
)
_SUFFIXES = (SUFFIX, INDEX_SUFFIX, COLUMNS_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX)
_MERGED = re.compile(rf"\.merged-([0-9]{{{NAME_DIGITS}}})")
_OFFSET_MAX = 2**63 - 1


def list_segments(disk: Disk, directory: Path, names: Sequence[str] | None = None) -> list[Segment]:
    """Return the segments in a directory by base offset, the newest generation of each.

    ``names`` are those in the directory, if they are known.

    Sizes are those of the files. Files with other names do not belong to the log.
    """
    names = disk.names(directory) if names is None else names
    segments = [Segment(directory, *each) for each in _newest_generations(names).items()]
    try:
        for segment in segments:
            segment.size_bytes = disk.size(segment.path)
    except FileNotFoundError:
        if disk.names(directory) == list(names):
            raise
        return list_segments(disk, directory)  # a running node has rewritten or deleted one
    for segment, after in pairwise(segments):
        segment.end_offset = after.base_offset
    return segments


def remove_leftovers(disk: Disk, directory: Path) -> list[str]:
    """Delete files that an interrupted rewrite or merge left behind.

    Return the names of all other files.
    """
    names = disk.names(directory)
    removed, markers = set[str](), list[str]()
    newest = _newest_generations(names)
    merged = _merged_ranges(names, newest)
    for name, base_offset, generation, suffix in _parse_names(names):
        is_old = newest.get(base_offset, generation) != generation or any(
            start < base_offset < end for start, end in merged
        )
        is_temporary = suffix == SUFFIX + TEMP_SUFFIX
        if is_temporary or (is_old and suffix.removesuffix(TEMP_SUFFIX) in _SUFFIXES):
            disk.remove(directory / name)
            removed.add(name)
        elif _MERGED.fullmatch(suffix.removesuffix(TEMP_SUFFIX)):
            markers.append(name)
    for name in markers:  # only now: with one of the segments left, it would be a contradiction
        disk.remove(directory / name)
        removed.add(name)
    return [name for name in names if name not in removed]


def remove_merge_markers(disk: Disk, segment: Segment) -> None:
    """Remove what says that a generation holds other segments, before it gets its name.

    A merge that failed may have left it, and it would count for another file of that name.
    """
    directory = segment.path.parent
    for name, base_offset, generation, suffix in _parse_names(disk.names(directory)):
        is_own = (base_offset, generation) == (segment.base_offset, segment.generation)
        if is_own and _MERGED.fullmatch(suffix):
            disk.remove(directory / name)


def is_listed(disk: Disk, segments: Sequence[Segment], base_offset: int, end_offset: int) -> bool:
    """Return whether a segment is among others, or was merged into one of them.

    Reads the index of that one.
    """
    number = bisect_right(segments, base_offset, key=lambda s: s.base_offset) - 1
    if number < 0:
        return False
    found = segments[number]
    if found.base_offset == base_offset:
        return True
    return found.generation > 0 and found.load_index(disk).last().offset >= end_offset


def _newest_generations(names: Iterable[str]) -> dict[int, int]:
    """Return the newest generation of each segment, by rising base offset."""
    found: dict[int, int] = {}
    for _, base_offset, generation, suffix in _parse_names(names):
        if suffix == SUFFIX:
            found[base_offset] = max(generation, found.get(base_offset, 0))
    for start, end in _merged_ranges(names, found):
        for base_offset in [each for each in found if start < each < end]:
            del found[base_offset]
    return dict(sorted(found.items()))


def _merged_ranges(names: Iterable[str], newest: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the ranges of offsets whose segments were merged into the first one of them."""
    return [
        (base_offset, int(end[1]))
        for _, base_offset, generation, suffix in _parse_names(names)
        if (end := _MERGED.fullmatch(suffix)) and newest.get(base_offset, 0) >= generation
    ]


def _parse_names(names: Iterable[str]) -> Iterator[tuple[str, int, int, str]]:
    """Yield the names of segment files, with base offset, generation and suffix."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match and int(match[1]) <= _OFFSET_MAX:
            yield name, int(match[1]), int(match[2] or 0), match[3]
