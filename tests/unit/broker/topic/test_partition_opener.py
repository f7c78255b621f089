"""The opener of partitions: which are seen together, which are offline, and when they are tried."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition.loader import LoadedPartition
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.partition_opener import _OPENED_AT_ONCE, PartitionOpener, ReopenPause
from goq.broker.topic.partition_table import PartitionTable
from goq.config.topic import EffectiveSettings, TopicSettings
from goq.errors import PartitionNotFound, PartitionOffline, StorageFailed
from goq.storage.catalog.rows import TopicManifest
from tests.support.broker.context import context_on
from tests.support.cluster.replication.loop import run_simulated
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

FOLDER = Path("/data/t")
NEW = TopicManifest()


class CountedThreads(InlineExecutor):
    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(work, *args, **kwargs)


class Case:
    """An opener over a simulated disk; ``bad`` are the partitions that cannot be opened."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.disk.fault = self._fault
        self.bad: set[int] = set()
        self.tried: list[tuple[float, int]] = []
        self.made: list[int] = []
        self.closed: list[object] = []
        self.reopened: list[int] = []
        self.counts: list[int] = []
        self.closing = asyncio.Event()
        self.manifest = NEW
        self.is_known = asyncio.Event()
        self.is_known.set()
        self.before_build: Callable[[], None] = lambda: None
        self.table = PartitionTable("t")
        self.tasks = Tasks()
        self.threads = CountedThreads()
        context = context_on(self.disk, executor=self.threads, tasks=self.tasks)
        self.opener = PartitionOpener(
            FOLDER,
            self.table,
            EffectiveSettings(TopicSettings()),
            context,
            self.tasks,
            ReopenPause(1.0, 5.0),
            self._manifest,
            self.closing,
            build=self._build,
            close_failed=self._close_failed,
            on_added=lambda: self.counts.append(self.table.count),
            on_reopened=self.reopened.append,
        )

    def _fault(self, operation: str, path: Path) -> int | None:
        if operation != "open" or path.parts[-2:] != ("messages", "watermark"):
            return None
        number = int(path.parts[-3])
        self.tried.append((asyncio.get_running_loop().time(), number))
        return errno.EIO if number in self.bad else None

    def _build(self, number: int, _loaded: LoadedPartition) -> Any:
        self.before_build()
        self.made.append(number)
        return SimpleNamespace(identity=SimpleNamespace(number=number), is_online=True)

    async def _manifest(self) -> TopicManifest:
        await self.is_known.wait()
        return self.manifest

    async def _close_failed(self, partition: object) -> None:
        self.closed.append(partition)

    def here(self) -> list[int]:
        return list(self.table.numbers())


def on_case(test: Callable[[Case], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Case())

    run_simulated(main())


def test_the_partitions_of_a_topic_are_open_from_the_first_to_the_last() -> None:
    async def steps(case: Case) -> None:
        count = 2 * _OPENED_AT_ONCE + 1
        await case.opener.open(count, NEW)
        assert case.here() == list(range(count)) == case.made
        assert case.table.count == count
        assert case.counts == [count]
        assert case.table.offline == {}
        await case.opener.open(count, NEW)
        assert len(case.tried) == count

    on_case(steps)


@pytest.mark.parametrize("existed", [0, 1])
def test_more_partitions_are_seen_all_at_once(existed: int) -> None:
    async def steps(case: Case) -> None:
        await case.opener.open(1, NEW)
        before, seen = case.table.change_count, set[int]()
        case.before_build = lambda: seen.add(case.table.count)
        await case.opener.open(1 + 2 * _OPENED_AT_ONCE, TopicManifest(existed))
        assert seen == {1}
        assert case.here() == list(range(1 + 2 * _OPENED_AT_ONCE))
        assert case.table.change_count == before + 1

    on_case(steps)


def test_the_first_ones_of_a_topic_are_served_while_the_others_are_loaded() -> None:
    async def steps(case: Case) -> None:
        seen = list[int]()
        case.before_build = lambda: seen.append(case.table.count)
        await case.opener.open(2 * _OPENED_AT_ONCE, NEW)
        assert seen == [0] * _OPENED_AT_ONCE + [_OPENED_AT_ONCE] * _OPENED_AT_ONCE

    on_case(steps)


async def restarted(case: Case, count: int) -> tuple[Case, TopicManifest]:
    """Return what a node finds that had so many partitions before it was started again."""
    if count:
        await case.opener.open(count, NEW)
    return Case(case.disk), TopicManifest(count)


def test_new_partitions_have_a_thread_each_and_those_that_were_there_share_one() -> None:
    async def steps(case: Case) -> None:
        await case.opener.open(3, NEW)
        assert case.threads.jobs == 3
        again = Case(case.disk)
        await again.opener.open(3, TopicManifest(3))
        assert again.threads.jobs == 1
        mixed = Case(case.disk)
        await mixed.opener.open(4, TopicManifest(3))
        assert mixed.threads.jobs == 4

    on_case(steps)


@pytest.mark.parametrize("existed", [0, 4])
def test_one_that_cannot_be_opened_leaves_no_gap_and_is_told(existed: int) -> None:
    async def steps(case: Case) -> None:
        case, manifest = await restarted(case, existed)
        case.bad = {1, 2}
        with pytest.raises(StorageFailed, match="/data/t/1/messages"):
            await case.opener.open(4, manifest)
        assert case.here() == [0] == case.made
        assert (case.table.count, case.table.offline, case.counts) == (1, {}, [1])
        case.bad = set()
        await case.opener.open(4, manifest)
        assert case.here() == [0, 1, 2, 3]

    on_case(steps)


def test_what_is_loaded_behind_one_that_failed_is_closed() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0}
        held, opened = list[Path](), case.disk.open

        def noted(path: Path) -> Any:
            file: Any = opened(path)
            held.append(path)
            file.close = lambda: held.remove(path)
            return file

        case.disk.open = noted
        with pytest.raises(StorageFailed):
            await case.opener.open(2, NEW)
        assert {number for _, number in case.tried} == {0, 1}
        assert case.made == []
        assert held == []

    on_case(steps)


