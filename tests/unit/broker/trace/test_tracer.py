"""Which messages a trace follows, how long one waits for more, and what is told of gone ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.outbox.dead_letter_headers import redriven_headers
from goq.broker.partition_context import PartitionId
from goq.broker.trace import tracer as tracer_module
from goq.broker.trace.trace import MessageHistory
from goq.broker.trace.tracer import Tracer, _check_known, _may_be_merged, _origins_of
from goq.delivery.events.event import SnapshotStarted, Trimmed
from goq.delivery.events.frame_codec import StoredEvent
from goq.errors import MessageNotFound, NotLeader
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Message, MessageId
from tests.support.cluster.replication.loop import run_simulated


def at(offset: int, topic: str = "t", partition: int = 0) -> MessageId:
    return MessageId(topic, partition, offset)


class Case:
    """Messages and the copies of each; a trace of them is what was asked to be built."""

    def __init__(self, copies: dict[int, list[int]], *, copies_max: int = 100) -> None:
        self.copies = copies
        self.led_elsewhere, self.gone, self.read = set[int](), set[int](), list[int]()
        self.topics: dict[int, str] = {}
        made: Any = Tracer.__new__(Tracer)
        self.tracer = made
        made._copies_max = copies_max
        made._history_of, made._copies_of = self._history_of, self._copies_of

    def id_of(self, offset: int) -> MessageId:
        return at(offset, self.topics.get(offset, "t"))

    async def _history_of(self, message_id: MessageId) -> Any:
        self.read.append(message_id.offset)
        if message_id.offset in self.led_elsewhere:
            raise NotLeader("another node leads it")
        if message_id.offset in self.gone:
            raise MessageNotFound("it is gone")
        return SimpleNamespace(
            id=message_id, message=None, is_copy=False, timeline=SimpleNamespace(steps=[])
        )

    async def _copies_of(self, history: Any, _may_read: Any, _elsewhere: Any) -> dict[int, Any]:
        found = self.copies.get(history.id.offset, [])
        return {number: self.id_of(offset) for number, offset in enumerate(found)}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the last trace was built of."""
    found: dict[str, Any] = {}

    def build(_asked: Any, ordered: Any, links: Any, _may_read: Any, **how: Any) -> str:
        found.update(how, offsets=[each.id.offset for each in ordered])
        return "the trace"

    monkeypatch.setattr(tracer_module, "build_trace", build)
    monkeypatch.setattr(tracer_module, "order_by_origin", lambda chosen, _links: chosen)
    return found


def test_copies_of_copies_are_followed_each_once(built: dict[str, Any]) -> None:
    case = Case({1: [2, 3], 2: [4], 3: [4, 1]})
    assert asyncio.run(case.tracer.trace(at(1))) == "the trace"
    assert case.read == [1, 2, 3, 4]
    assert built == {"offsets": [1, 2, 3, 4], "is_cut": False, "elsewhere": []}


@pytest.mark.parametrize(
    ("copies_max", "offsets", "is_cut"),
    [(2, [1, 2], True), (3, [1, 2, 3], True), (4, [1, 2, 3, 4], False)],
)
def test_a_trace_follows_so_many_messages_and_says_when_there_are_more(
    built: dict[str, Any], copies_max: int, offsets: list[int], is_cut: bool
) -> None:
    case = Case({1: [2, 3, 4]}, copies_max=copies_max)
    asyncio.run(case.tracer.trace(at(1)))
    assert (built["offsets"], built["is_cut"]) == (offsets, is_cut)


def test_what_is_gone_is_left_out_and_what_is_elsewhere_is_named(built: dict[str, Any]) -> None:
    case = Case({1: [2, 3, 4], 4: [5]})
    case.gone, case.led_elsewhere = {2}, {3, 5}
    case.topics = {3: "u", 5: "u"}
    asyncio.run(case.tracer.trace(at(1)))
    assert built["offsets"] == [1, 4]
    assert built["elsewhere"] == [PartitionId("u", 0)]
    case.gone = {1}
    with pytest.raises(MessageNotFound):
        asyncio.run(case.tracer.trace(at(1)))


