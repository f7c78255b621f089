"""The short way for a frame of one value does what the long way does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.errors import InvalidFrame, TooLarge, UnsupportedFormat
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, NAMED_ONLY_EPOCH
from goq.frame.one_value import encode_batch, encode_value, value_of
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


def test_no_damaged_frame_passes_the_check() -> None:
    frame = encode_value(b"two teapots", ProducerMark(7, NAMED_ONLY_EPOCH, 0))
    check_frame(FrameView.parse(frame))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((InvalidFrame, UnsupportedFormat)):
            check_frame(FrameView.parse(bytes(damaged)))
    for size in range(len(frame)):
        with pytest.raises(InvalidFrame):
            FrameView.parse(frame[:size])


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_batch_is_encoded_as_any_other(name: str, compress: bool) -> None:
    columns, producer = GOLDEN[name].columns, ProducerMark(7, 1, 5)
    usual = encode_frame(columns, producer=producer, compress=compress)
    assert encode_batch(columns, producer, compress=compress) == usual


@pytest.mark.parametrize("value", [None, b"", b"x", b"\0" * 4096])
def test_a_batch_of_one_value_is_encoded_as_any_other(value: bytes | None) -> None:
    columns, producer = Columns([value]), ProducerMark(7, 1, 5)
    usual = encode_frame(columns, producer=producer)
    assert encode_batch(columns, producer, compress=False) == usual
