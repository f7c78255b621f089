"""Naive twins of the timer wheel and of a partition's schedule, which sort and scan."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from goq.delivery.delay.delayed_messages import DelayedMessages, DueMessages, LoadRequest
from goq.delivery.delay.maturity import Maturity

Row = tuple[int, int, int]
"""``(offset, tag, due_ms)``"""


class HeapTwin:
    """What a wheel holds, as a heap of ``(due_ms, offset, tag)``."""

    def __init__(self) -> None:
        self.heap: list[Row] = []

    def add(self, due_ms: int, offset: int, tag: int) -> None:
        heapq.heappush(self.heap, (due_ms, offset, tag))

    def remove(self, entry: Row) -> None:
        self.heap.remove(entry)
        heapq.heapify(self.heap)

    def trim(self, start_offset: int) -> None:
        self.heap = [entry for entry in self.heap if entry[1] >= start_offset]
        heapq.heapify(self.heap)

    def pop_due(self, now_ms: int) -> list[Row]:
        due = []
        while self.heap and self.heap[0][0] <= now_ms:
            due.append(heapq.heappop(self.heap))
        return due


def columns(rows: list[Row]) -> tuple[list[int], list[int], list[int]]:
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


@dataclass
class Message:
    """A delayed message as a dictionary would have it: ``row`` is what the disk says of it."""

    row: Row
    due_ms: int
    cancelled: bool = False
    matured: bool = False

    @property
    def waits(self) -> bool:
        return not (self.cancelled or self.matured)


@dataclass
class SchedulePair:
    """A schedule, its broker's part (disk, maturity, clock), and a dictionary to compare with."""

    now_ms: int
    messages: dict[int, Message] = field(default_factory=dict)
    load: LoadRequest | None = None
    next_offset: int = 0
    messages_max: int | None = None

    def __post_init__(self) -> None:
        self.maturity = Maturity()
        self.schedule = DelayedMessages(self.now_ms, self.maturity)

    def waiting(self) -> list[Message]:
        return [message for message in self.messages.values() if message.waits]

    def publish(self, delays_ms: list[int]) -> None:
        rows = []
        for delay_ms in delays_ms:
            offset = self.next_offset
            row = (offset, offset % 7, self.now_ms + delay_ms)
            rows.append(row)
            self.messages[offset] = Message(row, row[2])
            self.next_offset += 1 + offset % 2  # others lie in between
        self.schedule.add(*columns(rows), self.now_ms)

    def cancel(self, message: Message) -> None:
        self.schedule.cancel(message.row[0], message.due_ms)
        message.cancelled = True

    def reschedule(self, message: Message, due_ms: int) -> None:
        offset, tag, _ = message.row
        self.schedule.reschedule(offset, tag, message.due_ms, due_ms)
        self.maturity.reschedule(offset, due_ms)
        message.due_ms = due_ms

    def pop(self) -> DueMessages:
        """Pop what is due, in slices if they have a size; after each something else may happen."""
        due = self._pop()
        while self.messages_max is not None and self.schedule.has_due(self.now_ms):
            due = self._pop()
        return due

    def _pop(self) -> DueMessages:
        due = self.schedule.pop_due(self.now_ms, self.messages_max)
        expected = sorted(
            (m.due_ms, m.row[0], m.row[1])
            for m in self.waiting()
            if (m.due_ms, m.row[0]) < (due.up_to_ms, due.end_offset)
        )
        assert due.up_to_ms <= self.now_ms
        popped = zip(due.due_ms.tolist(), due.offsets.tolist(), due.tags.tolist(), strict=True)
        assert list(popped) == expected
        for _, offset, _ in expected:
            self.messages[offset].matured = True
        if expected:
            self.maturity.mature(due.up_to_ms, due.end_offset)
        if self.load and not self.schedule.has_due(self.now_ms):  # no waking in vain
            next_ms = self.schedule.next_ms()
            assert next_ms is None or next_ms > self.now_ms
        return due

    def begin_load(self) -> None:
        load = self.schedule.load_wanted(self.now_ms)
        assert load is None or self.load is None
        if load:
            assert load.from_ms < load.to_ms == max(load.to_ms, load.from_ms + 1)
            self.load = load
            assert self.schedule.load_wanted(self.now_ms) is None

    def finish_load(self, slices: int = 1, *, also_later_rows: bool = False) -> None:
        """Read what was asked for, with or without what was published meanwhile."""
        load = self.load
        if load is None:
            return
        end_offset = self.next_offset if also_later_rows else load.end_offset
        margin_ms = 1000 if also_later_rows else 0
        width_ms = (load.to_ms - load.from_ms) // slices
        from_ms = load.from_ms
        for number in range(slices):
            to_ms = load.to_ms if number == slices - 1 else from_ms + width_ms
            if to_ms == from_ms:
                continue
            rows = [
                message.row
                for offset, message in self.messages.items()
                if offset < end_offset
                and (from_ms if slices > 1 else from_ms - margin_ms)
                <= message.row[2]
                < to_ms + margin_ms
            ]
            self.schedule.loaded(to_ms, *columns(rows))
            from_ms = to_ms
        self.load = None

    def fail_load(self) -> None:
        if self.load:
            self.schedule.load_failed()
            self.load = None

    def catch_up(self) -> None:
        """Read and pop until there is nothing more to do now; that must come to an end."""
        for _ in range(30):
            self.begin_load()
            self.finish_load()
            due = self.pop()
            next_ms = self.schedule.next_ms()
            if next_ms is None or next_ms > self.now_ms:
                assert not any(message.due_ms <= self.now_ms for message in self.waiting())
                # the last slice ends before now where only cancelled messages are left
                assert self.messages_max is not None or due.up_to_ms == self.now_ms
                return
        raise AssertionError("the schedule wants ever more")

    def restart(self, chunk_size: int = 3) -> None:
        """Build the schedule anew from the disk and the state."""
        self.load = None
        self.maturity = Maturity(self.maturity.pairs, self.maturity.exempt)
        changed = {o: m for o, m in self.messages.items() if m.due_ms != m.row[2]}
        twice = {o: m for o, m in self.messages.items() if m.row[2] == m.due_ms and o % 3 == 0}
        self.schedule = DelayedMessages(
            self.now_ms,
            self.maturity,
            cancelled=[o for o, m in self.messages.items() if m.cancelled],
            rescheduled={o: m.due_ms for o, m in (changed | twice).items()},
        )
        rows = [message.row for message in self.messages.values()]
        for first in range(0, len(rows), chunk_size):
            self.schedule.restore(*columns(rows[first : first + chunk_size]))

    def trim(self, start_offset: int) -> None:
        for offset in [o for o in self.messages if o < start_offset]:
            message = self.messages.pop(offset)
            if message.waits:
                self.schedule.cancel(offset, message.due_ms)
        self.schedule.trim(start_offset)
        self.maturity.trim(start_offset)

    def check(self) -> None:
        waiting = self.waiting()
        assert self.schedule.count == len(waiting)
        for offset, message in self.messages.items():
            if not message.cancelled:
                matured = self.maturity.has_matured(offset, message.due_ms)
                assert matured == message.matured, (offset, message)
        live = [(o, m) for o, m in self.messages.items() if not m.cancelled]
        mask = self.maturity.matured(
            np.array([o for o, _ in live], np.int64),
            np.array([m.due_ms for _, m in live], np.int64),
        )
        assert mask.tolist() == [m.matured for _, m in live]
        next_ms = self.schedule.next_ms()
        if waiting and self.load is None:
            earliest_ms = min(message.due_ms for message in waiting)
            assert next_ms is not None
            assert next_ms <= earliest_ms
        if not waiting and self.load is None and not self.schedule._load:
            assert next_ms is None
        assert len(self.schedule._wheel) + len(self.schedule._far) <= len(waiting)
