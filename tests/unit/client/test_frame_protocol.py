"""What is handed over of a frame where it is only a few of its messages."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from goq.api.codec.frames import deliveries_parts
from goq.broker.partition.leases import LeasedBatch
from goq.client._sync.consume.receive import DeliveryBatch
from goq.client.protocol.frames import decode_deliveries
from goq.config.topic import TopicSettings
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import stamp
from goq.frame.view import FrameView


class _Topic:
    id = 0
    settings = TopicSettings()


def _frame(base: int, count: int) -> FrameView:
    values = [b"%d:" % offset + bytes(200) for offset in range(base, base + count)]
    keys = [None if offset % 3 else b"k%d" % offset for offset in range(base, base + count)]
    headers = [(("n", b"%d" % offset),) * (offset % 2) for offset in range(base, base + count)]
    data = encode_frame(Columns(values, keys, headers, lanes=[o % 3 for o in range(count)]))
    view = FrameView.parse(data)
    header = stamp(view.header, base_offset=base, append_time_us=base, leader_epoch=1)
    return FrameView.parse(header.pack() + bytes(view.body))


def _body(delivery: LeasedBatch) -> bytes:
    return b"".join(asyncio.run(deliveries_parts(_Topic(), [delivery], 0)))


def test_scattered_messages_arrive_in_their_order_whole_and_alone() -> None:
    rng = random.Random(7)
    for _ in range(60):
        frames = [_frame(base, 50) for base in (0, 50, 100)]
        offsets = rng.sample(range(150), rng.randint(1, 60))
        spans = [(offset, offset + 1, 1) for offset in offsets]
        delivery = LeasedBatch(2, 77, "c", 1000, spans, frames, False)
        body = _body(delivery)
        (found,) = decode_deliveries(body)
        seen = []
        for frame, start, end, _, first, time_us in found.pieces():
            for said, message in enumerate(frame.messages(start, end), first):
                assert message.value is not None
                offset = int(message.value.partition(b":")[0])
                seen.append(offset)
                assert said == offset
                assert message.key == (None if offset % 3 else b"k%d" % offset)
                assert message.lane == offset % 50 % 3
                assert time_us == offset // 50 * 50
        assert seen == offsets


def test_few_messages_of_many_frames_come_in_one() -> None:
    frames = [_frame(base, 50) for base in range(0, 1000, 50)]
    spans = [(offset, offset + 1, 1) for offset in range(7, 1000, 20)]
    (found,) = decode_deliveries(_body(LeasedBatch(0, 1, "c", 0, spans, frames, False)))
    assert len(found.frames) == 1
    assert [piece.offset for piece in found.pieces()] == [start for start, _, _ in spans]


def test_frames_that_are_sent_whole_stand_between_gathered_ones() -> None:
    frames = [_frame(base, 50) for base in range(0, 250, 50)]
    whole = [(offset, offset + 1, 1) for offset in range(100, 150)]
    spans = [(9, 10, 1), (40, 41, 1), (60, 61, 1), (99, 100, 1), *whole, (160, 161, 2)]
    spans += [(199, 200, 2), (201, 202, 1), (249, 250, 1)]
    (found,) = decode_deliveries(_body(LeasedBatch(0, 1, "c", 0, spans, frames, False)))
    assert len(found.frames) == 3
    pieces = list(found.pieces())
    assert [piece.offset for piece in pieces] == [start for start, _, _ in spans]
    assert [piece.time_us for piece in pieces] == [start // 50 * 50 for start, _, _ in spans]
    values = [value for p in pieces for value in p.frame.values(p.start, p.end)]
    assert [int((value or b"").partition(b":")[0]) for value in values] == [s for s, _, _ in spans]


def test_a_message_that_was_moved_has_the_lane_it_was_moved_to() -> None:
    batch = LeasedBatch(0, 1, "c", 0, [(0, 4, 1)], [_frame(0, 4)], False, moved={1: 2, 3: 1})
    deliveries = decode_deliveries(_body(batch))
    settler: Any = None
    found = DeliveryBatch(settler, "t", "g", deliveries).messages()
    assert [message.priority for message in found] == ["high", "low", "low", "normal"]


def test_few_messages_of_a_large_frame_cost_few_bytes() -> None:
    delivery = LeasedBatch(0, 1, "c", 0, [(0, 1, 1), (49, 50, 1)], [_frame(0, 50)], False)
    body = _body(delivery)
    assert len(body) < 1500 < _frame(0, 50).header.frame_bytes
