"""Following a partition whose log an unclean election cuts: what is new is read, once."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from goq.client._sync.log import partition_reader
from goq.client._sync.log.partition_reader import LogRange, PartitionReader
from goq.client.messages import ReadBatch
from goq.frame.view import FrameView
from goq.units import parse_time_us
from tests.support.broker.harness import frame


class Stored(NamedTuple):
    """A message, the leader epoch of its append, and the time."""

    value: bytes
    epoch: int
    time_us: int


class LogOfNode:
    """A partition's log as a node has it, each message in a frame."""

    follow = True
    limit = 100

    def __init__(self) -> None:
        self.messages: list[Stored] = []

    def put(self, epoch: int, *values: bytes) -> None:
        for value in values:
            newest_us = max((each.time_us for each in self.messages), default=0)
            self.messages.append(Stored(value, epoch, max(newest_us, epoch * 1_000_000) + 1))

    def cut(self, offset: int) -> None:
        del self.messages[offset:]

    def read(self, _http: object, _topic: str, _partition: int, span: LogRange, **_: Any) -> Any:
        start = span.from_offset
        if span.from_time is not None:
            time_us = parse_time_us(span.from_time, now_us=0)
            times = [each.time_us for each in self.messages]
            start = next((n for n, at in enumerate(times) if at >= time_us), len(times))
        assert start is not None
        found = list(enumerate(self.messages))[start:]
        end = len(self.messages)
        bounds = (max(start, end), 0, end)
        frames = [_frame(offset, message) for offset, message in found]
        return ReadBatch("t", 0, frames=frames, bounds=bounds, damaged=[])

    def report(self, damaged: object) -> None:
        raise AssertionError(damaged)


def _frame(offset: int, message: Stored) -> FrameView:
    view = frame(message.value)
    header = view.header._replace(
        base_offset=offset, leader_epoch=message.epoch, append_time_us=message.time_us
    )
    return FrameView.parse(header.pack() + bytes(view.body))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogOfNode:
    log = LogOfNode()
    monkeypatch.setattr(partition_reader, "read", log.read)
    return log


def following(log: LogOfNode, offset: int) -> PartitionReader:
    owner: Any = log
    return PartitionReader(owner, "t", 0, LogRange(offset))


def new_values(reader: PartitionReader) -> list[bytes | None]:
    http: Any = None
    piece = reader.read_on(http, 0)
    return [value for each in piece.frames for value in each.values(0, 1)]


@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize("is_seen_shorter", [True, False])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_what_has_the_offsets_of_lost_messages_is_read(
    log: LogOfNode, has_read: bool, is_seen_shorter: bool, count: int
) -> None:
    log.put(1, b"0", b"1", b"2", b"3")
    reader = following(log, 0 if has_read else 4)
    assert new_values(reader) == ([b"0", b"1", b"2", b"3"] if has_read else [])
    log.cut(2)
    if is_seen_shorter:
        assert new_values(reader) == []
        assert new_values(reader) == []
    after = [b"new %d" % number for number in range(count)]
    log.put(2, *after)
    found: list[bytes | None] = []
    for _ in range(3):
        found += new_values(reader)
    assert found == after
    log.put(2, b"later")
    assert new_values(reader) == [b"later"]


def test_a_former_leader_that_lacks_messages_has_nothing_read_twice(log: LogOfNode) -> None:
    log.put(1, b"0", b"1", b"2", b"3")
    reader = following(log, 0)
    assert len(new_values(reader)) == 4
    whole = list(log.messages)
    log.cut(2)
    assert new_values(reader) == []
    log.messages = whole
    assert new_values(reader) == []
    log.put(2, b"4")
    assert new_values(reader) == [b"4"]


def test_an_offset_that_is_not_there_yet_is_waited_for(log: LogOfNode) -> None:
    log.put(1, b"0")
    reader = following(log, 3)
    assert new_values(reader) == []
    log.put(1, b"1")
    log.put(2, b"2", b"3")
    assert new_values(reader) == [b"3"]
