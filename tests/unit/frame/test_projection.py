"""A frame without values or headers has all else of the original, and is sound."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import Attribute, parse_header, stamp
from goq.frame.projection import leave_out
from goq.frame.slice import removed_run, slice_frame
from goq.frame.validation import check_body_crc, check_frame
from goq.frame.view import FrameView

BASE = 1000
ONLY_OF_STORED_FRAMES = Attribute.REMOVED | Attribute.COPY


def _frame(draw: random.Random, count: int) -> FrameView:
    """Return a stored frame of which each section is there or not."""

    def some(make: Any) -> Any:
        return [make(row) for row in range(count)] if draw.random() < 0.6 else None

    tombstones = draw.choice((0, 0.1, 1))
    data = encode_frame(
        Columns(
            values=[
                None if draw.random() < tombstones else draw.randbytes(draw.randrange(90))
                for _ in range(count)
            ],
            keys=some(lambda row: None if draw.random() < 0.2 else b"k%d" % row),
            headers=some(lambda row: [(f"h{n}", b"%d" % row) for n in range(draw.randrange(4))]),
            deliver_at_ms=some(lambda row: row),
            expires_at_ms=some(lambda row: row + 1),
            client_time_ms=some(lambda row: row + 2),
            dedup_ids=some(lambda row: row.to_bytes(16, "little")),
            tenants=some(lambda _row: None if draw.random() < 0.2 else f"t{draw.randrange(30)}"),
            lanes=some(lambda row: row % 3),
        ),
        producer=ProducerMark(5, 1, 7),
        compress=draw.random() < 0.5,
        left_out=[(2, 17, 99)] if draw.random() < 0.3 else (),
        removed=[r for r in range(count) if draw.random() < 0.3] if draw.random() < 0.4 else None,
    )
    header = parse_header(data)
    redriven = Attribute.COPY if draw.random() < 0.3 else 0
    header = stamp(
        header._replace(attributes=header.attributes | redriven),
        base_offset=BASE,
        append_time_us=55,
        leader_epoch=3,
    )
    return FrameView.parse(header.pack() + data[64:])


def _without(columns: Columns, left_out: tuple[str, ...]) -> Columns:
    if "value" in left_out:
        columns = replace(columns, values=[None if v is None else b"" for v in columns.values])
    return replace(columns, headers=None) if "headers" in left_out else columns


def _check(found: FrameView, whole: FrameView, start: int, end: int, *left_out: str) -> None:
    count = end - start
    assert found.columns(0, count) == _without(whole.columns(start, end), left_out)
    assert list(found.kept(0, count)) == list(whole.kept(start, end))
    check_body_crc(found)
    header = found.header
    assert not header.attributes & Attribute.ZSTD
    assert (header.base_offset, header.message_count) == (BASE + start, count)
    assert (header.append_time_us, header.leader_epoch) == (55, 3)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (5, 1, 7 + start)
    if not header.attributes & ONLY_OF_STORED_FRAMES and not header.left_out:
        check_frame(found)


@pytest.mark.parametrize("left_out", [("value",), ("headers",), ("value", "headers")])
def test_the_other_columns_and_the_offsets_stay(left_out: tuple[str, ...]) -> None:
    draw = random.Random(repr(left_out))
    for _ in range(150):
        count = draw.randrange(1, 200)
        view = _frame(draw, count)
        found = FrameView.parse(leave_out(view, left_out).buffer)
        _check(found, view, 0, count, *left_out)
        assert found.header.frame_bytes <= view.unpacked_bytes
        assert found.left_out == view.left_out
        gone = Attribute.COPY if "headers" in left_out else 0
        assert found.header.attributes & Attribute.COPY == (
            view.header.attributes & Attribute.COPY & ~gone
        )
        start = draw.randrange(count)
        end = draw.randrange(start, count) + 1
        part = FrameView.parse(slice_frame(found, BASE + start, BASE + end))
        _check(part, view, start, end, *left_out)


def test_a_message_whose_value_is_left_out_is_no_tombstone() -> None:
    view = FrameView.parse(encode_frame(Columns([b"a" * 1000, None, b""])))
    found = leave_out(view, ["value"])
    assert found.values(0, 3) == [b"", None, b""]
    assert found.header.frame_bytes < 120


def test_a_frame_whose_messages_are_all_removed_stays_so() -> None:
    run = removed_run(7, 20, append_time_us=1, leader_epoch=2)
    found = leave_out(FrameView.parse(run), ["value", "headers"])
    assert list(found.kept(0, 20)) == [False] * 20
    assert (found.header.base_offset, found.header.end_offset) == (7, 27)
