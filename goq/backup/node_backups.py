"""Backups of a running node, one at a time: on request, and on a schedule.

The files are those of a :class:`BackupSource`: the node's own topics, or those of its cluster. What
is removed before it is copied makes all be planned again; what is copied by then is not copied
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from goq.backup.backup import BackupBuilder, BackupResult, check_apart
from goq.backup.inspection import prune_place
from goq.backup.manifest import StoredPartition
from goq.backup.node_source import BackupSource, LocalSource
from goq.backup.place import CLOCK_SKEW_US_MAX, is_url, open_place
from goq.backup.planned_files import PlannedTopic
from goq.broker.broker import Broker
from goq.broker.runtime.single_job import JobOutcome, SingleJob
from goq.config.backup import BackupConfig
from goq.errors import GoqError, InvalidInput, Unavailable
from goq.storage.disk import RealDisk

_log = logging.getLogger("goq.backup")
_RETRY_S: Final = 60.0
_YIELD_S: Final = 15.0


class NodeBackups:
    """The backups of a node to the folder of its configuration."""

    def __init__(
        self,
        broker: Broker,
        config: BackupConfig,
        source: BackupSource | None = None,
        *,
        goes_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """``source`` is what the node backs up, None for its own topics.

        Of several nodes with a schedule and one place, the one that ``goes_first`` backs up.
        """
        self.config = config
        self.job = SingleJob[BackupResult]("backup")
        self.failures = 0
        self.newest_us: int | None = None
        """The time of the newest backup in the folder; None without any."""
        self._broker = broker
        self._source: BackupSource = source or LocalSource(broker, RealDisk())
        self._goes_first = goes_first
        self._data_dir = broker.topics_dir.parent
        self._schedule: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest backup began; None without any."""
        if self.newest_us is None:
            return None
        return max(0.0, (self._broker.clock.wall_us() - self.newest_us) / 1e6)

    async def open(self) -> None:
        """Find the newest backup, and begin the schedule. Raises ``UsageError``."""
        where = self.config.to
        if where is None:
            return
        check_apart(open_place(RealDisk(), where), self._data_dir)
        await self._find_newest(where)
        if self.config.every_ms is not None:
            self._schedule = asyncio.ensure_future(self._run_schedule(self.config.every_ms / 1000))

    async def _find_newest(self, where: Path | str) -> None:
        # A backup of a later time was made while a clock was ahead: it says nothing of its age.
        until_us = self._broker.clock.wall_us() + CLOCK_SKEW_US_MAX
        with suppress(OSError):  # told by the next backup
            newest = await asyncio.to_thread(lambda: open_place(RealDisk(), where).newest(until_us))
            self.newest_us = None if newest is None else newest.time_us

    async def close(self) -> None:
        """Stop the schedule, and give up the backup under way: its objects serve the next one."""
        if self._schedule is not None:
            self._schedule.cancel()
            await asyncio.wait([self._schedule])
        await self.job.cancel()

    def begin(self, to: str | None = None) -> int:
        """Begin a backup; return its number, or that of the one under way.

        Raises ``InvalidInput`` if the configuration names no folder, or another one than ``to``.
        """
        where = configured_place(self.config, to)
        running = self.job.running
        if running is not None:
            return running
        return self.job.begin(partial(self._back_up, where), partial(self._tell, where))

    def _tell(self, where: Path | str, ended: JobOutcome[BackupResult]) -> None:
        _, result, failure = ended
        if failure is not None:
            self.failures += 1
            _log.error("no backup to %s: %s", where, failure.detail)
        elif result is not None:
            _log.info("backup %s: %d new bytes", result.name, result.copied_bytes)
            if result.missing:
                self.failures += 1
                _log.error("backup %s lacks what is offline: %s", result.name,
                           ", ".join(result.missing[:20]))  # fmt: skip

    async def _back_up(self, where: Path | str) -> BackupResult:
        broker = self._broker
        await broker.start_queue.wait_for_all()
        began_us = broker.clock.wall_us()
        place = open_place(RealDisk(), where)
        with ExitStack() as locked:

            def begin() -> BackupBuilder:
                place.create()
                locked.enter_context(place.locked(exclusive=True))
                return BackupBuilder(place, began_us)

            opening = asyncio.ensure_future(asyncio.to_thread(begin))
            try:
                builder = await asyncio.shield(opening)
            except asyncio.CancelledError:
                await asyncio.wait([opening])  # it may take the lock only now
                raise
            locked.callback(builder.close)
            source = self._source
            # Before the logs: a run that is known then has its messages in them.
            schedules = source.schedules
            for planned, logs in await self._copy_all(builder):
                builder.add_topic(planned, logs)
            result = await asyncio.to_thread(builder.finish, source.epoch, source.tokens, schedules)
        self.newest_us = began_us
        return result

    async def _copy_all(
        self, builder: BackupBuilder
    ) -> list[tuple[PlannedTopic, list[StoredPartition]]]:
        """Copy all topics as one plan has them, a later one if files of it are gone.

        Tries that come further than any before do not count: a backup that takes hours meets many
        files that retention has deleted. If waiting for a partition does not help, the others are
        backed up. A partition whose messages go faster than they are copied is empty there.
        """
        tries, furthest, is_partial, is_planned, may_be_empty = 0, 0, False, False, False
        while True:
            copied: list[StoredPartition] = []
            try:
                is_planned = False
                plans = await self._source.plan(is_partial=is_partial)
                is_planned = True
                for partition in (each for plan in plans for each in plan.partitions):
                    copying = builder.writer.copy_partition(partition, may_be_empty=may_be_empty)
                    copied.append(await self._source.copy(copying))
            except (GoqError, OSError) as error:
                if len(copied) > furthest:
                    tries, furthest = 0, len(copied)
                tries += 1
                pause_s = self._source.retry_pause_s(error, tries)
                if pause_s is None:
                    if isinstance(error, FileNotFoundError) and not may_be_empty:
                        tries, may_be_empty = 0, True
                        continue
                    if is_partial or is_planned or not isinstance(error, Unavailable):
                        raise
                    tries, is_partial = 0, True
                    continue
                await asyncio.sleep(pause_s)
            else:
                left = iter(copied)
                return [(plan.topic, [*islice(left, len(plan.partitions))]) for plan in plans]

    async def _run_schedule(self, every_s: float) -> None:
        while True:
            age_s = self.age_s
            await asyncio.sleep(0 if age_s is None else max(0.0, every_s - age_s))
            for _ in range(2):  # at the start of a cluster none goes first at once
                if not self._goes_first():
                    await asyncio.sleep(min(every_s, _YIELD_S))
            assert self.config.to is not None
            await self._find_newest(self.config.to)
            if self.age_s is not None and self.age_s < every_s:
                continue  # another node has backed up
            failures = self.failures
            self.begin()
            await self.job.wait()
            if self.failures == failures:
                await self._prune()
            elif self.age_s is None or self.age_s >= every_s:
                await asyncio.sleep(min(every_s, _RETRY_S))

    async def _prune(self) -> None:
        where, keep_ms = self.config.to, self.config.keep_ms
        if where is None or keep_ms is None:
            return
        now_us = await self._broker.retention_manager.clock.now_us()
        before_us = now_us - keep_ms * 1000
        try:
            place = open_place(RealDisk(), where)
            done = await asyncio.to_thread(prune_place, place, before_us, now_us / 1e6)
        except (GoqError, OSError) as error:
            self.failures += 1
            _log.error("old backups stay in %s: %s", where, error)
        else:
            if done.backups:
                _log.info("%d old backups removed from %s", done.backups, where)


def configured_place(config: BackupConfig, asked: str | None) -> Path | str:
    """Return the place of a node's backups, which a request may repeat.

    Raises ``InvalidInput`` for another place, and without any.
    """
    where = config.to
    if where is None:
        raise InvalidInput(
            "this node has no folder for backups: name one as backup.to in its configuration,"
            " or start it with --set backup.to=DIR",
            field="to",
        )
    if asked is not None and ("\0" in asked or _normal(asked) != _normal(where)):
        raise InvalidInput(
            f"this node backs up to {where}; another place needs backup.to in its configuration",
            field="to",
        )
    return where


def _normal(where: Path | str) -> str:
    return str(where).rstrip("/") if is_url(where) else str(Path(where).resolve())
