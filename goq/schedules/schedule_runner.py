"""The runner of schedules: publishes what is due, while this node is the one to do so.

A message's dedup id is made of the schedule's name and the due time. So a time that two nodes
publish for, or one node twice, gives one message: after a crash, or while another node takes over.
When a time is published for, that is recorded in the store; the record bounds what is made up for.

A refusal that a retry may overcome is tried again until it succeeds; any other is recorded as the
schedule's problem, and its next time is tried as usual.

A clock that was ahead leaves schedules that are done until then. Once it is set back, they go on
from the time at which that is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple

from goq import limits
from goq.errors import GoqError
from goq.event_loop import wait_for_event
from goq.schedules.schedule_manager import ScheduleStore
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun, with_run

_log = logging.getLogger("goq.schedules")

PublishScheduled = Callable[[ScheduleRecord, int], Awaitable[None]]
"""Publishes the messages of a schedule for a due time; raises ``GoqError``."""


class _Plan(NamedTuple):
    """The next time of a schedule, as it follows from a record and from what is done."""

    record: ScheduleRecord
    after_ms: int
    next_ms: int | None


class ScheduleRunner:
    """Runs the schedules of a store while ``is_runner`` says so; ``now_ms`` is the clock."""

    def __init__(
        self,
        store: ScheduleStore,
        publish: PublishScheduled,
        is_runner: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._publish = publish
        self._is_runner = is_runner
        self._now_ms = now_ms
        self._changed = asyncio.Event()
        self._plans: dict[str, _Plan] = {}
        self._retries_ms: dict[str, int] = {}
        self._unrecorded: dict[str, ScheduleRun] = {}
        self._set_back_ms: dict[str, int] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(limits.SCHEDULES_AT_ONCE)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run schedules."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Look again: a schedule was changed, or another node is to run them now."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop. A publish that is under way may still be carried out: it is known by its id."""
        tasks = [*self._under_way.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        while True:
            wait_ms = None
            if self._is_runner() and (self._store.schedules or self._unrecorded):
                try:
                    wait_ms = await self._run_due()
                except GoqError as error:
                    _log.warning("schedules wait: %s", error.detail)
                    wait_ms = limits.SCHEDULE_RETRY_MS
                except Exception:  # the other schedules must run
                    _log.exception("schedules wait")
                    wait_ms = limits.SCHEDULE_CHECK_MS
            await wait_for_event(self._changed, None if wait_ms is None else wait_ms / 1000)
            self._changed.clear()

    async def _run_due(self) -> int:
        """Record what was published, begin what is due; return how long to wait, in ms."""
        if self._unrecorded:
            runs = dict(islice(self._unrecorded.items(), limits.SCHEDULE_RUNS_MAX))
            await self._store.record_runs(runs)
            for name, run in runs.items():
                if self._unrecorded.get(name) is run:
                    del self._unrecorded[name]
            if self._unrecorded:
                self._changed.set()
        schedules = self._store.schedules
        active = [record for record in schedules.values() if not record.paused_ms]
        await self._plan(active, self._now_ms())
        now_ms = self._now_ms()
        wait_ms = limits.SCHEDULE_CHECK_MS
        for record in active:
            next_ms = self._plans[record.name].next_ms
            if next_ms is None or record.name in self._under_way:
                continue
            retry_ms = self._retries_ms.get(record.name, 0)
            if retry_ms - now_ms <= limits.SCHEDULE_AHEAD_MS_MAX:  # else the clock was set back
                next_ms = max(next_ms, retry_ms)
            if next_ms > now_ms:
                wait_ms = min(wait_ms, next_ms - now_ms)
            else:
                self._begin(record, now_ms)
        return wait_ms

    async def _plan(self, active: list[ScheduleRecord], now_ms: int) -> None:
        """Bring the next times up to date: of cron lines in a thread, for some look far ahead."""
        names = {record.name for record in active}
        for name in self._plans.keys() - names:
            del self._plans[name]
            self._retries_ms.pop(name, None)
            self._set_back_ms.pop(name, None)
        stale = []
        for record in active:
            known, after_ms = self._plans.get(record.name), self._done_until_ms(record, now_ms)
            if known is None or known.record is not record or known.after_ms != after_ms:
                stale.append((record, after_ms))
        if stale:
            plans = await asyncio.to_thread(
                lambda: [_Plan(each, at, each.timetable.next_after(at)) for each, at in stale]
            )
            self._plans.update((plan.record.name, plan) for plan in plans)

    def _done_until_ms(self, record: ScheduleRecord, now_ms: int) -> int:
        run = self._unrecorded.get(record.name)
        known = record if run is None else with_run(record, run)
        if not known.is_ahead_of(now_ms):
            self._set_back_ms.pop(record.name, None)
            return known.done_until_ms
        noticed_ms = self._set_back_ms.get(record.name, now_ms)
        self._set_back_ms[record.name] = min(noticed_ms, now_ms)  # it may be set back further
        return self._set_back_ms[record.name]

    def _begin(self, record: ScheduleRecord, now_ms: int) -> None:
        after_ms = self._done_until_ms(record, now_ms)
        task = asyncio.get_running_loop().create_task(self._publish_due(record, after_ms, now_ms))
        self._under_way[record.name] = task

        def on_end(_task: asyncio.Task[None]) -> None:
            del self._under_way[record.name]
            self._changed.set()

        task.add_done_callback(on_end)

    async def _publish_due(self, record: ScheduleRecord, after_ms: int, now_ms: int) -> None:
        name = record.name
        try:
            async with self._room:
                for due_ms in await asyncio.to_thread(record.timetable.due, after_ms, now_ms):
                    self._unrecorded[name] = await self._publish_one(record, due_ms)
            self._retries_ms.pop(name, None)
        except GoqError as error:
            asked_ms = min(error.retry_after_ms or 0, limits.SCHEDULE_AHEAD_MS_MAX)
            pause_ms = max(limits.SCHEDULE_RETRY_MS, asked_ms)
            self._retries_ms[name] = self._now_ms() + pause_ms
            _log.warning("schedule %s waits: %s", name, error.detail)
        except Exception:  # nothing awaits this task
            self._retries_ms[name] = self._now_ms() + limits.SCHEDULE_CHECK_MS
            _log.exception("schedule %s waits", name)

    async def _publish_one(self, record: ScheduleRecord, due_ms: int) -> ScheduleRun:
        """Publish what was due at one time. A refusal for good counts as a run with a problem."""
        try:
            await self._publish(record, due_ms)
        except GoqError as error:
            if error.retryable:
                raise
            problem = error.detail[: limits.SCHEDULE_PROBLEM_CHARS_MAX]
            if problem != record.problem:
                _log.warning("schedule %s published nothing: %s", record.name, error.detail)
            return ScheduleRun(due_ms, problem)
        return ScheduleRun(due_ms, "")
