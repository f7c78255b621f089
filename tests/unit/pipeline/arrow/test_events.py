"""Each message that an event speaks of has a row, and each row says what the event says."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    Expired,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Reset,
    Skipped,
    Trimmed,
    token_of,
)
from goq.delivery.events.frame_codec import encode_event_frame
from goq.frame.header import stamp
from goq.frame.view import FrameView
from goq.pipeline.arrow.events import events_batch
from goq.pipeline.arrow.schema import EVENTS


def frame(events: list[AnyEvent], sequence: int, time_us: int) -> FrameView:
    view = encode_event_frame(events)
    header = stamp(view.header, base_offset=sequence, append_time_us=time_us, leader_epoch=2)
    return FrameView(header, view.buffer)


def rows(*frames: FrameView) -> list[tuple[object, ...]]:
    batch = events_batch("orders", 1, frames)
    batch.validate(full=True)
    assert batch.schema == EVENTS
    names = ("message_id", "event", "group", "consumer", "attempt", "reason", "lease", "sequence")
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


def test_a_lease_and_its_ack_have_a_row_a_message_with_the_same_lease() -> None:
    token = token_of(2, 7)
    found = rows(
        frame([Leased("g", "c", 5_000, [(10, 12, 1), (20, 21, 3)])], 7, 1_000),
        frame([Acked("g", token, [(10, 11)]), Acked("g", token, [(11, 12)])], 8, 2_000),
    )
    assert found == [
        ("orders:1:10", "DELIVERED", "g", "c", 1, None, token, 7),
        ("orders:1:11", "DELIVERED", "g", "c", 1, None, token, 7),
        ("orders:1:20", "DELIVERED", "g", "c", 3, None, token, 7),
        ("orders:1:10", "ACKNOWLEDGED", "g", None, None, None, token, 8),
        ("orders:1:11", "ACKNOWLEDGED", "g", None, None, None, token, 9),
    ]


def test_why_a_message_was_not_done_is_in_its_row() -> None:
    found = rows(
        frame(
            [
                Nacked("g", 5, [(1, 2, 2)], 9_000, "no room", 8_000),
                Expired("g", 5, [(2, 3, 1)], 9_000),
                CopyQueued("g", 5, [(3, 4, 4)], Cause.REJECTED, "bad", 1, "orders.dlq", 1, 99),
                CopyQueued("", 0, [(4, 5, 0)], Cause.REDRIVEN, "", 1, "orders", 1, 99),
                Skipped("g", [(6, 7)], Cause.TTL),
                Cancelled([(7, 8)], "by mistake"),
                Moved(8, 0),
            ],
            0,
            1,
        )
    )
    assert [row[:2] + row[4:7] for row in found] == [
        ("orders:1:1", "NACKED", 2, "no room", 5),
        ("orders:1:2", "EXPIRED", 1, None, 5),
        ("orders:1:3", "DEAD_LETTERED", 4, "bad", 5),
        ("orders:1:4", "REDRIVEN", 0, "redriven", None),
        ("orders:1:6", "EXPIRED", None, "ttl", None),
        ("orders:1:7", "CANCELLED", None, "by mistake", None),
        ("orders:1:8", "MOVED", None, "lane 0", None),
    ]


def test_a_reset_is_told_of_the_message_that_the_group_goes_on_from() -> None:
    (row,) = rows(frame([Reset("g", 5)], 0, 1))
    assert row[:3] == ("orders:1:5", "RESET", "g")


def test_the_end_of_a_group_and_what_retention_left_have_a_row_each() -> None:
    found = rows(frame([GroupDeleted("g"), Trimmed(9)], 0, 1))
    assert [row[:3] for row in found] == [
        ("orders:1:0", "GROUP_DELETED", "g"),
        ("orders:1:9", "TRIMMED", None),
    ]


def test_what_names_no_message_has_no_row() -> None:
    assert rows(frame([Matured(3, 4)], 0, 1)) == []
    assert rows() == []
