"""A record batch says of frames exactly what the messages of these frames say, one by one."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header, stamp
from goq.frame.view import FrameView
from goq.pipeline.arrow.messages import messages_batch
from goq.pipeline.arrow.schema import MESSAGES

_KEYS = st.none() | st.binary(max_size=12)
_HEADERS = st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=6)), max_size=3)
_MESSAGES = st.lists(
    st.tuples(
        _KEYS,
        st.none() | st.binary(max_size=40),
        _HEADERS,
        st.integers(0, 255),
        st.sampled_from([0, 1_700_000_000_000, 4_102_444_800_001]),
        st.none() | st.sampled_from(["acme", "ä", "other"]),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def _frames(draw: st.DrawFn) -> list[FrameView]:
    views, offset = [], draw(st.integers(0, 2**40))
    for number in range(draw(st.integers(0, 4))):
        keys, values, headers, lanes, delivers, tenants = zip(*draw(_MESSAGES), strict=True)
        data = encode_frame(
            Columns(
                values=values,
                keys=draw(st.sampled_from([keys, None])),
                headers=draw(st.sampled_from([headers, None])),
                deliver_at_ms=draw(st.sampled_from([delivers, None])),
                tenants=draw(st.sampled_from([tenants, None])),
                lanes=draw(st.sampled_from([lanes, None])),
            ),
            producer=ProducerMark(draw(st.sampled_from([0, 7, 2**64 - 1])), 1, 0),
            compress=draw(st.booleans()),
        )
        header = stamp(
            parse_header(data), base_offset=offset, append_time_us=1000 + number, leader_epoch=1
        )
        views.append(FrameView.parse(header.pack() + data[HEADER_BYTES:]))
        offset = header.end_offset + draw(st.integers(0, 3))
    return views


@settings(deadline=None)
@given(_frames())
def test_a_batch_has_a_row_for_each_message_with_all_that_it_says(frames: list[FrameView]) -> None:
    batch = messages_batch("or.ders", 3, frames, default_lane=5)
    batch.validate(full=True)
    assert batch.schema == MESSAGES
    expected = []
    for view in frames:
        header = view.header
        for index, message in enumerate(view.messages(0, header.message_count)):
            offset = header.base_offset + index
            expected.append(
                {
                    "key": message.key,
                    "value": message.value,
                    "topic": "or.ders",
                    "partition": 3,
                    "offset": offset,
                    "headers": [{"key": n, "value": v} for n, v in message.headers],
                    "message_id": f"or.ders:3:{offset}",
                    "lane": 5 if message.lane is None else message.lane,
                    "tenant": message.tenant,
                    "producer": f"{header.producer_id:x}" if header.producer_id else None,
                    "timestamp": header.append_time_us,
                    "deliver_at": message.deliver_at_ms * 1000 or None,
                }
            )
    times = {
        name: batch.column(name).cast("int64").to_pylist() for name in ("timestamp", "deliver_at")
    }
    rows = batch.drop_columns(["timestamp", "deliver_at"]).to_pylist()
    found = [
        {**row, "timestamp": at, "deliver_at": due}
        for row, at, due in zip(rows, times["timestamp"], times["deliver_at"], strict=True)
    ]
    assert found == expected


@settings(deadline=None)
@given(_frames(), st.lists(st.sampled_from(MESSAGES.names), unique=True, min_size=1))
def test_some_columns_are_those_of_the_whole_batch(
    frames: list[FrameView], columns: list[str]
) -> None:
    whole = messages_batch("or.ders", 3, frames, default_lane=5)
    some = messages_batch("or.ders", 3, frames, default_lane=5, columns=columns)
    assert some.equals(whole.select(columns), check_metadata=True)


def test_a_payload_is_not_unpacked_for_columns_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_frame(Columns([b"x" * 1000] * 10), compress=True)
    header = stamp(parse_header(data), base_offset=7, append_time_us=1, leader_epoch=1)
    frames = [FrameView.parse(header.pack() + data[HEADER_BYTES:])]

    def refuse(*_: object) -> bytes:
        raise AssertionError("unpacked")

    monkeypatch.setattr("goq.frame.view.decompress", refuse)
    names = ["offset", "partition", "timestamp", "lane", "message_id", "producer"]
    batch = messages_batch("t", 0, frames, default_lane=1, columns=names)
    assert batch.column("offset").to_pylist() == list(range(7, 17))
    with pytest.raises(AssertionError, match="unpacked"):
        messages_batch("t", 0, frames, default_lane=1, columns=["value"])
