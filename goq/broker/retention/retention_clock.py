"""The clock of retention: the wall clock, unless it has jumped ahead.

A wall clock that is set days ahead by mistake would let retention delete at once what is to be kept
for days, and so would compaction its tombstones, and a node its backups. So the wall clock is
compared with the uptime, which nobody sets. After a jump by more than ``JUMP_US`` retention goes on
as if the clock had not jumped, until a node has run for ``HOLD_US`` without another jump. Then, or
when it is set back, the wall clock counts again.

The time of retention is stored once an hour, and for how long the clock has been ahead of it. So a
start notices that the clock jumped while the node or the machine was down. A machine that was down
for longer than ``JUMP_US`` looks the same: its retention is late by ``HOLD_US`` of running. While
it is down each night, the jump of each start adds to the one before: the hours that it runs are
added up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from goq.clock import Clock
from goq.storage.disk import Disk
from goq.units import format_duration_ms

T = TypeVar("T")
FILE_NAME: Final = "clock"
_HOUR_US: Final = 3_600_000_000
JUMP_US: Final = _HOUR_US
HOLD_US: Final = 24 * _HOUR_US
STORED_US: Final = _HOUR_US
_log = logging.getLogger("goq.broker")


class Reading(NamedTuple):
    """The wall clock at an uptime, both in microseconds."""

    wall_us: int
    uptime_us: int

    def wall_at(self, uptime_us: int) -> int:
        """Return the wall time at another uptime; a smaller one is of a later boot."""
        passed_us = uptime_us - self.uptime_us
        return self.wall_us + (passed_us if passed_us >= 0 else uptime_us)


class RetentionClock:
    """Tells retention the time. ``path`` is the file of the last reading."""

    def __init__(self, clock: Clock, disk: Disk, executor: Executor, path: Path | None) -> None:
        self._clock = clock
        self._disk = disk
        self._executor = executor
        self._path = path
        self._is_loaded = False
        self._last: Reading | None = None
        """When retention was told the time last, and the time that it was told."""
        self._stored: Reading | None = None
        self._held_us: int | None = None
        """How long this node has run while the wall clock was ahead; None while it counts."""
        self._ahead_us: int | None = None
        """How far it was ahead the last time that this process looked."""

    @property
    def is_held(self) -> bool:
        """Whether the wall clock has jumped ahead and does not count for now."""
        return self._held_us is not None

    async def now_us(self) -> int:
        """Return the time by which messages are old."""
        if not self._is_loaded:
            loaded = await self._in_thread(self._load)
            if not self._is_loaded:  # else by another caller meanwhile
                self._is_loaded, (self._last, self._held_us) = True, loaded
                self._stored = self._last
        now = Reading(self._clock.wall_us(), self._clock.uptime_us())
        expected_us = now.wall_us if self._last is None else self._last.wall_at(now.uptime_us)
        if now.wall_us - expected_us > JUMP_US and not self._is_believed(now, expected_us):
            now = now._replace(wall_us=expected_us)
        else:
            if self.is_held:
                _log.warning("the clock counts for retention again")
            self._held_us = self._ahead_us = None
        self._last = now
        if self._stored is None or not 0 <= now.wall_us - self._stored.wall_us < STORED_US:
            self._stored, held_us = now, self._held_us
            await self._in_thread(lambda: self._store(now, held_us))
        return now.wall_us

    def _is_believed(self, now: Reading, expected_us: int) -> bool:
        """Return whether a clock that is ahead has stayed so for long enough."""
        ahead_us = now.wall_us - expected_us
        before_us, self._ahead_us = self._ahead_us, ahead_us
        if self._held_us is None or (before_us is not None and abs(ahead_us - before_us) > JUMP_US):
            _log.error(
                "the clock is %s ahead of what was expected: retention does not count with it for"
                " %s, unless it is set back",
                format_duration_ms(ahead_us // 1000),
                format_duration_ms(HOLD_US // 1000),
            )
            self._held_us = 0
        elif before_us is not None and self._last is not None:
            self._held_us += now.uptime_us - self._last.uptime_us
        return self._held_us >= HOLD_US

    def _load(self) -> tuple[Reading | None, int | None]:
        if self._path is None:
            return None, None
        try:
            wall, uptime, *held = map(int, bytes(self._disk.read(self._path, 0, 100)).split())
            (held_us,) = held or (None,)
        except (OSError, ValueError):
            return None, None
        return Reading(wall, uptime), held_us

    def _store(self, now: Reading, held_us: int | None) -> None:
        if self._path is not None:
            fields = [*now] if held_us is None else [*now, held_us]
            try:
                self._disk.replace(self._path, " ".join(map(str, fields)).encode() + b"\n")
            except OSError as error:
                _log.warning("the clock of retention is not stored: %s", error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
