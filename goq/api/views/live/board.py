"""The latest sample of topics and nodes, which all lookers of one audience share.

An audience asks for the same topics with the same rights. Its lookers take their lines at the same
moments, so a sample is taken once for all of them. The board numbers its samples and remembers in
which one a topic last changed: a line costs what changed since the looker's line before, not the
number of topics. Without lookers nothing is kept, except for one that asks now and then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.api.schemas.live import (
    LiveNodeOut,
    LiveOut,
    LiveTopicOut,
    LiveTotalsOut,
    LiveWaitOut,
)
from goq.api.views.live.selection import (
    AT_REST_STEP,
    LiveSelection,
    longest_waits,
    offline_topics,
)
from goq.clock import Clock, TimeSlice
from goq.histogram import BUCKETS_S
from goq.units import format_time_us

_SUMS: Final = LiveTotalsOut.__struct_fields__[1:]
_SHARED_S: Final = limits.LIVE_INTERVAL_S_MIN / 2
"""A sample serves other lookers for so long."""
_WORK_SHARE: Final = 20
"""A pause is at least so many times as long as the sample before it took."""
_KEPT_INTERVALS: Final = 3
"""The board of a looker that asks for single lines stays for so long, for orders by rate."""
_BOUNDS_S: Final = list(BUCKETS_S)


class LiveSample(NamedTuple):
    """Nodes and topics at a moment; topics are in the order of their names."""

    nodes: list[LiveNodeOut]
    topics: Mapping[str, LiveTopicOut]


class LiveAsked(NamedTuple):
    """The wishes of a looker: a line each so many seconds, and how many, None for no end.

    The first line has what changed after the cursor ``after``, if the board still knows that.
    """

    interval_s: float
    limit: int | None
    after: str = ""


TakeSample = Callable[[], Awaitable[LiveSample]]


class LiveBoard:
    """The samples of one audience: the last one, and when each topic changed."""

    def __init__(
        self,
        take_sample: TakeSample,
        node: str,
        clock: Clock,
        selection: LiveSelection = LiveSelection(),
    ) -> None:
        self.looker_count = 0
        self.dropping: asyncio.TimerHandle | None = None
        self.took_s = 0.0
        """How long the last sample kept the event loop's thread busy, with the work in between.

        The first, which counts what later ones only compare, does not tell how long those take.
        """
        self._take_sample = take_sample
        self._node = node
        self._clock = clock
        self._selection = selection
        self._id = token_hex(4)
        self._number = 0
        self._taken_s = float("-inf")
        self._taking = asyncio.Lock()
        self._time = ""
        self._nodes: list[LiveNodeOut] = []
        self._topics: Mapping[str, LiveTopicOut] = {}
        self._listed: Mapping[str, LiveTopicOut] = {}
        self._totals = dict.fromkeys(_SUMS, 0)
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._forgotten = 0
        self._waits: list[LiveWaitOut] = []
        self._offline: list[str] = []
        self._encoded: dict[tuple[int, float], bytes] = {}

    async def refresh(self, age_s_max: float = _SHARED_S) -> None:
        """Take a sample, unless another looker did within the last ``age_s_max``."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        async with self._taking:
            if self._taken_s >= asked_s - age_s_max:
                return
            began_s, busy_s = loop.time(), time.thread_time()
            await self._take(await self._take_sample())
            self._taken_s = began_s
            if self._number > 1:
                self.took_s = time.thread_time() - busy_s

    async def _take(self, sample: LiveSample) -> None:
        """Compare a sample with the one before, in slices; then replace that at once."""
        before, time_slice = self._topics, TimeSlice()
        topics = self._selection.matching(sample.topics)
        totals = dict(self._totals)
        changed: set[str] = set()
        for number, (name, topic) in enumerate(topics.items()):
            known = before.get(name)
            if known is not topic and known != topic:
                changed.add(name)
                for field in _SUMS:
                    totals[field] += getattr(topic, field) - getattr(known, field, 0)
            if not number % AT_REST_STEP and time_slice.is_over:
                await time_slice.next()
        removed = before.keys() - topics.keys()
        for name in removed:
            for field in _SUMS:
                totals[field] -= getattr(before[name], field)
        listed = self._listed
        if changed or removed or self._selection.is_by_rate:
            listed = self._selection.first(topics, before)
        if changed or removed:
            self._waits, self._offline = longest_waits(topics), offline_topics(topics)
        gone = self._listed.keys() - listed.keys()
        shown = (changed & listed.keys()) | (listed.keys() - self._listed.keys())
        self._number += 1
        for name in sorted(shown):
            self._removed.pop(name, None)
            self._changed.pop(name, None)
            self._changed[name] = self._number
        for name in sorted(gone):
            self._changed.pop(name, None)
            self._removed[name] = self._number
        while len(self._removed) > limits.LIVE_TOPICS_MAX:
            name = next(iter(self._removed))
            self._forgotten = self._removed.pop(name)
        self._nodes, self._topics, self._listed = sample.nodes, topics, listed
        self._totals, self._time = totals, format_time_us(self._clock.wall_us())
        self._encoded = {}

    def has_forgotten(self, since: int) -> bool:
        """Return whether topics were removed after the sample ``since`` that the board forgot.

        The looker, which took no line for long, has to begin anew.
        """
        return 0 < since < self._forgotten

    def number_of(self, cursor: str) -> int:
        """Return the number of the sample of a cursor, 0 if this board does not know it."""
        board, _, number = cursor.partition("-")
        if board != self._id or not (number.isascii() and number.isdigit()):
            return 0
        known = int(number) <= self._number and not self.has_forgotten(int(number))
        return int(number) if known else 0

    async def line(self, since: int, interval_s: float) -> tuple[int, list[bytes]]:
        """Return the number of the sample, and a line with what changed after ``since``.

        The line comes in parts of a bounded number of topics. 0 is before the first sample.
        """
        number, key = self._number, (since, interval_s)
        if (known := self._encoded.get(key)) is not None:
            return number, [known]
        line = LiveOut(
            self._time,
            interval_s,
            self._node,
            self._nodes,
            LiveTotalsOut(len(self._topics), **self._totals),
            [],
            _after(self._removed, since) if since else [],
            False,
            len(self._topics) > len(self._listed),
            _BOUNDS_S,
            self._waits,
            self._offline,
            f"{self._id}-{number}",
            not since,
        )
        topics = [self._listed[name] for name in _after(self._changed, since)]
        parts, step = [], limits.LIVE_LINE_TOPICS_MAX
        for start in range(0, max(len(topics), 1), step):
            line.topics = topics[start : start + step]
            line.more = start + step < len(topics)
            parts.append(msgspec.json.encode(line) + b"\n")
            line.nodes, line.removed, line.waits, line.offline = [], [], [], []
            if line.more:
                await asyncio.sleep(0)
        if len(parts) == 1 and number == self._number:
            self._encoded[key] = parts[0]
        return number, parts


