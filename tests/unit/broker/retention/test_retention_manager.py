"""When retention looks at partitions, and what it leaves to later."""

from __future__ import annotations

import asyncio
import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition_context import PartitionId
from goq.broker.retention import retention_manager
from goq.broker.retention.retention_manager import RetentionManager
from goq.broker.runtime.metrics import TopicStats
from goq.clock import ManualClock
from goq.errors import StorageFull
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk

MINUTE_US = 60_000_000
FIRST, SECOND = PartitionId("t", 0), PartitionId("t", 1)


def manager_of(clock: ManualClock, *topics: Any, needed_from: int | None = None) -> Any:
    """Return a retention manager of topics, whose replicas need what is from an offset on."""
    unused: Any = None
    return RetentionManager(
        {topic.name: topic for topic in topics},
        context_on(SimulatedDisk(), clock=clock),
        unused,
        unused,
        replica_start_offset=lambda _partition: needed_from,
    )


def topic_of(name: str = "t", **state: Any) -> Any:
    known = {"is_closed": False, "is_read_only": False, "stats": TopicStats(), "partitions": ()}
    return SimpleNamespace(name=name, **(known | state))


def partition_of(**state: Any) -> Any:
    return SimpleNamespace(**({"identity": FIRST, "is_online": True} | state))


def test_it_rests_until_the_first_partition_is_due_and_a_minute_at_most() -> None:
    clock = ManualClock()
    manager = manager_of(clock)
    assert manager._pause_s() == 60
    for in_s, rests_s in ((1000, 60), (60.5, 60), (59.5, 59.5), (2, 2), (0, 0), (-5, 0)):
        manager._due.set_no_later(FIRST, clock.wall_us() + int(in_s * 1_000_000))
        assert manager._pause_s() == rests_s


def test_archives_of_topics_that_were_checked_are_looked_at_and_those_of_all_once_a_minute() -> (
    None
):
    clock = ManualClock()
    manager = manager_of(clock, topic_of("t"), topic_of("u"))
    assert manager._topics_to_expire() == ["t", "u"]
    manager._checked.add("u")
    assert manager._topics_to_expire() == {"u"}
    assert manager._topics_to_expire() == set()
    clock.now_us += MINUTE_US - 1
    assert manager._topics_to_expire() == set()
    clock.now_us += 1
    assert manager._topics_to_expire() == ["t", "u"]
    clock.now_us += 1
    assert manager._topics_to_expire() == set()


@pytest.mark.parametrize("due_us", [None, 5])
def test_a_partition_that_cannot_be_changed_is_looked_at_again_in_a_minute(
    due_us: int | None,
) -> None:
    clock = ManualClock()
    manager, worked = manager_of(clock), list[bool]()
    again_us = clock.wall_us() + MINUTE_US

    async def work() -> int | None:
        worked.append(True)
        return due_us

    async def looked(topic: Any, partition: Any) -> int:
        found: int = await manager._run_logged(topic, partition, work)
        return found

    async def run() -> None:
        assert await looked(topic_of(), partition_of(is_online=False)) == again_us
        assert await looked(topic_of(is_read_only=True), partition_of()) == again_us
        assert worked == []
        assert await looked(topic_of(), partition_of()) == (due_us or again_us)
        assert worked == [True]

    asyncio.run(run())


@pytest.mark.parametrize("error", [StorageFull("no room"), OSError(errno.ENOSPC, "no room")])
def test_a_full_disk_is_counted_each_time_and_told_once_until_there_is_room(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    clock, topic = ManualClock(), topic_of()
    manager = manager_of(clock)

    async def fail() -> int | None:
        raise error

    async def run() -> None:
        for partition in (partition_of(), partition_of(identity=SECOND), partition_of()):
            assert await manager._run_logged(topic, partition, fail) == clock.wall_us() + MINUTE_US

    asyncio.run(run())
    assert topic.stats.retention_stalls == 3
    assert [message.partition(" of t ")[0] for message in caplog.messages] == [
        "the disk is full: retention of partition 0",
        "the disk is full: retention of partition 1",
    ]


@pytest.mark.parametrize(
    ("is_online", "is_closed", "is_told"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_a_failure_is_told_unless_the_partition_went_offline_or_its_topic_is_closing(
    caplog: pytest.LogCaptureFixture, is_online: bool, is_closed: bool, is_told: bool
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    topic, partition = topic_of(is_closed=is_closed), partition_of()

    async def fail() -> int | None:
        partition.is_online = is_online
        raise OSError(errno.EIO, "bad")

    asyncio.run(manager_of(ManualClock())._run_logged(topic, partition, fail))
    assert caplog.messages == ["retention failed in t:0"] * is_told
    assert topic.stats.retention_stalls == 0


@pytest.mark.parametrize(
    ("needed_from", "unread", "expected"),
    [(None, None, 30), (None, 12, 12), (9, None, 9), (9, 12, 9), (13, 12, 12), (0, None, 0)],
)
def test_nothing_goes_that_a_replica_or_a_protected_group_needs(
    monkeypatch: pytest.MonkeyPatch, needed_from: int | None, unread: int | None, expected: int
) -> None:
    monkeypatch.setattr(retention_manager, "first_protected_offset", lambda *_: unread)
    manager = manager_of(ManualClock(), needed_from=needed_from)
    assert manager._protected_from(topic_of(), partition_of(log_end_offset=30)) == expected
