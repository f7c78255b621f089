"""The loop of a worker, over a client that yields what the test says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from goq.client.leases.message_buffer import NO_LEASE, LeaseTime
from goq.model import MessageId
from goq.worker.function import WorkerFunction, WorkerOptions
from goq.worker.loop import WorkerLoop
from tests.support.eventually import eventually

FOR_EVER = LeaseTime(inf, 0.0)


@dataclass
class FakeMessage:
    offset: int
    key: bytes | None = None
    headers: tuple[()] = ()
    group: str = "g"
    topic: str = "orders"
    attempt: int = 1
    settled: bool = False
    lease_time: LeaseTime = FOR_EVER

    @property
    def id(self) -> MessageId:
        return MessageId(self.topic, 0, self.offset)

    def ack(self) -> None:
        self.settled = True


class FakeClient:
    """Yields messages to one loop, which it tells to stop before the message ``stops_at``."""

    def __init__(self, messages: Sequence[FakeMessage], stops_at: int | None = None) -> None:
        self.messages = messages
        self.stops_at = stops_at
        self.is_stopping = False
        self.yielded = 0
        self.unsettled_max = 0
        self.released: list[Any] = []

    def consume(
        self,
        *_: object,
        before_wait: Callable[[], None],
        before_end: Callable[[], None],
        **_more: object,
    ) -> Generator[FakeMessage]:
        try:
            for number, message in enumerate(self.messages):
                self.is_stopping = number == self.stops_at
                self.yielded += 1
                unsettled = sum(not each.settled for each in self.messages[: self.yielded])
                self.unsettled_max = max(self.unsettled_max, unsettled)
                yield message
            eventually(lambda: all(message.settled for message in self.messages))
            self.is_stopping = True
            before_wait()
        finally:
            before_end()

    def release_many(self, messages: list[Any]) -> None:
        self.released += messages


def run(client: Any, function: Callable[..., object], concurrency: int) -> None:
    options = WorkerOptions(["orders"], "g", concurrency, None, None, ())
    on_exit: Any = None
    WorkerLoop(client, WorkerFunction(function, options), lambda: client.is_stopping, on_exit).run()


def test_a_message_that_comes_as_the_app_stops_is_returned() -> None:
    client = FakeClient([FakeMessage(1)], stops_at=0)
    calls: list[object] = []
    run(client, calls.append, 1)
    assert client.released == client.messages
    assert calls == []


def test_a_group_that_does_not_order_keys_fills_the_queue_of_a_busy_one_up_to_a_bound() -> None:
    client = FakeClient([FakeMessage(number, b"k") for number in range(30)])
    calls: list[object] = []

    def work(message: Any) -> None:
        eventually(lambda: client.yielded >= 10)
        calls.append(message)

    run(client, work, concurrency=2)
    assert calls == client.messages
    assert client.unsettled_max == 1 + 2 * 2 * 2 + 1, "one runs, the queue, one more"


def test_a_message_that_lost_its_lease_while_it_waited_is_left_to_others() -> None:
    first, second = FakeMessage(1, b"k"), FakeMessage(2, b"k")
    client = FakeClient([first, second])
    calls: list[object] = []

    def work(message: Any) -> None:
        eventually(lambda: client.yielded == 2)
        second.lease_time = NO_LEASE
        calls.append(message)

    run(client, work, concurrency=2)
    assert calls == [first]
