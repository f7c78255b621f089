"""Messages of push streams: read as they were written, and nothing else is taken for one."""

from __future__ import annotations

import random

import msgspec
import pytest

from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.cluster.replication.push.protocol import (
    Begin,
    Push,
    PushHead,
    Renew,
    Stored,
    decode_message,
    encode_begin,
    encode_push,
    encode_renew,
    encode_stored,
)
from goq.errors import InvalidFrame

KEY = PartitionKey("t", 1, 0)
UPDATE = PartitionUpdate(KEY, 3, LogOffsets(5, 2), LogUpdate(0, 0, 3), LogUpdate(0, 0, 2))
PUSH = b"".join(
    encode_push(PushHead(7, 1, 1000, [UPDATE]), [memoryview(b"abc"), memoryview(b"de")])
)


def test_messages_are_read_as_they_were_written() -> None:
    assert decode_message(encode_begin(2**53)) == Begin(2**53)
    assert decode_message(encode_stored(2**53, 9)) == Stored(2**53, 9)
    assert decode_message(encode_stored(7, 0, [2, 2**53])) == Stored(7, 0, (2, 2**53))
    assert decode_message(encode_renew(2**53)) == Renew(2**53)
    assert decode_message(PUSH) == Push(PushHead(7, 1, 1000, [UPDATE]), memoryview(b"abcde"))


def test_an_update_may_have_frames_of_one_log_or_of_none() -> None:
    for messages, events in ((UPDATE.messages, None), (None, UPDATE.events), (None, None)):
        update = PartitionUpdate(KEY, 3, LogOffsets(5, 2), messages, events)
        frames = b"x" * sum(log.frame_bytes for log in (messages, events) if log)
        push = PushHead(7, 1, 1000, [update, UPDATE])
        sent = b"".join(encode_push(push, [memoryview(frames), memoryview(b"abcde")]))
        assert decode_message(sent) == Push(push, memoryview(frames + b"abcde"))


def test_a_report_takes_a_few_bytes() -> None:
    assert len(encode_stored(2**53, 2**40)) == 17


def test_a_push_of_a_version_that_takes_no_other_reports_says_so_by_silence() -> None:
    head = msgspec.to_builtins(PushHead(7, 1, 1000, [], takes_others=True))
    assert msgspec.convert(head[:4], PushHead) == PushHead(7, 1, 1000, [], takes_others=False)


@pytest.mark.parametrize("message", [PUSH, encode_begin(1), encode_renew(1), encode_stored(1, 1)])
def test_a_message_of_another_length_is_refused(message: bytes) -> None:
    for size in range(len(message)):
        with pytest.raises(InvalidFrame):
            decode_message(message[:size])
    with pytest.raises(InvalidFrame):
        decode_message(message + b"\0")


def test_garbage_is_refused_and_nothing_else_is_raised() -> None:
    draw = random.Random(1)
    for _ in range(5000):
        data = bytearray(PUSH)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            decode_message(bytes(data))
        except InvalidFrame:
            continue
