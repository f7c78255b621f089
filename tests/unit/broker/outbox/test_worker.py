"""A worker of an outbox runs while there are entries, and never again once it is stopped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.outbox import worker as worker_module
from goq.broker.outbox.worker import OutboxWorker, RetryBackoff
from goq.delivery.events.event import CopyStored, token_of
from goq.delivery.outbox import OutboxEntry
from goq.errors import TooManyRequests
from tests.support.eventually import until


def test_a_worker_that_was_stopped_is_not_woken_again() -> None:
    async def run() -> None:
        begun: list[asyncio.Future[None]] = []

        def start(work: Any) -> asyncio.Future[None]:
            work.close()
            begun.append(asyncio.get_running_loop().create_future())
            return begun[-1]

        partition: Any = SimpleNamespace(
            identity=None, message_reader=None, outbox_entries=["an entry"]
        )
        context: Any = SimpleNamespace(tasks=SimpleNamespace(start=start))
        nowhere: Any = None
        worker = OutboxWorker(partition, nowhere, context, 0)
        for _ in range(2):
            worker.wake()
            assert len(begun) == 1
        begun[0].set_result(None)
        partition.outbox_entries = []
        worker.wake()
        assert len(begun) == 1
        partition.outbox_entries = ["another"]
        worker.wake()
        assert len(begun) == 2
        await worker.stop()
        assert begun[1].cancelled()
        worker.wake()
        assert len(begun) == 2

    asyncio.run(run())


PRODUCER_ID, EPOCH, THIS_START = 7, 5, 9


class Target:
    """The partition that copies go to; it stores what is published, or is full."""

    def __init__(self) -> None:
        self.reached: tuple[int, int] | None = None
        self.published: list[tuple[int, int]] = []
        self.refusals = 0

    async def producers(self, producer_id: int) -> Target:
        assert producer_id == PRODUCER_ID
        return self

    def progress(self, _producer_id: int) -> tuple[int, int] | None:
        return self.reached

    def offset_of(self, _producer_id: int, sequence: int) -> int | None:
        return 100 + sequence

    def check_publish(self, _frame_bytes: int) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TooManyRequests("its queue is full")

    async def publish(self, view: Any) -> None:
        mark, count = view.made
        self.published.append((mark.epoch, mark.first_sequence))
        self.reached = mark.epoch, mark.first_sequence + count


class Source:
    """The partition of an outbox, and the context of its worker."""

    identity = "t/0"
    message_reader = None
    outbox_producer_id = PRODUCER_ID

    def __init__(self, *firsts: int, epoch: int = EPOCH) -> None:
        self.outbox_entries = [_entry(first, epoch) for first in firsts]
        self.stored: list[tuple[int, int]] = []
        self.epoch = THIS_START
        self.executor = None
        self.tasks = SimpleNamespace(start=asyncio.ensure_future)

    async def recorded(self) -> None:
        return

    def record(self, events: list[CopyStored]) -> None:
        done = {event.entry for event in events}
        self.stored += [(event.entry, event.offset) for event in events]
        self.outbox_entries = [each for each in self.outbox_entries if each.number not in done]


def _entry(first: int, epoch: int) -> OutboxEntry:
    """Return an entry of two messages."""
    event: Any = SimpleNamespace(topic="dead", partition=0, spans=[(first, first + 2, 1)])
    return OutboxEntry(token_of(epoch, first), first, event, [])


def work(source: Source, target: Target, retry: RetryBackoff) -> None:
    """Let a worker empty the outbox."""

    async def lookup(topic: str, number: int) -> Any:
        assert (topic, number) == ("dead", 0)
        return target

    def frame(batch: list[OutboxEntry], mark: Any) -> Any:
        header = SimpleNamespace(frame_bytes=1)
        return SimpleNamespace(header=header, made=(mark, 2 * len(batch)))

    async def run() -> None:
        partition: Any = source
        context: Any = source
        worker = OutboxWorker(partition, lookup, context, 0, retry)
        worker._copier = SimpleNamespace(frame=frame)
        worker.wake()
        await until(lambda: not source.outbox_entries, seconds=20)
        task = worker._task
        assert task is not None
        await task

    asyncio.run(run())


NEVER = RetryBackoff(min_s=3_600.0, max_s=3_600.0)
AT_ONCE = RetryBackoff(min_s=0.0, max_s=0.0)


def test_copies_are_published_together_once_and_the_worker_ends_without_a_pause() -> None:
    source, target = Source(10, 12, 14), Target()
    work(source, target, NEVER)
    assert target.published == [(EPOCH, 10)]
    assert source.stored == [(token_of(EPOCH, n), 100 + n) for n in (10, 12, 14)]


def test_what_the_target_has_is_recorded_and_the_rest_goes_on_behind_it() -> None:
    source, target = Source(10, 12, 14), Target()
    target.reached = EPOCH, 13
    work(source, target, NEVER)
    assert target.published == [(EPOCH, 13)]
    assert [entry for entry, _ in source.stored] == [token_of(EPOCH, n) for n in (10, 12, 14)]


@pytest.mark.parametrize(
    ("reached", "published"),
    [
        ((EPOCH - 1, 30), (EPOCH, 10)),
        ((EPOCH, 9), (THIS_START, 10)),
        ((THIS_START, 9), (THIS_START + 1, 10)),
        ((EPOCH, 10), (EPOCH, 10)),
    ],
    ids=["earlier epoch", "copies were lost", "lost again", "exactly there"],
)
def test_copies_continue_where_the_target_is_and_in_a_new_epoch_behind_lost_ones(
    reached: tuple[int, int], published: tuple[int, int]
) -> None:
    source, target = Source(10), Target()
    target.reached = reached
    work(source, target, NEVER)
    assert target.published == [published]


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []

    async def pause(seconds: float) -> None:
        pauses_s.append(seconds)

    async def run() -> None:
        source: Any = Source(10)
        nowhere: Any = None
        worker = OutboxWorker(source, nowhere, source, 0, RetryBackoff(0.5, 3.0))
        outcomes = [False] * 5 + [True] + [False] * 2 + [True]

        async def publish_all() -> bool:
            if len(outcomes) == 1:
                source.outbox_entries = []
            return outcomes.pop(0)

        worker._publish_all = publish_all
        monkeypatch.setattr(worker_module.asyncio, "sleep", pause)
        await worker._run()

    asyncio.run(run())
    assert pauses_s == [0.5, 1, 2, 3, 3, 0.5, 1]


def test_a_target_that_fails_holds_up_no_other_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        source: Any = Source(10)
        nowhere: Any = None
        worker, published = OutboxWorker(source, nowhere, source, 0), list[str]()
        entries = [
            OutboxEntry(number, number, SimpleNamespace(topic=topic, partition=0), [])
            for number, topic in enumerate(("full", "odd", "good", "full", "good"))
        ]
        source.outbox_entries = entries

        async def publish(topic: str, _number: int, of_topic: list[OutboxEntry]) -> None:
            published.append(f"{topic}: {[entry.number for entry in of_topic]}")
            if topic == "full":
                raise TooManyRequests("its queue is full")
            if topic == "odd":
                raise KeyError("a bug")

        worker._publish_copies = publish
        assert await worker._publish_all() is False
        assert published == ["full: [0, 3]", "odd: [1]", "good: [2, 4]"]
        source.outbox_entries = entries[2:3]
        assert await worker._publish_all() is True

        async def lost() -> None:
            raise OSError("the disk failed")

        source.recorded = lost
        published.clear()
        assert await worker._publish_all() is False
        assert published == []

    asyncio.run(run())
    assert [message.split(" waits for ")[1].split(":")[0] for message in caplog.messages] == [
        "partition 0 of full",
        "partition 0 of odd",
    ]


def test_a_target_without_room_is_tried_again_and_gets_nothing_meanwhile() -> None:
    source, target = Source(10), Target()
    target.refusals = 2
    work(source, target, AT_ONCE)
    assert target.published == [(EPOCH, 10)]
    assert target.refusals == 0
