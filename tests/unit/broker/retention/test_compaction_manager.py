"""When the compaction manager looks again, which topics it compacts, and what stops a pass."""

from __future__ import annotations

import asyncio
import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.retention.compaction_manager import CompactionManager
from goq.clock import ManualClock
from goq.config.topic import Cleanup, TopicSettings
from goq.storage.compaction.checkpoint import CleanerCheckpoint

NOW_US = 1_700_000_000_000_000


class Compactor:
    """A partition whose passes end as the test says: so many removed, or an error."""

    identity = "t:0"

    def __init__(self, due_us: int | None = None, *passes: int | Exception) -> None:
        self.compactor = self
        self.due_at_us = due_us
        self.passes = list(passes)
        self.progress: CleanerCheckpoint | None = CleanerCheckpoint()
        self.is_online = True
        self.runs = 0
        self.step = 10

    def due_us(self, _settings: TopicSettings) -> int | None:
        return self.due_at_us

    async def is_due(self, _settings: TopicSettings, _resources: object) -> bool:
        return bool(self.passes)

    async def run(self, _settings: TopicSettings, _resources: object) -> int:
        self.runs += 1
        found = self.passes.pop(0)
        if isinstance(found, Exception):
            raise found
        assert self.progress is not None
        self.progress = CleanerCheckpoint(self.progress.compacted_to + self.step)
        return found

    async def stop(self) -> None:
        return


def topic_of(*partitions: Compactor, cleanup: Cleanup = Cleanup.COMPACT, **state: bool) -> Any:
    settings = TopicSettings(cleanup=cleanup)
    known = {"is_read_only": False, "is_closed": False, **state}
    return SimpleNamespace(settings=settings, partitions=partitions, **known)


def manager_of(*topics: Any) -> CompactionManager:
    async def now_us() -> int:
        return NOW_US

    return CompactionManager(dict(enumerate(topics)), ManualClock(NOW_US), now_us)


async def applied(*topics: Any) -> int:
    manager = manager_of(*topics)
    try:
        return await manager.apply()
    finally:
        await manager.stop()


@pytest.mark.parametrize(
    ("dues_us", "in_s"),
    [
        ([None, None], None),
        ([NOW_US + 5_000_000, None, NOW_US + 2_000_000], 2.0),
        ([NOW_US + 1], 0.000001),
        ([NOW_US], 60.0),  # a pass was made just now, and failed or made no progress
        ([NOW_US - 9_000_000, NOW_US + 2_000_000], 60.0),
    ],
)
def test_it_looks_again_when_the_first_pass_is_due_and_after_a_failed_one_in_a_minute(
    dues_us: list[int | None], in_s: float | None
) -> None:
    topic = topic_of(*[Compactor(due_us) for due_us in dues_us])
    assert manager_of(topic)._due_in_s() == in_s


def test_only_topics_that_are_to_be_compacted_and_may_be_changed_count() -> None:
    others = [
        topic_of(Compactor(NOW_US + 1, 5), cleanup=Cleanup.DELETE),
        topic_of(Compactor(NOW_US + 1, 5), is_read_only=True),
    ]
    wanted = topic_of(Compactor(NOW_US + 3_000_000, 7), Compactor(None, 1))
    assert manager_of(*others, wanted)._due_in_s() == 3.0
    assert asyncio.run(applied(*others, wanted)) == 8
    assert [topic.partitions[0].runs for topic in (*others, wanted)] == [0, 0, 1]


def test_passes_are_made_until_none_is_due_or_one_gets_no_further() -> None:
    whole, stuck = Compactor(None, 3, 4, 5), Compactor(None, 3, 4, 5)
    stuck.step = 0
    assert asyncio.run(applied(topic_of(whole, stuck))) == 12 + 3
    assert (whole.runs, stuck.runs) == (3, 1)


@pytest.mark.parametrize(
    ("error", "is_online", "is_closed", "text"),
    [
        (OSError(errno.ENOSPC, "full"), True, False, "the disk is full: t:0 is not compacted"),
        (OSError(errno.ENOSPC, "full"), False, True, "the disk is full: t:0 is not compacted"),
        (OSError(errno.EIO, "bad"), True, False, "compaction failed in t:0"),
        (KeyError("a bug"), True, False, "compaction failed in t:0"),
        (KeyError("a bug"), False, False, ""),
        (KeyError("a bug"), True, True, ""),
    ],
)
def test_a_pass_that_fails_holds_up_no_other_partition_and_is_told_unless_that_is_closing(
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_online: bool,
    is_closed: bool,
    text: str,
) -> None:
    caplog.set_level(logging.WARNING, "goq.broker")
    failing, other = Compactor(None, 2, error, 3), Compactor(None, 4)
    failing.is_online = is_online
    assert asyncio.run(applied(topic_of(failing, other, is_closed=is_closed))) == 6
    assert (failing.runs, other.runs) == (2, 1)
    assert caplog.messages == [text] * bool(text)
