"""Frames of one value are told from all others without their columns, if that is quick."""

from __future__ import annotations

from goq.api.codec.publish_request import CHECKED_AT_ONCE_BYTES, only_value
from goq.broker.topic.publisher import ANY_PARTITION
from goq.frame.encoder import NO_PRODUCER, Columns, encode_frame
from goq.frame.one_value import encode_value


def body_of(frame: bytes, partition: int = ANY_PARTITION) -> bytes:
    return partition.to_bytes(4, "little") + frame


def test_the_partition_and_the_value_are_found() -> None:
    assert only_value(body_of(encode_value(b"x"))) == (None, b"x", NO_PRODUCER)
    assert only_value(body_of(encode_value(b"x"), 3)) == (3, b"x", NO_PRODUCER)


def test_all_else_is_left_to_the_decoder_of_frames() -> None:
    frame = encode_value(b"x")
    others = [b"", b"abc", body_of(b""), body_of(frame) * 2, body_of(frame[:-1])]
    others.append(body_of(encode_frame(Columns([b"x", b"y"]))))
    assert [only_value(each) for each in others] == [None] * len(others)


def test_a_body_that_takes_long_to_check_is_left_to_a_thread() -> None:
    around_bytes = len(body_of(encode_value(b"")))
    largest = body_of(encode_value(bytes((CHECKED_AT_ONCE_BYTES - around_bytes) // 8 * 8)))
    assert CHECKED_AT_ONCE_BYTES - 8 < len(largest) <= CHECKED_AT_ONCE_BYTES
    assert only_value(largest) is not None
    larger = body_of(encode_value(bytes(CHECKED_AT_ONCE_BYTES)))
    assert only_value(larger) is None
