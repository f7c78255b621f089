"""Parts of frames that are gathered by column hold the same messages as the whole."""

from __future__ import annotations

import random
from typing import Any

from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import Attribute, stamp
from goq.frame.part import columns_present
from goq.frame.slice import can_gather, gather_rows, select_rows, slice_frame
from goq.frame.validation import check_frame
from goq.frame.view import FrameView

BASE = 1000


def _frame(draw: random.Random, count: int) -> FrameView:
    """Return a frame of which each column is there or not."""

    def some(make: Any) -> Any:
        return [make(row) for row in range(count)] if draw.random() < 0.6 else None

    columns = Columns(
        values=[
            None if draw.random() < 0.1 else draw.randbytes(draw.randrange(20))
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
    )
    compress = draw.random() < 0.5
    view = FrameView.parse(encode_frame(columns, producer=ProducerMark(5, 1, 7), compress=compress))
    header = stamp(view.header, base_offset=BASE, append_time_us=55, leader_epoch=3)
    return FrameView.parse(header.pack() + bytes(view.body))


def test_a_long_part_of_a_frame_holds_its_messages_in_a_sound_frame() -> None:
    draw = random.Random(1)
    for _ in range(100):
        view = _frame(draw, 300)
        start = draw.randrange(1, 200)
        end = start + draw.randrange(64, 100)
        part = FrameView.parse(slice_frame(view, BASE + start, BASE + end))
        check_frame(part)
        assert list(part.messages(0, end - start)) == list(view.messages(start, end))
        times = view.times_ms(Attribute.CLIENT_TIME, start, end)
        assert part.times_ms(Attribute.CLIENT_TIME, 0, end - start) == times
        assert part.header.base_offset == BASE + start
        assert part.header.first_sequence == 7 + start
        assert (part.header.append_time_us, part.header.leader_epoch) == (55, 3)


def test_many_scattered_rows_of_a_frame_make_a_sound_frame() -> None:
    draw = random.Random(2)
    for _ in range(100):
        view = _frame(draw, 300)
        rows = sorted(draw.sample(range(300), draw.randrange(64, 300)))
        part = FrameView.parse(select_rows(view, rows))
        check_frame(part)
        wanted = [message for row in rows for message in view.messages(row, row + 1)]
        assert list(part.messages(0, len(rows))) == wanted


def test_rows_of_frames_with_the_same_columns_make_one_sound_frame() -> None:
    draw = random.Random(3)
    by_columns: dict[int, list[FrameView]] = {}
    for _ in range(300):
        view = _frame(draw, draw.randrange(1, 40))
        alike = by_columns.setdefault(columns_present(view), [])
        assert all(can_gather(view, other) for other in alike)
        alike.append(view)
    assert max(map(len, by_columns.values())) > 3
    for views in by_columns.values():
        picked, wanted = [], []
        for view in views:
            count = view.header.message_count
            rows = sorted(draw.sample(range(count), draw.randrange(1, count + 1)))
            picked.append((view, rows))
            wanted += [message for row in rows for message in view.messages(row, row + 1)]
        gathered = FrameView.parse(gather_rows(picked))
        check_frame(gathered)
        assert list(gathered.messages(0, len(wanted))) == wanted
        assert gathered.header.base_offset == BASE


def test_frames_with_other_columns_or_removed_rows_are_not_gathered() -> None:
    plain = FrameView.parse(encode_frame(Columns([b"a", b"b"])))
    keyed = FrameView.parse(encode_frame(Columns([b"a", b"b"], keys=[b"k", None])))
    compacted = FrameView.parse(encode_frame(Columns([b"a", b"b"]), removed=[0]))
    assert can_gather(plain, plain)
    assert not can_gather(plain, keyed)
    assert not can_gather(compacted, compacted)
