"""The broker of a node: what its close leaves, and what it does with a sealed segment."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.broker import Broker
from goq.broker.partition_context import PartitionId
from goq.clock import ManualClock
from goq.errors import GoqError, PartitionOffline, ShuttingDown, TopicNotFound
from goq.storage.catalog.rows import SegmentRow
from goq.storage.log.segment import Segment
from tests.support.broker.harness import broker_on, leased, options, publish, run
from tests.support.eventually import until


def test_a_broker_that_was_closed_leaves_no_thread_and_takes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        before = set(threading.enumerate())
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"v")
            assert await broker.background.run(lambda: 1) == 1
            assert await broker.archive.in_thread(lambda: 2) == 2
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            assert leased(await waiting) == [(0, 1, b"v")]
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            await until(lambda: topic.receiver.waiters.count("h"))
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(GoqError):
            await publish(topic, b"late")
        names = {each.name for each in set(threading.enumerate()) - before}
        assert not [name for name in names if name.startswith("goq")]

    run(test())


IDENTITY = PartitionId("t", 3, 7)


class Case:
    """A node with the topic ``t`` of the id 7, whose parts note what they are told."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        made: Any = Broker.__new__(Broker)
        self.broker = made
        made.clock = ManualClock(1_000)
        partitions = {3: "partition 3"}
        made.topics = {"t": SimpleNamespace(id=7, partitions=partitions, stop_outbox=self._stop)}
        for name in ("_keys", "retention_manager", "compaction_manager", "start_queue"):
            setattr(made, name, self.part(name))
        made.metadata = self.part("metadata")
        made._tasks = self.part("tasks")

    def part(self, part: str, **known: Any) -> Any:
        steps = self.steps

        class Part(SimpleNamespace):
            def __getattr__(self, method: str) -> Any:
                return lambda *given, **_named: steps.append((part, method, *given))

        return Part(**known)

    async def _stop(self) -> None:
        self.steps.append("outbox stopped")


@pytest.mark.parametrize("log", ["messages", "events"])
@pytest.mark.parametrize("generation", [0, 2])
@pytest.mark.parametrize("topic", ["t", "still opening"])
def test_a_sealed_segment_is_recorded_indexed_and_may_make_retention_or_compaction_due(
    log: str, generation: int, topic: str
) -> None:
    case, identity = Case(), PartitionId(topic, 3, 7)
    segment = Segment(Path("/t"), 10, generation)
    segment.end_offset, segment.size_bytes = 30, 500
    case.broker._sealed(identity, log, segment)
    row = SegmentRow(identity.folder, 3, log, 10, 30, 500, 1_000)
    put = "put_merged_segment" if generation else "put_segment"
    assert case.steps == [
        ("metadata", put, row),
        ("tasks", "start", None),
        *[("_keys", "on_seal", identity, segment)] * (log == "messages"),
        *[("retention_manager", "wake", identity)] * (topic == "t"),
        ("compaction_manager", "wake"),
    ]


def test_a_partition_is_of_the_very_topic_that_is_meant() -> None:
    found = Case().broker._partition_of
    assert found(IDENTITY) == "partition 3"
    assert found(IDENTITY._replace(topic_id=8)) is None
    assert found(IDENTITY._replace(topic="u")) is None
    assert found(IDENTITY._replace(number=4)) is None


def test_a_topic_that_is_being_opened_is_told_from_one_that_is_not_there() -> None:
    case = Case()
    assert case.broker.topic("t").id == 7
    with pytest.raises(TopicNotFound):
        case.broker.topic("u")

    def check(name: str) -> None:
        raise PartitionOffline(f"topic {name} is being opened")

    case.broker.start_queue.check = check
    with pytest.raises(PartitionOffline):
        case.broker.topic("u")
    assert case.broker.topic("t").id == 7


@pytest.mark.parametrize(
    ("is_full", "is_member", "refuses"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_a_full_disk_takes_nothing_new_but_what_a_cluster_decides_itself(
    *, is_full: bool, is_member: bool, refuses: bool
) -> None:
    broker = Case().broker
    broker._is_disk_full, broker._is_member = (lambda: is_full), is_member
    assert broker._refuses_new() is refuses


def test_the_memory_of_the_caches_is_told_by_kind() -> None:
    broker = Case().broker
    broker._frames, broker.indexes = SimpleNamespace(size_bytes=1), SimpleNamespace(size_bytes=16)
    loaded = SimpleNamespace(indexes=SimpleNamespace(size_bytes=4))
    broker.archive = SimpleNamespace(disk=SimpleNamespace(cached_bytes=8), segments=loaded)
    assert broker.cached_bytes() == {"frames": 1, "archive": 12, "indexes": 16}


@pytest.mark.parametrize("is_started", [False, True])
def test_a_node_ends_in_an_order_in_which_nothing_is_lost(*, is_started: bool) -> None:
    case = Case()
    broker = case.broker

    def ends(name: str, *methods: str) -> None:
        def end_of(method: str) -> Any:
            async def end(*given: object) -> None:
                reasons = [type(each) for each in given]
                case.steps.append((name, method, *reasons))

            return end

        setattr(broker, name, case.part(name, **{each: end_of(each) for each in methods}))

    ends("start_queue", "close")
    ends("compaction_manager", "stop")
    ends("topic_admin", "close")
    ends("_tasks", "finish")
    ends("metadata", "close")
    names = ("archive", "finder", "background", "executor", "_commit_executor", "_journal_executor")
    for name in names:
        ends(name)
    broker.journal = case.part("journal") if is_started else None
    broker._retention_task = case.part("retention") if is_started else None
    asyncio.run(broker.close())
    assert case.steps == [
        ("start_queue", "close"),
        *[("retention", "cancel")] * is_started,
        ("archive", "stop_uploads"),
        ("finder", "stop"),
        ("compaction_manager", "stop"),
        "outbox stopped",
        ("topic_admin", "close", ShuttingDown),
        ("_tasks", "finish"),
        ("archive", "close"),
        ("metadata", "close"),
        ("background", "close"),
        ("executor", "shutdown"),
        ("_commit_executor", "shutdown"),
        ("_journal_executor", "shutdown"),
        *[("journal", "close")] * is_started,
    ]
