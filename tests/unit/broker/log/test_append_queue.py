"""The queue of a log: its order, its size, and which messages share a frame."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from goq.broker.log.append_queue import AppendQueue, Decision, ExclusiveWork, QueuedFrame
from goq.broker.log.pending_appends import Appended
from goq.broker.log.shared_frame import SharedBy, frame_of, message_bytes, shared_by
from goq.clock import ManualClock
from goq.errors import StorageFailed
from goq.frame.encoder import NO_PRODUCER
from goq.model import Acks, Message

PLAIN = shared_by(NO_PRODUCER, Acks.QUORUM, 1)
URGENT = shared_by(NO_PRODUCER, Acks.QUORUM, 0)


class _Waiter:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.error is not None

    def set_result(self, _found: Appended) -> None:
        raise AssertionError("nothing is written here")

    def set_exception(self, error: Exception) -> None:
        self.error = error

    def exception(self) -> None: ...


@pytest.fixture
def queue() -> AppendQueue:
    log, pending, clock = Mock(), Mock(), ManualClock()
    return AppendQueue(log, pending, None, clock, epoch=1)


def _add_frame(queue: AppendQueue, *values: bytes) -> _Waiter:
    view = frame_of([Message(value) for value in values], NO_PRODUCER, 1)
    waiter = _Waiter()
    queue.add_frame(view, waiter, begins_segment=False, acks=Acks.QUORUM)
    return waiter


def _add_message(queue: AppendQueue, value: bytes = b"m", *, by: SharedBy = PLAIN) -> _Waiter:
    message, waiter = Message(value), _Waiter()
    queue.add_message(message, message_bytes(message), by, waiter)
    return waiter


def _pop(queue: AppendQueue) -> list[bytes | None]:
    head = queue.head
    assert isinstance(head, QueuedFrame)
    values = head.view.values(0, head.view.header.message_count)
    queue.pop()
    return values


def test_messages_that_wait_together_share_a_frame(queue: AppendQueue) -> None:
    for value in (b"a", b"b", b"c"):
        _add_message(queue, value)
    assert _pop(queue) == [b"a", b"b", b"c"]
    assert (queue.head, queue.size_bytes) == (None, 0)


def test_a_message_does_not_pass_a_frame_that_came_before_it(queue: AppendQueue) -> None:
    _add_message(queue, b"first")
    _add_frame(queue, b"second", b"third")
    _add_message(queue, b"fourth")
    assert [_pop(queue) for _ in range(3)] == [[b"first"], [b"second", b"third"], [b"fourth"]]
    assert queue.size_bytes == 0


def test_messages_that_differ_in_what_a_frame_has_once_do_not_share_one(
    queue: AppendQueue,
) -> None:
    _add_message(queue, b"plain")
    _add_message(queue, b"urgent", by=URGENT)
    _add_message(queue, b"plain, too")
    assert [_pop(queue) for _ in range(2)] == [[b"plain", b"plain, too"], [b"urgent"]]


def test_a_decision_is_kept_for_the_frame_it_is_about_alone(queue: AppendQueue) -> None:
    _add_frame(queue, b"a")
    _add_frame(queue, b"b")
    first, decision = queue.head, Decision(None, 7)
    assert isinstance(first, QueuedFrame)
    queue.note_decision(first, decision)
    assert queue.head == first._replace(decision=decision)
    _pop(queue)
    queue.note_decision(first, decision)
    second = queue.head
    assert isinstance(second, QueuedFrame)
    assert second.decision is None


def test_frames_are_refused_and_work_stays(queue: AppendQueue) -> None:
    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = [_add_frame(queue, b"a"), _add_message(queue)]
        queue.add_exclusive(print, done)
        waiters.append(_add_message(queue))
        error = StorageFailed("the disk is gone")
        queue.refuse_frames(error)
        assert [waiter.error for waiter in waiters] == [error] * 3
        assert queue.size_bytes == 0
        assert queue.head == ExclusiveWork(print, done)
        queue.pop()
        assert (queue.head, queue.size_bytes) == (None, 0)

    asyncio.run(main())


def test_who_waits_is_taken_in_order(queue: AppendQueue) -> None:
    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first = _add_frame(queue, b"a")
        queue.add_exclusive(print, done)
        message = _add_message(queue)
        waiters = queue.take_waiters()
        assert waiters[:2] == [first, done]
        waiters[2].set_exception(StorageFailed("full"))
        assert isinstance(message.error, StorageFailed)
        assert (queue.head, queue.size_bytes) == (None, 0)
        _add_message(queue, b"later")
        assert _pop(queue) == [b"later"]

    asyncio.run(main())