@pytest.mark.parametrize("existed", [0, 4])
def test_one_that_is_skipped_is_offline_and_opened_once_it_can_be(existed: int) -> None:
    async def steps(case: Case) -> None:
        case, manifest = await restarted(case, existed)
        case.bad = {1}
        await case.opener.open(3, manifest, skip_failed=True)
        assert case.here() == [0, 2]
        assert case.table.count == 3
        error = case.table.offline[1]
        assert isinstance(error, PartitionOffline)
        assert error.retry_after_ms == 1000
        assert "partition 1 of t is offline: /data/t/1/messages" in error.detail
        case.bad = set()
        case.tried.clear()
        await case.tasks.finish()
        assert case.tried == [(1.0, 1)]
        assert case.here() == [0, 1, 2]
        assert case.table.offline == {}
        assert case.reopened == [1]
        assert case.closed == []  # it had not been open

    on_case(steps)


def test_a_partition_whose_logs_are_gone_is_offline_and_does_not_begin_anew() -> None:
    async def steps(case: Case) -> None:
        await case.opener.open(2, TopicManifest(1), skip_failed=True)
        assert case.here() == [1]
        assert case.table.offline[0].detail.startswith("partition 0 of t is offline: /data/t/0/")
        case.closing.set()
        await case.opener.close()

    on_case(steps)


def test_the_pauses_between_tries_are_doubled_up_to_a_bound() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0}
        await case.opener.open(1, NEW, skip_failed=True)
        await asyncio.sleep(18)
        assert [at for at, _ in case.tried] == [0.0, 1.0, 3.0, 7.0, 12.0, 17.0]
        assert case.reopened == []
        case.closing.set()
        await case.opener.close()

    on_case(steps)


def test_a_closing_topic_opens_nothing_again_and_ends_all_tries() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0, 1}
        await case.opener.open(2, NEW, skip_failed=True)
        tries = len(case.tried)
        case.bad = set()
        case.closing.set()
        await case.opener.reopen(0)
        await case.opener.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert asyncio.get_running_loop().time() == 0.0
        assert len(case.tried) == tries
        assert case.here() == []

    on_case(steps)


def test_closing_bears_tries_that_were_cancelled() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0}
        await case.opener.open(1, NEW, skip_failed=True)
        case.tasks.cancel()
        await case.opener.close()

    on_case(steps)


def test_closing_waits_for_a_try_that_has_begun() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0}
        await case.opener.open(1, NEW, skip_failed=True)
        case.bad = set()
        case.is_known.clear()
        trying = asyncio.ensure_future(case.opener.reopen(0))
        await asyncio.sleep(0)
        case.closing.set()
        closing = asyncio.ensure_future(case.opener.close())
        await asyncio.sleep(0.5)
        assert not closing.done()
        case.is_known.set()
        await closing
        assert trying.done()
        assert case.reopened == [0]

    on_case(steps)


def test_one_that_failed_while_open_is_closed_once_before_it_is_opened_again() -> None:
    async def steps(case: Case) -> None:
        await case.opener.open(2, NEW)
        failed: Any = case.table[1]
        failed.is_online = False
        case.manifest = TopicManifest(2)
        case.bad = {1}
        for _ in range(2):
            with pytest.raises(PartitionOffline):
                await case.opener.reopen(1)
            assert case.closed == [failed]
            assert list(case.table.offline) == [1]
        case.bad = set()
        await case.opener.reopen(1)
        assert case.closed == [failed]
        assert case.table[1] is not failed
        assert case.table.offline == {}
        assert case.reopened == [1]

    on_case(steps)


def test_two_tries_of_a_partition_open_it_once() -> None:
    async def steps(case: Case) -> None:
        case.bad = {0}
        await case.opener.open(1, NEW, skip_failed=True)
        case.bad = set()
        case.tried.clear()
        await asyncio.gather(case.opener.reopen(0), case.opener.reopen(0))
        assert len(case.tried) == 1
        assert case.reopened == [0]
        await case.tasks.finish()
        assert len(case.tried) == 1

    on_case(steps)


def test_one_that_is_online_is_left_alone_and_one_that_does_not_exist_is_told() -> None:
    async def steps(case: Case) -> None:
        await case.opener.open(1, NEW)
        await case.opener.reopen(0)
        assert len(case.tried) == 1
        assert case.reopened == []
        with pytest.raises(PartitionNotFound):
            await case.opener.reopen(1)

    on_case(steps)
