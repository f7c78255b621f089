"""The clock of retention: the wall clock, unless it has jumped ahead.

A wall clock that is set days ahead by mistake would let retention delete at once what is to be kept
for days. So the wall clock is compared with the uptime, which nobody sets. After a jump by more
than ``JUMP_US`` retention goes on as if the clock had not jumped, until it has stayed there for
``HOLD_US``. Then, or when it is set back, the wall clock counts again.

The last reading is stored once an hour. So a start notices that the clock jumped while the node or
the machine was down. A machine that was down for longer than ``JUMP_US`` looks the same: its
retention is late by ``HOLD_US``.
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
        self.is_held = False
        """Whether the wall clock has jumped ahead and does not count for now."""
        self._clock = clock
        self._disk = disk
        self._executor = executor
        self._path = path
        self._last: Reading | None = None
        self._stored: Reading | None = None
        self._jumped: Reading | None = None

    async def now_us(self) -> int:
        """Return the time by which messages are old."""
        now = Reading(self._clock.wall_us(), self._clock.uptime_us())
        if self._last is None:
            self._last = self._stored = await self._in_thread(self._load)
        expected_us = now.wall_us if self._last is None else self._last.wall_at(now.uptime_us)
        if now.wall_us - expected_us > JUMP_US and not self._is_believed(now):
            self._hold(now, expected_us)
            return expected_us
        if self.is_held:
            _log.warning("the clock counts for retention again")
        self.is_held, self._jumped, self._last = False, None, now
        if self._stored is None or not 0 <= now.wall_us - self._stored.wall_us < STORED_US:
            self._stored = now
            await self._in_thread(lambda: self._store(now))
        return now.wall_us

    def _is_believed(self, now: Reading) -> bool:
        """Return whether a clock that jumped has stayed where it is for long enough."""
        before = self._jumped
        if before is None or abs(now.wall_us - before.wall_at(now.uptime_us)) > JUMP_US:
            self._jumped = now
            return False
        return now.uptime_us - before.uptime_us >= HOLD_US

    def _hold(self, now: Reading, expected_us: int) -> None:
        if not self.is_held:
            _log.error(
                "the clock is %s ahead of what was expected: retention does not count with it for"
                " %s, unless it is set back",
                format_duration_ms((now.wall_us - expected_us) // 1000),
                format_duration_ms(HOLD_US // 1000),
            )
        self.is_held = True

    def _load(self) -> Reading | None:
        if self._path is None:
            return None
        try:
            wall, uptime = bytes(self._disk.read(self._path, 0, 100)).split()
            return Reading(int(wall), int(uptime))
        except (OSError, ValueError):
            return None

    def _store(self, now: Reading) -> None:
        if self._path is not None:
            try:
                self._disk.replace(self._path, b"%d %d\n" % now)
            except OSError as error:
                _log.warning("the clock of retention is not stored: %s", error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
