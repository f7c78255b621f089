from __future__ import annotations

import pytest

from goq.client.leases.message_buffer import MessageBuffer
from goq.client.leases.prefetch import PrefetchWindow
from goq.client.messages import FailedReceipt
from goq.model import Receipt


class Message:
    topic, partition, group = "t", 0, "g"

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.settled = False

    def claim(self) -> Receipt:
        return Receipt(self.partition, 7, self.offset, self.offset + 1)


def buffer_of(count: int, *, keeps_taken: bool = False) -> MessageBuffer[Message]:
    buffer = MessageBuffer[Message](keeps_taken=keeps_taken)
    buffer.add([Message(offset) for offset in range(count)], 30.0, 100.0)
    return buffer


@pytest.mark.parametrize(("length_s", "fresh_s"), [(30.0, 1.0), (2.0, 0.1)])
def test_a_lease_is_fresh_for_a_second_or_a_twentieth_of_it(
    length_s: float, fresh_s: float
) -> None:
    buffer = MessageBuffer[Message](keeps_taken=False)
    buffer.add([Message(0)], length_s, 100.0)
    entry = buffer.take()
    assert entry is not None
    assert entry.is_fresh(100.0 + fresh_s * 0.99)
    assert not entry.is_fresh(100.0 + fresh_s * 1.01)
    assert entry.is_alive(100.0 + length_s * 0.99)
    assert not entry.is_alive(100.0 + length_s)


def test_leases_are_due_after_a_third_until_they_are_extended() -> None:
    buffer = buffer_of(3)
    assert buffer.due(109.9) == []
    due = buffer.due(110.1)
    assert [entry.message.offset for entry in due] == [0, 1, 2]
    failed = [FailedReceipt("0:7:1", "lease_lost"), FailedReceipt("0:7:2", "partition_offline")]
    buffer.extended(due, 30.0, 110.0, failed)
    assert [entry.message.offset for entry in buffer.due(119.9)] == [2]
    assert [message.offset for message in buffer.drain()] == [0, 2]


def test_taken_messages_are_kept_only_if_asked_and_until_they_are_settled() -> None:
    for keeps_taken in (False, True):
        buffer = buffer_of(2, keeps_taken=keeps_taken)
        entry = buffer.take()
        assert entry is not None
        assert len(buffer.due(120.0)) == 1 + keeps_taken
        entry.message.settled = True
        assert len(buffer.due(120.0)) == 1


def test_a_buffer_that_is_left_alone_for_a_lease_is_not_extended() -> None:
    buffer = buffer_of(2)
    buffer.take()
    buffer.lent_s = lent_s = 200.0
    assert buffer.left_alone_since_s(lent_s + 29.9) is None
    assert buffer.left_alone_since_s(lent_s + 30.1) == lent_s
    assert buffer.due(lent_s + 30.1) == []
    buffer.lent_s = None
    assert buffer.left_alone_since_s(lent_s + 30.1) is None
    assert len(buffer.due(lent_s + 30.1)) == 1


def test_the_window_holds_what_a_caller_handles_in_a_second() -> None:
    window = PrefetchWindow(100)
    assert window.size == 16
    window.note(0.0)
    assert window.size == 100
    for _ in range(50):
        window.note(0.1)
    assert window.size in (9, 10)
    for _ in range(50):
        window.note(60.0)
    assert (window.size, window.share(3)) == (1, 1)
    for _ in range(200):
        window.note(0.001)
    assert window.size == 100
    assert PrefetchWindow(4).size == 4


def test_a_window_grows_in_large_steps() -> None:
    window = PrefetchWindow(100)
    for _ in range(50):
        window.note(1 / 30.5)
    assert window.size == 30
    assert not window.is_larger(16, 1)
    assert window.is_larger(15, 1)
    assert not window.is_larger(15, 2)
