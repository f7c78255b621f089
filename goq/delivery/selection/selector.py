"""What a group gets next: one receive's walk over retries, freed keys and ready queues.

:class:`~goq.delivery.queues.fair_scheduler.FairScheduler` says in which order lanes and tenants
have their
turn; a choice is the :class:`~goq.delivery.queues.fair_scheduler.MessageTaker` that it asks. It
passes
over what was taken, cancelled, moved away or is damaged, drops what has outlived its time, and
holds back what stands behind its key. A choice changes only places in queues, and what it chose has
to be leased: what it passed is not offered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from goq import limits
from goq.config.topic import Ordering
from goq.delivery.events.event import Cause, Range, Span
from goq.delivery.group.group import Group
from goq.delivery.group.key_locks import HeldMessage, MessageAttributes
from goq.delivery.selection.redelivery import (
    AttributeColumns,
    AttributeReader,
    Redelivery,
    Selection,
)

if TYPE_CHECKING:
    from goq.delivery.partition_state import PartitionState

_FEW_MOVED = 16


class Selector:
    """The messages chosen for one receive."""

    def __init__(
        self,
        state: PartitionState,
        group: Group,
        ordering: Ordering,
        default_lane: int,
        now_ms: int,
        facts_of: AttributeReader,
    ) -> None:
        self._state = state
        self._group = group
        self._ordering = ordering
        self._default_lane = default_lane
        self._now_ms = now_ms
        self._chosen = Selection(facts_of)
        self._outstanding = Redelivery(
            state, group, ordering, default_lane, now_ms, self._chosen, self._room
        )
        self._holds_all = False
        self._passed_by = 0

    @property
    def spans(self) -> list[Span]:
        """What was chosen, in the order in which it is to be handed out."""
        return self._chosen.spans

    @property
    def facts(self) -> dict[int, MessageAttributes]:
        """What has to be known of the fresh messages among it."""
        return self._chosen.facts

    @property
    def skipped(self) -> dict[Cause, list[Range]]:
        """What is not to be handed out any more, by why."""
        return self._chosen.skipped

    @property
    def is_out_of_breath(self) -> bool:
        """Whether it passed by so much that others should have a turn before the next receive."""
        return self._passed_by >= limits.RUNS_PASSED_BY_MAX

    def take(self, messages_max: int) -> None:
        """Choose up to ``messages_max`` messages."""
        group = self._group
        assert group.turns is not None
        self._outstanding.take_up(messages_max)
        group.retries.ripen(self._now_ms)
        left, is_all = messages_max, True
        if self._ordering is Ordering.PARTITION:
            taken, is_all = self._outstanding.take_in_order(left)
            left -= taken
        if is_all:
            left -= group.turns.take(self, self._now_ms, left)
        if self._holds_all:  # what frees the keys of those may be in a lane that had no turn
            for lane in sorted(self.waiting_lanes()):
                left -= self.take_waiting(lane, left)
        self._outstanding.finish()

    # What turns ask

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes in which there are ripe retries, or messages whose key is free."""
        return self._outstanding.lanes()

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Choose retries of a lane, then what was held back behind a key that is free."""
        return self._outstanding.take(lane, messages_max)

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Choose from a run of a ready queue; return how many, and up to where it is dealt with."""
        if start >= self._group.taken.ceiling:
            return 0, self._pass_by(start, end)
        if end == start + 1 and not self._state.moved:
            return self._take_one(lane, tenant, start, messages_max)
        left = messages_max
        for run_start, run_end in self._state.deliverable(self._group, start, end):
            at = run_start
            while at < run_end:
                if left <= 0 or self.is_full():
                    return messages_max - left, at
                stop = min(run_end, at + left)
                if self._state.moved:
                    stop = self._until_moved(lane, at, stop)
                    if stop == at:
                        at += 1
                        continue
                facts = self._chosen.facts_of(at, stop)
                if facts is None:
                    return messages_max - left, at
                if facts.is_gone:
                    at = self._pass_gone(at, min(facts.end, run_end))
                elif facts.is_readable:
                    count, at = self._fresh(lane, tenant, at, facts)
                    left -= count
                else:
                    at = facts.end
        return messages_max - left, end

    def _pass_by(self, start: int, end: int) -> int:
        """Pass by a run behind the group's end; return how far, for there may be millions."""
        if self.is_out_of_breath:
            return start
        self._passed_by += 1
        return end

    def _take_one(self, lane: int, tenant: int, offset: int, messages_max: int) -> tuple[int, int]:
        """Choose a run that is a single message: nearly all are where tenants take turns."""
        if not self._state.is_deliverable(self._group, offset):
            return 0, offset + 1
        if messages_max <= 0 or self.is_full():
            return 0, offset
        facts = self._chosen.facts_of(offset, offset + 1)
        if facts is None:
            return 0, offset
        if facts.is_gone:
            return 0, self._pass_gone(offset, offset + 1)
        if not facts.is_readable:
            return 0, facts.end
        return self._fresh(lane, tenant, offset, facts)

    def is_full(self) -> bool:
        """Whether the receive has enough."""
        return self._chosen.is_full or self._holds_all or self.is_out_of_breath

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant the group has out, these included."""
        return self._group.in_flight.get(tenant, 0) + self._chosen.of_tenant(tenant)

    def _room(self, tenant: int, messages_max: int) -> int:
        assert self._group.turns is not None
        return self._group.turns.room(self, tenant, messages_max)

    def _until_moved(self, lane: int, start: int, end: int) -> int:
        """Return the first offset that stands in the lane's queue and is not to be taken from it.

        It belongs to another lane, or it was moved away and back, and stands there twice.
        """
        moved = self._state.moved
        elsewhere = (
            offset
            for offset in self._moved_within(start, end)
            if moved[offset] != lane or offset in self._chosen.seen
        )
        return next(elsewhere, end)

    def _moved_within(self, start: int, end: int) -> Iterator[int]:
        """Yield the offsets that were moved, in order: as far as asked, one look at each."""
        moved = self._state.moved
        if len(moved) <= _FEW_MOVED:
            return iter(sorted(offset for offset in moved if start <= offset < end))
        return (offset for offset in range(start, end) if offset in moved)

    def _fresh(
        self, lane: int, tenant: int, start: int, facts: AttributeColumns
    ) -> tuple[int, int]:
        """Deal with the messages from ``start`` on that the facts speak of."""
        keys = facts.keys  # whatever the ordering: it may be changed while messages are out
        if keys is None and facts.expires_ms is None and facts.groups is None:
            self._choose(start, facts.end, MessageAttributes(0, lane, tenant))
            return facts.end - start, facts.end
        locks = self._group.locks
        chosen = 0
        for offset in range(start, facts.end):
            index = offset - start
            if facts.groups is not None and facts.groups[index] not in (None, self._group.name):
                self._skip(offset, Cause.OTHER_GROUP)
                continue
            expires_ms = facts.expires_ms[index] if facts.expires_ms is not None else 0
            if expires_ms and expires_ms <= self._now_ms:
                self._skip(offset, Cause.TTL)
                continue
            fact = MessageAttributes(keys[index] if keys is not None else 0, lane, tenant)
            if fact.key and self._ordering is Ordering.KEY and locks.is_behind(fact):
                if locks.held_count >= limits.HELD_MESSAGES_MAX:
                    self._holds_all = True
                    return chosen, offset
                locks.hold(HeldMessage(offset, fact, expires_ms))
                continue
            self._choose(offset, offset + 1, fact)
            chosen += 1
        return chosen, facts.end

    def _pass_gone(self, start: int, end: int) -> int:
        """Count as done what was compacted away; return the end of it."""
        if self._state.moved:
            self._chosen.seen.update(self._moved_within(start, end))
        self._chosen.skip(start, Cause.COMPACTED, end=end)
        return end

    def _skip(self, offset: int, cause: Cause) -> None:
        if self._state.moved:
            self._chosen.seen.update(self._moved_within(offset, offset + 1))
        self._chosen.skip(offset, cause)

    def _choose(self, start: int, end: int, fact: MessageAttributes) -> None:
        if self._state.moved:
            self._chosen.seen.update(self._moved_within(start, end))
        self._chosen.choose(start, end, 1)
        if fact.key or fact.tenant or fact.lane != self._default_lane:
            if end == start + 1:
                self._chosen.facts[start] = fact
            else:
                self._chosen.facts.update(dict.fromkeys(range(start, end), fact))
            self._chosen.count_tenant(fact.tenant, end - start)
