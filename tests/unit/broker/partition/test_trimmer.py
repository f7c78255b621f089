"""Where the first message of a log is that compaction has left."""

from __future__ import annotations

from goq.broker.partition.trimmer import first_kept_offset
from goq.frame.encoder import Columns, encode_frame
from goq.storage.compaction.cleaner import OffsetMap, build_offset_map
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append


class _Case:
    """A log of keys, a frame for each word, and its compaction."""

    def __init__(self, *segments: str) -> None:
        self.disk = SimulatedDisk()
        self.log = Log.open(DIRECTORY, self.disk)
        for number, words in enumerate(segments):
            if number:
                self.log.roll()
            for word in words.split():
                keys = [letter.encode() for letter in word]
                append(self.log, [encode_frame(Columns([b"v"] * len(keys), keys))])

    def compact(self) -> None:
        """Remove from the first segment what later messages replace."""
        newest = OffsetMap(0, secret=bytes(16), keys_max=100)
        build_offset_map(self.log.reader, newest, self.log.end_offset, lambda: None)
        terms, segment = CleanerParameters(newest, 0, 0, lambda: None), self.log.segments[0]
        found = plan_rewrite(self.disk, segment, terms)
        new = rewrite_segment(self.disk, segment, found, terms, time_before_us=0)
        install_generation(self.disk, new)
        assert self.log.replace_segments([segment], new)

    def damage(self, place: int) -> None:
        """Damage a byte of the first segment, counted from its end."""
        first = self.log.segments[0]
        self.disk.flip(first.path, first.size_bytes - place, 1)


def test_the_first_message_is_behind_those_that_compaction_removed() -> None:
    for segments, first in (
        (("aab", "c"), 1),
        (("ab ab", "c"), 2),
        (("ab", "ab"), 2),
        (("ab cd", "ab"), 2),
        (("abc", "ab"), 2),
        (("ab", "c"), 0),
    ):
        case = _Case(*segments)
        assert first_kept_offset(case.log) == 0
        if first:
            case.compact()
        assert first_kept_offset(case.log) == first, segments


def test_the_search_goes_on_from_an_earlier_result() -> None:
    case = _Case("abc", "ab")
    assert first_kept_offset(case.log, 1) == 1
    case.compact()
    assert [first_kept_offset(case.log, known) for known in (1, 2)] == [2, 2]


def test_messages_that_are_damaged_count_as_there() -> None:
    case = _Case("ab ab abc", "abc")
    case.compact()
    assert first_kept_offset(case.log) == 7
    case.damage(1)
    assert first_kept_offset(case.log) < 7
