"""What a follower gets of one log of its leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition.loader import open_logs
from goq.cluster.replication.fetch.follower_update import read_log_update
from goq.cluster.replication.protocol import LogUpdate
from goq.config.topic import TopicSettings
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of


def log_of(*frames: int, epochs: tuple[int, ...] = ()) -> Log:
    """Return a log of messages with frames of so many each, 0 for the end of a segment."""
    log = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings()).messages
    written = 0
    for count in frames:
        if count:
            append(log, [frame_of([b"v"] * count)], epoch=epochs[written] if epochs else 1)
            written += 1
        else:
            log.roll()
    return log


def given(
    log: Log, end: int, epoch: int = 1, *, is_checked: bool = True, bytes_max: int = 2**20
) -> tuple[LogUpdate, list[int]]:
    """Return what a follower gets: the update, and where its frames begin."""
    update = read_log_update(
        log,
        end,
        epoch,
        log.end_offset,
        is_lost=lambda start, end: start >= end,  # nothing is lost
        is_checked=is_checked,
        bytes_max=bytes_max,
    )
    frames = [FrameView.parse(each).header for each in update.buffers]
    assert update.head.frame_bytes == sum(map(len, update.buffers))
    assert not frames or update.end_offset == frames[-1].end_offset
    return update.head, [header.base_offset for header in frames]


def test_a_follower_gets_the_frames_of_one_segment_at_a_time() -> None:
    log = log_of(2, 1, 0, 3, 1)
    found = [given(log, end) for end in (0, 2, 3, 6, 7)]
    assert [offsets for _, offsets in found] == [[0, 2], [2], [3, 6], [6], []]
    assert [update.segment_base for update, _ in found] == [0, 0, 3, 3, 0]


def test_a_follower_gets_at_least_one_frame_and_else_no_more_than_fits() -> None:
    log = log_of(1, 1, 1)
    size = len(frame_of([b"v"]))
    for bytes_max, count in ((1, 1), (size, 1), (2 * size, 2), (9 * size, 3)):
        assert len(given(log, 0, bytes_max=bytes_max)[1]) == count


def test_a_follower_within_a_merged_frame_gets_all_of_the_frame() -> None:
    assert given(log_of(4, 1), 2)[1] == [0, 4]


def test_a_follower_before_the_log_is_told_where_it_begins() -> None:
    log = log_of(2, 0, 1)
    log.remove(log.detach_before(2))
    assert given(log, 1) == (LogUpdate(2, 2, 0), [])
    assert given(log, 2)[1] == [2]


def test_an_empty_log_that_begins_with_the_leaders_differs_in_nothing() -> None:
    log = log_of(2, 0, 1)
    log.remove(log.detach_before(2))
    update, offsets = given(log, 2, 9, is_checked=False)
    assert (update.diverges_at, offsets) == (None, [2])


@pytest.mark.parametrize(
    ("end", "epoch", "expected"),
    [
        (2, 1, [2]),  # the same log up to where it ends
        (3, 1, (2, 1)),  # it has more of the epoch than there ever was
        (1, 1, [1]),
        (3, 2, [3]),
        (4, 2, (3, 2)),
        (4, 9, (4, 3)),  # of a leadership that this leader knows nothing of
        (1, 0, (0, -1)),
    ],
)
def test_a_new_follower_is_told_where_its_log_differs(
    end: int, epoch: int, expected: list[int] | tuple[int, int]
) -> None:
    log = log_of(1, 1, 1, 1, epochs=(1, 1, 2, 3))
    update, offsets = given(log, end, epoch, is_checked=False)
    if isinstance(expected, tuple):
        assert ((update.diverges_at, update.epoch), offsets) == (expected, [])
    else:
        assert (update.diverges_at, offsets[:1]) == (None, expected)
