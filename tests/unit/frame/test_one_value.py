"""The short way for a frame of one value does what the long way does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.errors import TooLarge
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, NAMED_ONLY_EPOCH
from goq.frame.one_value import encode_value, parse_value, value_of
from goq.frame.validation import check_frame
from goq.frame.view import FrameView
from tests.support.frame.cases import GOLDEN, resealed

NUMBERS = st.sampled_from([0, 1, 7, 8, 9, 15, 16, 24, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1])


@given(st.binary(max_size=100), st.integers(0, 2**63))
def test_it_writes_and_reads_the_same_frame(value: bytes, producer_id: int) -> None:
    producer = ProducerMark(producer_id, 1, 5)
    frame = encode_value(value, producer)
    assert frame == encode_frame(Columns([value]), producer=producer)
    assert value_of(FrameView.parse(frame)) == value


@given(st.binary(max_size=40), st.integers(0, 4), NUMBERS)
def test_a_frame_with_sections_that_contradict_each_other_has_no_value(
    value: bytes, field: int, number: int
) -> None:
    frame = bytearray(encode_value(value))
    position = HEADER_BYTES + 4 * field
    if position + 4 <= len(frame):
        struct.pack_into("<I", frame, position, number)
    view = FrameView.parse(resealed(frame))
    found = value_of(view)
    if found is not None:
        assert [found] == view.values(0, 1)


@pytest.mark.parametrize("name", GOLDEN)
def test_only_a_frame_of_one_value_and_nothing_else_has_one(name: str) -> None:
    frame = GOLDEN[name].encode()
    value = value_of(FrameView.parse(frame))
    assert value is None or frame == encode_value(value)


def test_a_value_over_its_limit_is_refused() -> None:
    check_frame(FrameView.parse(encode_value(bytes(limits.VALUE_BYTES_MAX))))
    with pytest.raises(TooLarge, match="value"):
        check_frame(FrameView.parse(encode_value(bytes(limits.VALUE_BYTES_MAX + 1))))


@given(st.binary(max_size=60), st.sampled_from([0, 3, 2**64 - 1]), st.integers(0, 8))
def test_a_frame_with_a_name_alone_is_parsed(value: bytes, producer_id: int, before: int) -> None:
    producer = ProducerMark(producer_id, NAMED_ONLY_EPOCH, 0)
    body = bytes(before) + encode_value(value, producer)
    assert parse_value(body, before) == (value, producer)


def test_no_damaged_frame_is_parsed() -> None:
    frame = encode_value(b"two teapots", ProducerMark(7, NAMED_ONLY_EPOCH, 0))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_value(bytes(damaged), 0) is None
    for size in range(len(frame)):
        assert parse_value(frame[:size], 0) is None
    assert parse_value(frame + bytes(8), 0) is None
    assert parse_value(frame + frame, 0) is None


def test_a_frame_that_needs_more_than_its_value_is_not_parsed() -> None:
    assert parse_value(encode_value(b"x", ProducerMark(7, 1, 0)), 0) is None  # has a sequence
    assert parse_value(encode_value(bytes(limits.VALUE_BYTES_MAX)), 0) is not None
    assert parse_value(encode_value(bytes(limits.VALUE_BYTES_MAX + 1)), 0) is None


@pytest.mark.parametrize("name", GOLDEN)
def test_only_a_frame_of_one_value_is_parsed(name: str) -> None:
    frame = GOLDEN[name].encode()
    found = parse_value(frame, 0)
    assert found is None or encode_value(*found) == frame