def _after(numbers: dict[str, int], since: int) -> list[str]:
    """Return the names with numbers over ``since``, sorted; the last numbers are the highest."""
    found = []
    for name in reversed(numbers):
        if numbers[name] <= since:
            break
        found.append(name)
    return sorted(found)


class LiveBoards:
    """The boards of all audiences that look at this moment."""

    def __init__(self) -> None:
        self._boards: dict[Hashable, LiveBoard] = {}

    async def lines(
        self,
        audience: Hashable,
        make_board: Callable[[], LiveBoard],
        asked: LiveAsked,
        *,
        is_new: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield lines until the looker goes; the first from a sample of its own if ``is_new``.

        Later lines come at multiples of the interval, the same for all lookers.
        """
        board = self._boards.get(audience)
        if board is None:
            board = self._boards[audience] = make_board()
        board.looker_count += 1
        try:
            async for part in _lines(board, asked, 0 if is_new else _SHARED_S):
                yield part
        finally:
            board.looker_count -= 1
            if asked.limit is None:
                self._drop(audience, board)
            else:
                if board.dropping is not None:
                    board.dropping.cancel()
                kept_s = _KEPT_INTERVALS * asked.interval_s
                board.dropping = asyncio.get_running_loop().call_later(
                    kept_s, self._drop, audience, board
                )

    def _drop(self, audience: Hashable, board: LiveBoard) -> None:
        if board.looker_count or self._boards.get(audience) is not board:
            return
        del self._boards[audience]
        if board.dropping is not None:
            board.dropping.cancel()


async def _lines(
    board: LiveBoard, asked: LiveAsked, first_age_s_max: float
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    await board.refresh(first_age_s_max)
    number, left = board.number_of(asked.after), asked.limit
    while not board.has_forgotten(number):
        number, parts = await board.line(number, asked.interval_s)
        for part in parts:
            yield part
        if left is not None:
            left -= 1
            if not left:
                return
        now_s = loop.time()
        await asyncio.sleep(next_line_s(now_s, asked.interval_s, board.took_s) - now_s)
        await board.refresh()


def next_line_s(now_s: float, interval_s: float, took_s: float) -> float:
    """Return the time of the next line: a multiple of the interval, not less than half of one away.

    ``took_s`` is what the last sample took: most of the time there is none.
    """
    step_s = interval_s * max(1, math.ceil(_WORK_SHARE * took_s / interval_s))
    step_s = min(step_s, limits.LIVE_INTERVAL_S_MAX)
    return math.ceil((now_s + step_s / 2) / step_s) * step_s
