"""Frames against a second reader written from the specification, and pinned by files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.errors import InvalidFrame
from goq.frame.encoder import (
    Columns,
    ProducerMark,
    columns_from_messages,
    encode_frame,
    named_producer,
)
from goq.frame.hashes import dedup_hash, key_hash, partition_of
from goq.frame.header import NAMED_ONLY_EPOCH
from goq.frame.slice import drop_duplicates, remove_all_rows, remove_rows, removed_run, slice_frame
from goq.frame.validation import check_body_crc, check_frame
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.frame.cases import GOLDEN, Batch, batches, event_frame
from tests.support.frame.model import decode
from tests.support.paths import DOCS

GOLDEN_DIR = Path(__file__).parent / "golden"
FORMAT = DOCS / "format.md"


def as_lists(columns: Columns) -> Columns:
    """Return columns with what stands for the same as the same."""
    headers = columns.headers
    lanes = columns.lanes
    return Columns(
        values=list(columns.values),
        keys=columns.keys and list(columns.keys),
        headers=None if headers is None else [list(h) for h in headers],
        deliver_at_ms=columns.deliver_at_ms,
        expires_at_ms=columns.expires_at_ms,
        client_time_ms=columns.client_time_ms,
        dedup_ids=columns.dedup_ids,
        tenants=columns.tenants,
        lanes=None if lanes is None else list(lanes),
    )


def check_against_twin(batch: Batch, frame: bytes) -> None:
    twin, columns, count = decode(frame), batch.columns, len(batch.columns.values)
    assert twin.values == list(columns.values)
    assert twin.keys == list(columns.keys or [None] * count)
    assert twin.headers == [list(h) for h in columns.headers or [[]] * count]
    assert twin.deliver_at_ms == columns.deliver_at_ms
    assert twin.expires_at_ms == columns.expires_at_ms
    assert twin.client_time_ms == columns.client_time_ms
    assert twin.dedup_ids == columns.dedup_ids
    assert twin.tenants == columns.tenants
    assert twin.lanes == columns.lanes
    keys = columns.keys
    assert twin.key_hashes == (keys and [0 if k is None else key_hash(k) for k in keys])
    expected = {
        "message_count": count,
        "base_offset": batch.base_offset,
        "append_time_us": batch.append_time_us,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer.producer_id,
        "producer_epoch": batch.producer.epoch,
        "first_sequence": batch.producer.first_sequence,
    }
    assert expected.items() <= twin.header.items()


@settings(deadline=None)
@given(batches())
def test_both_readers_read_what_was_written(batch: Batch) -> None:
    frame = batch.encode()
    check_against_twin(batch, frame)
    view = FrameView.parse(frame)
    check_frame(view)
    count = len(batch.columns.values)
    assert as_lists(view.columns(0, count)) == as_lists(batch.columns)
    messages = list(view.messages(0, count))
    assert [m.value for m in messages] == list(batch.columns.values)
    assert [m.key for m in messages] == list(batch.columns.keys or [None] * count)


@settings(deadline=None)
@given(batches(), st.data())
def test_a_slice_of_a_frame_is_a_frame_of_the_slice(batch: Batch, data: st.DataObject) -> None:
    frame = batch.encode()
    view, count = FrameView.parse(frame), len(batch.columns.values)
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start + 1, count))
    base = batch.base_offset
    part = FrameView.parse(slice_frame(view, base + start, base + end))
    check_frame(part)
    decode(bytes(part.buffer))
    assert part.header.base_offset == base + start
    assert part.header.append_time_us == batch.append_time_us
    assert part.header.first_sequence == batch.producer.first_sequence + start * (
        end - start < count
    )
    assert part.columns(0, end - start) == view.columns(start, end)
    assert part.header.frame_bytes <= len(frame) or batch.compress


def test_a_slice_of_all_is_the_frame_itself() -> None:
    frame = GOLDEN["plain"].encode()
    view = FrameView.parse(frame)
    assert slice_frame(view, 0, 2**62) is view.buffer
    assert bytes(slice_frame(view, 45678, 45778)) == frame


def test_messages_without_keys_and_headers_have_no_columns_for_them() -> None:
    columns = columns_from_messages([Message(b"a"), Message(None)])
    assert columns == Columns([b"a", None])
    columns = columns_from_messages([Message(b"a", b"k"), Message(b"b", None, [("h", b"v")])])
    assert columns == Columns([b"a", b"b"], [b"k", None], [(), [("h", b"v")]])


def test_frames_lie_end_to_end_in_a_buffer() -> None:
    frames = [batch.encode() for batch in GOLDEN.values()]
    data, position = b"".join(frames), 0
    for frame in frames:
        view = FrameView.parse(data, position)
        assert bytes(view.buffer) == frame
        check_frame(view)
        position += view.header.frame_bytes
    assert position == len(data)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_format_is_what_the_files_have(name: str) -> None:
    batch, stored = GOLDEN[name], (GOLDEN_DIR / f"{name}.bin").read_bytes()
    check_against_twin(batch, stored)
    view = FrameView.parse(stored)
    check_frame(view)
    assert as_lists(view.columns(0, view.header.message_count)) == as_lists(batch.columns)
    if not batch.compress:  # another release of zstd may pack otherwise
        assert batch.encode() == stored


def test_the_format_of_an_events_frame_is_what_the_file_has() -> None:
    assert event_frame() == (GOLDEN_DIR / "events.bin").read_bytes()


def test_the_worked_example_of_the_format_is_right() -> None:
    (block,) = re.findall(r"```hex\n(.*?)```", FORMAT.read_text(), re.DOTALL)
    written = bytes.fromhex("".join(line[:24] for line in block.splitlines()))
    batch = Batch(
        Columns(
            values=[b"hello", None],
            keys=[b"k1", None],
            headers=[[("h", b"\xff")], []],
            tenants=["acme", None],
            lanes=[1, 0],
        ),
        ProducerMark(7, 1, 40),
        base_offset=45678,
        append_time_us=1_700_000_000_000_000,
        leader_epoch=3,
    )
    assert batch.encode() == written
    check_against_twin(batch, written)


def test_the_named_producer_of_the_format_has_the_id_it_says() -> None:
    [name, written] = re.findall(r"The name `(.*?)` is producer `(\w+)`", FORMAT.read_text())[0]
    assert named_producer(name) == ProducerMark(int(written, 16), NAMED_ONLY_EPOCH, 0)


def test_numpy_reads_the_columns_where_they_lie() -> None:
    import numpy as np

    from goq.frame.header import Attribute

    frame = bytearray(GOLDEN["every-column"].encode())
    view = FrameView.parse(memoryview(frame))
    column = view.column(Attribute.CLIENT_TIME)
    assert column is not None
    assert np.frombuffer(column, "<i8").tolist() == [1, 2, 3, -(2**63)]
    assert np.shares_memory(np.frombuffer(column, np.uint8), np.frombuffer(frame, np.uint8))
    assert view.column(Attribute.EVENTS) is None


def test_keys_keep_their_hash_and_their_partition() -> None:
    """The numbers are part of the format: the same key goes to the same partition for ever."""
    assert key_hash(b"") == 0
    assert key_hash(b"orders") == 0x792CC980A49741BC
    assert [partition_of(b"key-%d" % n, 6) for n in range(10)] == [3, 2, 5, 1, 0, 4, 1, 0, 1, 5]


def test_encoding_is_the_same_from_any_sequence() -> None:
    rows = ([b"a", b"b"], [b"k", None], [[("h", b"v")], []])
    assert encode_frame(Columns(*rows)) == encode_frame(Columns(*map(tuple, rows)))


def test_a_changed_byte_of_the_body_is_noticed() -> None:
    frame = bytearray(GOLDEN["plain"].encode())
    frame[-1] ^= 1
    with pytest.raises(Exception, match="CRC32C"):
        check_body_crc(FrameView.parse(bytes(frame)))


@given(batches(), st.data())
def test_a_frame_without_some_rows_has_all_the_others_and_says_so(
    batch: Batch, data: st.DataObject
) -> None:
    view = FrameView.parse(batch.encode())
    count = view.header.message_count
    assume(count > 1)
    rows = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    left_out = [(row, 2**62 + row, -row) for row in sorted(rows)]
    smaller = drop_duplicates(view, left_out)
    kept = [row for row in range(count) if row not in rows]
    assert list(smaller.messages(0, len(kept))) == [
        m for row, m in enumerate(view.messages(0, count)) if row not in rows
    ]
    expected = view.columns(0, count).pick(kept)
    assert as_lists(smaller.columns(0, len(kept))) == as_lists(expected)
    assert list(smaller.left_out) == left_out
    assert smaller.header.producer_count == count
    assert decode(bytes(smaller.buffer)).left_out == list(map(tuple, left_out))


def test_messages_carry_what_the_columns_say() -> None:
    messages = [
        Message(b"a", lane=2, tenant="t", dedup_id=dedup_hash("d")),
        Message(b"b", b"k", deliver_at_ms=5, expires_at_ms=9),
        Message(b"c"),
    ]
    columns = columns_from_messages(messages, default_lane=1)
    assert columns.lanes == [2, 1, 1]
    view = FrameView.parse(encode_frame(columns))
    assert list(view.messages(0, 3)) == [
        messages[0],
        msgspec.structs.replace(messages[1], lane=1),
        msgspec.structs.replace(messages[2], lane=1),
    ]
    assert columns_from_messages([Message(b"a", lane=1)], default_lane=1).lanes is None


def the(column: Sequence[Any] | None, rows: Sequence[int]) -> list[Any] | None:
    return None if column is None else [column[row] for row in rows]


@settings(deadline=None)
@given(batches(), st.data())
def test_a_frame_without_what_is_gone_has_the_others_at_their_rows(
    batch: Batch, data: st.DataObject
) -> None:
    view, count = FrameView.parse(batch.encode()), len(batch.columns.values)
    gone = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    rows = [row for row in range(count) if row not in gone]
    assume(rows)
    before = view.columns(0, count)
    for _ in range(2):  # again from what it has become
        frame = remove_rows(view, sorted(gone))
        view = FrameView.parse(frame)
        check_body_crc(view)
        twin = decode(frame)
        assert twin.gone == [row in gone for row in range(count)]
        assert twin.header["message_count"] == count
        assert twin.values == the(before.values, rows)
        assert twin.keys == (the(before.keys, rows) or [None] * len(rows))
        assert twin.tenants == the(before.tenants, rows)
        assert twin.dedup_ids == before.dedup_ids
        after = view.columns(0, count)
        assert as_lists(after.pick(rows)) == as_lists(before.pick(rows))
        assert view.kept(0, count) == [row not in gone for row in range(count)]
        kept = [
            m
            for m, is_kept in zip(view.messages(0, count), view.kept(0, count), strict=True)
            if is_kept
        ]
        assert [m.value for m in kept] == the(before.values, rows)
        assert the(after.values, sorted(gone)) == [None] * len(gone)
        assert the(view.keys(0, count), sorted(gone)) == [None] * len(gone)
        for name in ("base_offset", "append_time_us", "leader_epoch", "producer_id"):
            assert getattr(view.header, name) == getattr(batch, name, batch.producer.producer_id)
    start = data.draw(st.integers(0, count - 1))
    base = batch.base_offset
    part = FrameView.parse(slice_frame(view, base + start, base + count))
    assert part.header.base_offset == base + start
    assert part.kept(0, count - start) == view.kept(start, count)
    left = [row for row in rows if row >= start]
    columns = part.columns(0, count - start).pick([row - start for row in left])
    assert as_lists(columns) == as_lists(before.pick(left))


_NAMES = st.sampled_from(["", "a", "aa", "ab", "b", "ba"])
_HEADERS = st.lists(st.tuples(_NAMES, st.binary(max_size=3)), max_size=5)


@given(st.lists(_HEADERS, min_size=1, max_size=6), st.data())
def test_one_header_is_found_in_all_messages_that_have_it(
    headers: list[list[tuple[str, bytes]]], data: st.DataObject
) -> None:
    frame = encode_frame(Columns([b"v"] * len(headers), headers=headers))
    gone = data.draw(st.sets(st.integers(0, len(headers) - 1), max_size=len(headers) - 1))
    view = FrameView.parse(frame)
    if gone:
        view = FrameView.parse(remove_rows(view, sorted(gone)))
    for name in ("a", "aa", "ab", "b", "ba", "aaa"):
        expected = {
            row: next(value for known, value in own if known == name)
            for row, own in enumerate(headers)
            if row not in gone and name in dict(own)
        }
        assert view.header_values(name.encode()) == expected


@given(batches(), st.booleans())
def test_a_frame_of_which_all_is_gone_keeps_places_and_producer(
    batch: Batch, keep_dedup_ids: bool
) -> None:
    view, count = FrameView.parse(batch.encode()), len(batch.columns.values)
    frame = remove_all_rows(view, keep_dedup_ids=keep_dedup_ids)
    twin, empty = decode(frame), FrameView.parse(frame)
    assert twin.gone == [True] * count
    assert twin.values == []
    assert twin.dedup_ids == (batch.columns.dedup_ids if keep_dedup_ids else None)
    assert empty.removed_rows is not None
    assert empty.removed_rows.is_all
    changed = {"frame_bytes", "attributes", "body_crc32c"}
    for name, value in view.header._asdict().items():
        assert name in changed or getattr(empty.header, name) == value


def test_very_many_gone_messages_take_a_bit_each() -> None:
    frame = removed_run(7, limits.FRAME_MESSAGES_MAX, append_time_us=5, leader_epoch=3)
    assert len(frame) == 64 + limits.FRAME_MESSAGES_MAX // 8 + 16
    view = FrameView.parse(frame)
    assert view.header[2:6] == (7, 5, 3, limits.FRAME_MESSAGES_MAX)
    assert view.removed_rows is not None
    assert view.removed_rows.run_end(0) == limits.FRAME_MESSAGES_MAX
    with pytest.raises(InvalidFrame, match="only the node removes"):
        check_frame(view)


def test_runs_of_what_is_gone_and_what_is_not_end_where_they_do() -> None:
    view = FrameView.parse(encode_frame(Columns([b"v"] * 6)))
    gone = FrameView.parse(remove_rows(view, [0, 3, 4])).removed_rows
    assert gone is not None
    assert [gone.run_end(row) for row in range(6)] == [1, 3, 3, 5, 5, 6]
    assert [gone.has(row) for row in range(6)] == [True, False, False, True, True, False]
