"""The messages that a group gets next: one receive's walk over retries, keys and ready queues.

:class:`~goq.delivery.queues.fair_scheduler.FairScheduler` decides the order of lanes and tenants; a
selector is the :class:`~goq.delivery.queues.fair_scheduler.MessageTaker` that it offers messages
to. The selector passes over messages that were taken, cancelled, moved away or damaged. It drops
messages whose time to live is over, and holds back messages behind their key. It changes only
cursors: what it selected has to be leased, because passed messages are not offered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from goq import limits
from goq.config.topic import Ordering
from goq.delivery.events.event import Cause, Range, Span
from goq.delivery.group.group import Group
from goq.delivery.group.key_locks import HeldMessage, MessageAttributes
from goq.delivery.queues.fair_scheduler import LEFT, PASSED, TAKEN, FairScheduler, SingleTaker
from goq.delivery.selection.redelivery import (
    AttributeColumns,
    AttributeReader,
    Redelivery,
    RetryRule,
    Selection,
    SingleReader,
)

if TYPE_CHECKING:
    from goq.delivery.partition_state import PartitionState

_FEW_MOVED = 16
_attributes_of = partial(tuple.__new__, MessageAttributes)  # half as long as the class's own call
ANY_RETRY = RetryRule()


class Selector:
    """The selection of messages for one receive; the group has a scheduler already."""

    def __init__(
        self,
        state: PartitionState,
        group: Group,
        ordering: Ordering,
        default_lane: int,
        now_ms: int,
        read_attributes: AttributeReader,
        rule: RetryRule = ANY_RETRY,
        read_single: SingleReader | None = None,
    ) -> None:
        self._state = state
        self._group = group
        self._ordering = ordering
        self._default_lane = default_lane
        self._now_ms = now_ms
        self._selection = Selection(read_attributes)
        self._read_single = read_single
        self._redelivery = Redelivery(
            state, group, ordering, default_lane, now_ms, self._selection, rule
        )
        self._is_holding_full = False
        self._has_held = False
        self._is_behind = False
        self._runs_passed = 0
        self._corrupt_before = state.corrupt

    @property
    def spans(self) -> list[Span]:
        """The selected messages, in the order in which they are to be delivered."""
        return self._selection.spans

    @property
    def attributes(self) -> dict[int, MessageAttributes]:
        """The attributes of the fresh messages among them that have any."""
        return self._selection.attributes

    @property
    def skipped(self) -> dict[Cause, list[Range]]:
        """The messages that are not to be delivered any more, by cause."""
        return self._selection.skipped

    @property
    def must_yield(self) -> bool:
        """Whether it ended early and goes on in another turn.

        It did so much that others should go first. Or a retry that was skipped had locked its key:
        once that is recorded, a message of the key may come before what would be selected next.
        """
        return (
            self._is_behind
            or self._redelivery.has_unlocked
            or self._runs_passed >= limits.RUNS_PASSED_MAX
            or self._selection.steps >= limits.SELECTION_STEPS_MAX
        )

    @property
    def must_repeat(self) -> bool:
        """Whether nothing was selected, but another receive may select messages at once.

        Damage that it recorded may have used the room of a tenant, or locked a key. Messages held
        back behind their key may have used up the bytes that a receive may read. Each repetition
        follows a new record of damage, or holds more messages back, so it ends.
        """
        if self.spans:
            return False
        has_new_damage = self._state.corrupt != self._corrupt_before
        is_full_of_held = self._has_held and self._selection.is_full
        return bool(self.skipped) or self.must_yield or has_new_damage or is_full_of_held

    def take(self, messages_max: int) -> bool:
        """Select up to ``messages_max`` messages; return whether retries were left to others."""
        group = self._group
        scheduler = group.scheduler
        assert isinstance(scheduler, FairScheduler)
        self._redelivery.resume_parked(messages_max)
        group.retries.advance(self._now_ms)
        if group.retries.is_behind:  # a retry that comes first may not be known yet
            self._is_behind = True
            self._redelivery.finish()
            return False
        left, is_all = messages_max, True
        if self._ordering is Ordering.PARTITION:
            taken, is_all = self._redelivery.take_in_order(left)
            left -= taken
        if is_all:
            left -= scheduler.take(self, self._now_ms, left)
        if self._is_holding_full:  # the message that unlocks them may be in a lane without a turn
            for lane in sorted(self.waiting_lanes()):
                left -= self.take_waiting(lane, left)
        self._redelivery.finish()
        return self._redelivery.passed_over_count > 0

    # Asked by the scheduler

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes that have due retries or held messages of an unlocked key."""
        return self._redelivery.lanes()

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Select retries of a lane, then held messages of an unlocked key; return how many."""
        return self._redelivery.take(lane, messages_max)

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Select from a run of a ready queue; return how many, and the offset reached."""
        if start >= self._group.taken.ceiling:
            return 0, self._pass_run(start, end)
        if end == start + 1 and not self._state.moved:
            return self._take_one(lane, tenant, start, messages_max)
        left = messages_max
        for run_start, run_end in self._state.deliverable(self._group, start, end):
            at = run_start
            while at < run_end:
                if left <= 0 or self.is_full():
                    return messages_max - left, at
                stop = min(run_end, at + min(left, limits.SELECTION_STEPS_MAX))
                if self._state.moved:
                    stop = self._until_moved(lane, at, stop)
                    if stop == at:
                        at += 1
                        continue
                columns = self._selection.read(at, stop)
                if columns is None:
                    return messages_max - left, at
                if columns.is_gone:
                    at = self._pass_gone(lane, at, min(columns.end, run_end))
                elif columns.is_readable:
                    count, at = self._take_readable(lane, tenant, at, columns)
                    left -= count
                else:
                    at = columns.end
        return messages_max - left, end

    def single_taker(self) -> SingleTaker | None:
        """Return what takes a single fresh message; None where marks or an end have to be seen.

        It does what :meth:`take_fresh` does, without a call for each step. Nearly all messages are
        taken singly where tenants alternate. It is asked for where tenants have no cap, and does
        not count theirs.
        """
        read, group, state = self._read_single, self._group, self._state
        known, locks, selection = group.taken, group.locks, self._selection
        if read is None or state.moved or state.corrupt or known.has_ceiling:
            return None
        start_offset, end_offset, now_ms = state.start_offset, state.end_offset, self._now_ms
        is_by_key, default_lane = self._ordering is Ordering.KEY, self._default_lane
        select, attributes, must_wait = selection.select, selection.attributes, locks.must_wait

        def take(lane: int, tenant: int, offset: int) -> int:
            if not start_offset <= offset < end_offset or offset in known:
                return PASSED
            if selection.steps >= limits.SELECTION_STEPS_MAX:
                return LEFT
            found = read(offset)
            if found is None:
                return LEFT
            selection.steps += 1
            key, expires_ms = found
            if 0 < expires_ms <= now_ms:
                selection.skip(offset, Cause.TTL)
                return PASSED
            if key or tenant or lane != default_lane:
                own = _attributes_of((key, lane, tenant))
                if key and is_by_key and must_wait(own):
                    if locks.held_count >= limits.HELD_MESSAGES_MAX:
                        self._is_holding_full = True
                        return LEFT
                    self._hold(HeldMessage(offset, own, expires_ms))
                    return PASSED
                attributes[offset] = own
            select(offset, offset + 1, 1)
            return TAKEN

        return take

    def is_full(self) -> bool:
        """Return whether the receive has enough."""
        return self._selection.is_full or self._is_holding_full or self.must_yield

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant the group has in flight, the selected included."""
        return self._redelivery.in_flight(tenant)

    def _pass_run(self, start: int, end: int) -> int:
        """Pass a run behind the group's end; return how far, for there may be millions of runs."""
        if self.must_yield:
            return start
        self._runs_passed += 1
        return end

    def _take_one(self, lane: int, tenant: int, offset: int, messages_max: int) -> tuple[int, int]:
        """Select a run of a single message: nearly all runs are, where tenants alternate."""
        if not self._state.is_deliverable(self._group, offset):
            return 0, offset + 1
        if messages_max <= 0 or self.is_full():
            return 0, offset
        columns = self._selection.read(offset, offset + 1)
        if columns is None:
            return 0, offset
        if columns.is_gone:
            return 0, self._pass_gone(lane, offset, offset + 1)
        if not columns.is_readable:
            return 0, columns.end
        return self._take_readable(lane, tenant, offset, columns)

    def _until_moved(self, lane: int, start: int, end: int) -> int:
        """Return the first offset in the lane's queue that is not to be taken from it.

        That message belongs to another lane, or it was moved away and back and is there twice.
        """
        moved = self._state.moved
        elsewhere = (
            offset
            for offset in self._moved_within(start, end)
            if moved[offset] != lane or offset in self._selection.seen
        )
        return next(elsewhere, end)

    def _moved_within(self, start: int, end: int) -> Iterator[int]:
        """Yield the offsets that were moved, in order, one look at each offset that is read."""
        moved = self._state.moved
        if len(moved) <= _FEW_MOVED:
            return iter(sorted(offset for offset in moved if start <= offset < end))
        return (offset for offset in range(start, end) if offset in moved)

    def _take_readable(
        self, lane: int, tenant: int, start: int, columns: AttributeColumns
    ) -> tuple[int, int]:
        """Select, skip or hold back the messages from ``start`` on that the columns describe."""
        keys = columns.keys  # whatever the ordering: it may change while messages are in flight
        if keys is None and columns.expires_ms is None and columns.groups is None:
            self._select(start, columns.end, MessageAttributes(0, lane, tenant))
            return columns.end - start, columns.end
        locks = self._group.locks
        selected = 0
        for offset in range(start, columns.end):
            index = offset - start
            if columns.groups is not None and columns.groups[index] not in (None, self._group.name):
                self._skip(offset, Cause.OTHER_GROUP)
                continue
            expires_ms = columns.expires_ms[index] if columns.expires_ms is not None else 0
            if expires_ms and expires_ms <= self._now_ms:
                self._skip(offset, Cause.TTL)
                continue
            attributes = MessageAttributes(keys[index] if keys is not None else 0, lane, tenant)
            if attributes.key and self._ordering is Ordering.KEY and locks.must_wait(attributes):
                if locks.held_count >= limits.HELD_MESSAGES_MAX:
                    self._is_holding_full = True
                    self._selection.steps += max(0, offset - start - 1)  # what comes after waits
                    return selected, offset
                self._hold(HeldMessage(offset, attributes, expires_ms))
                continue
            self._select(offset, offset + 1, attributes)
            selected += 1
        self._selection.steps += columns.end - start - 1  # the read counted one
        return selected, columns.end

    def _pass_gone(self, lane: int, start: int, end: int) -> int:
        """Count compacted messages as done, up to one of another lane; return their end."""
        if self._state.moved:
            end = self._until_moved(lane, start, end)
            self._selection.seen.update(self._moved_within(start, end))
        self._selection.skip(start, Cause.COMPACTED, end=end)
        return end

    def _hold(self, message: HeldMessage) -> None:
        self._group.locks.hold(message)
        self._has_held = True

    def _skip(self, offset: int, cause: Cause) -> None:
        if self._state.moved:
            self._selection.seen.update(self._moved_within(offset, offset + 1))
        self._selection.skip(offset, cause)

    def _select(self, start: int, end: int, attributes: MessageAttributes) -> None:
        if self._state.moved:
            self._selection.seen.update(self._moved_within(start, end))
        self._selection.select(start, end, 1)
        if attributes.key or attributes.tenant or attributes.lane != self._default_lane:
            if end == start + 1:
                self._selection.attributes[start] = attributes
            else:
                self._selection.attributes.update(dict.fromkeys(range(start, end), attributes))
            self._selection.count_tenant(attributes.tenant, end - start)
