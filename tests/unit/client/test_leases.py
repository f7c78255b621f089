from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from goq.client.leases.message_buffer import NO_LEASE, LeaseTime, MessageBuffer
from goq.client.leases.prefetch import PrefetchWindow
from goq.client.messages import FailedReceipt
from goq.model import NATIVE_TOPIC_IDS, Receipt, fence_of

FENCE = fence_of(NATIVE_TOPIC_IDS + 5, 7)
LEASE_TIME = LeaseTime(30.0, 100.0)


class Message:
    topic, partition, group = "t", 0, "g"

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.settled = False
        self.lease_time = LEASE_TIME

    def claim(self) -> Receipt:
        return Receipt(self.partition, FENCE, self.offset, self.offset + 1)


def buffer_of(count: int, *, keeps_taken: bool = False) -> MessageBuffer[Message]:
    buffer = MessageBuffer[Message](keeps_taken=keeps_taken)
    buffer.add([Message(offset) for offset in range(count)], LEASE_TIME)
    return buffer


@pytest.mark.parametrize(("length_s", "fresh_s"), [(30.0, 1.0), (2.0, 0.1)])
def test_a_lease_is_fresh_for_a_second_or_a_twentieth_of_it(
    length_s: float, fresh_s: float
) -> None:
    lease_time = LeaseTime(length_s, 100.0)
    assert lease_time.fresh_until_s == pytest.approx(100.0 + fresh_s)
    assert lease_time.is_alive(100.0 + length_s * 0.99)
    assert not lease_time.is_alive(100.0 + length_s)


def test_leases_are_due_after_a_third_until_they_are_extended() -> None:
    buffer = buffer_of(3)
    assert buffer.due(109.9) == []
    due = buffer.due(110.1)
    assert [message.offset for message in due] == [0, 1, 2]
    failed = [
        FailedReceipt(f"0:{FENCE}:1", "lease_lost"),
        FailedReceipt(f"0:{FENCE}:2", "partition_offline"),
    ]
    buffer.extended(due, LeaseTime(30.0, 110.0), failed)
    assert [message.offset for message in buffer.due(119.9)] == [2]
    assert due[1].lease_time is NO_LEASE
    assert [message.offset for message in buffer.drain()] == [0, 2]


def test_lost_leases_are_logged_but_not_those_of_settled_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    buffer = buffer_of(3, keeps_taken=True)
    settled = buffer.take()
    assert settled is not None
    settled.settled = True
    due = [settled, *buffer.due(120.0)]
    failed = [FailedReceipt(f"0:{FENCE}:{offset}", "lease_lost") for offset in (0, 2)]
    with caplog.at_level("INFO", "goq.client"):
        buffer.extended(due, LeaseTime(30.0, 120.0), failed)
    assert caplog.messages == ["1 leases of t were lost, the first of 0:2: others get the messages"]


def test_taken_messages_are_kept_only_if_asked_and_until_they_are_settled() -> None:
    for keeps_taken in (False, True):
        buffer = buffer_of(2, keeps_taken=keeps_taken)
        message = buffer.take()
        assert message is not None
        assert len(buffer.due(120.0)) == 1 + keeps_taken
        message.settled = True
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


def test_a_caller_that_settles_a_batch_with_its_last_message_is_not_slow() -> None:
    window = PrefetchWindow(1000)
    for _ in range(20):
        for _ in range(999):
            window.note(0.000_01)
        window.note(0.007)
        assert window.size > 900
    for _ in range(10):
        window.note(0.6)
    assert window.size == 1


def test_a_quick_caller_has_nothing_to_note() -> None:
    window = PrefetchWindow(10)
    assert window.unnoted_s < 0
    for _ in range(10):
        window.note(0.001)
    assert window.unnoted_s == 0.1
    window.note(0.2)
    assert window.unnoted_s < 0


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads that run by turns of a microsecond."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def test_messages_are_taken_once_and_in_order_while_others_move_them(
    often_switched: None,
) -> None:
    count = 200_000
    buffer = MessageBuffer[Message](keeps_taken=False)
    ended = threading.Event()

    def move() -> None:
        while not ended.is_set():
            buffer.drain(lambda topic, _: topic == "other")
            lost = [FailedReceipt("9:7:1", "lease_lost")]
            buffer.extended(buffer.due(200.0), LEASE_TIME, lost)

    mover = threading.Thread(target=move)
    mover.start()
    seen = []
    try:
        for start in range(0, count, 1000):
            buffer.add([Message(offset) for offset in range(start, start + 1000)], LEASE_TIME)
            while (message := buffer.take()) is not None:
                seen.append(message.offset)
    finally:
        ended.set()
        mover.join()
    assert seen == list(range(count))


def test_a_window_grows_in_large_steps() -> None:
    window = PrefetchWindow(100)
    for _ in range(50):
        window.note(1 / 31.5)
    assert window.size == 30
    assert not window.is_larger(16, 1)
    assert window.is_larger(15, 1)
    assert not window.is_larger(15, 2)