class Followed:
    """A message whose trace grows at some times of the loop; events wake those that watch it."""

    def __init__(self, **steps_at_s: Any) -> None:
        self.traced_s: list[float] = []
        self.watched: list[int] = []
        self.grows_s: list[float] = []
        self.copies_after_s: dict[int, float] = {}
        made: Any = Tracer.__new__(Tracer)
        self.tracer = made
        made.trace = self._trace
        made._partition = lambda message_id: SimpleNamespace(live_event_index=self)

    @contextmanager
    def watch(self, offset: int, news: asyncio.Event) -> Iterator[None]:
        self.watched.append(offset)
        loop = asyncio.get_running_loop()
        timers = [loop.call_at(at_s, news.set) for at_s in self.grows_s if at_s > loop.time()]
        yield
        for timer in timers:
            timer.cancel()

    async def _trace(self, _message_id: MessageId, _may_read: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        self.traced_s.append(now_s)
        steps = [at_s for at_s in self.grows_s if at_s <= now_s]
        copies = [
            SimpleNamespace(id=at(offset))
            for offset, at_s in self.copies_after_s.items()
            if at_s <= now_s
        ]
        return SimpleNamespace(steps=steps, copies=[SimpleNamespace(id=at(1)), *copies])

    def follow(self, *, seen: int, wait_ms: int) -> list[float]:
        async def main() -> list[float]:
            trace = await self.tracer.follow(at(1), seen=seen, wait_ms=wait_ms)
            steps: list[float] = trace.steps
            return steps

        return run_simulated(main())


def test_a_trace_is_told_at_once_if_it_has_more_and_else_when_it_does_or_the_time_is_over() -> None:
    for seen, wait_ms, steps, traced_s in (
        (0, 10_000, [0, 0], [0]),
        (1, 10_000, [0, 0], [0]),
        (2, 10_000, [0, 0, 3], [0, 3]),
        (3, 10_000, [0, 0, 3, 5], [0, 3, 5]),
        (2, 2_000, [0, 0], [0, 2]),
        (2, 0, [0, 0], [0]),
    ):
        case = Followed()
        case.grows_s = [0, 0, 3, 5]
        assert case.follow(seen=seen, wait_ms=wait_ms) == steps
        assert case.traced_s == traced_s
        assert case.watched == [1] * (wait_ms > 0)


def test_new_copies_are_watched_before_the_trace_is_read_again() -> None:
    case = Followed()
    case.grows_s, case.copies_after_s = [0, 0, 3, 5], {2: 0, 3: 3}
    assert case.follow(seen=3, wait_ms=10_000) == [0, 0, 3, 5]
    assert case.watched == [1, 2, 3]
    assert case.traced_s == [0, 0, 3, 3, 5]


@pytest.mark.parametrize(
    ("first", "has_steps", "text"),
    [
        (None, True, ""),
        (None, False, "with its history; t:0 begins at offset 50"),
        (StoredEvent(0, 1, 0, SnapshotStarted(40, 0, []), None), True, "before 1970-01-01"),
        (StoredEvent(0, 1, 0, SnapshotStarted(7, 0, []), None), True, ""),
        (StoredEvent(0, 1, 0, SnapshotStarted(8, 0, []), None), True, "before 1970-01-01"),
        (StoredEvent(0, 1, 0, Trimmed(40), None), True, ""),
    ],
)
def test_a_message_is_gone_with_its_history_where_no_event_of_its_time_is_left(
    monkeypatch: pytest.MonkeyPatch, first: StoredEvent | None, has_steps: bool, text: str
) -> None:
    monkeypatch.setattr(tracer_module, "first_event", lambda _logs: first)
    partition: Any = SimpleNamespace(start_offset=50, identity=PartitionId("t", 0))
    timeline: Any = SimpleNamespace(steps=["a step"] * has_steps)
    if not text:
        _check_known(partition, [], at(7), timeline)
        return
    with pytest.raises(MessageNotFound, match=text):
        _check_known(partition, [], at(7), timeline)


def test_only_frames_of_several_gone_messages_without_a_producer_may_have_been_merged() -> None:
    def view_of(count: int, removed: list[int], producer_id: int = 0) -> FrameView:
        columns, mark = Columns([b"v"] * count), ProducerMark(producer_id, 0, 0)
        return FrameView.parse(encode_frame(columns, producer=mark, removed=removed))

    assert _may_be_merged(view_of(2, [0, 1]))
    assert not _may_be_merged(view_of(2, [0]))
    assert not _may_be_merged(view_of(1, [0]))
    assert not _may_be_merged(view_of(2, [0, 1], producer_id=7))


def test_only_a_copy_that_an_outbox_made_says_where_it_comes_from() -> None:
    headers = redriven_headers((), "t.dlq:0:5", "t")

    def history(message: Message | None, *, is_copy: bool) -> MessageHistory:
        unused: Any = None
        return MessageHistory(at(1), "live", message, 0, None, is_copy, None, unused)

    found = _origins_of(history(Message(b"v", headers=headers), is_copy=True))
    assert found == [MessageId("t.dlq", 0, 5)]
    assert _origins_of(history(Message(b"v", headers=headers), is_copy=False)) == []
    assert _origins_of(history(None, is_copy=True)) == []
