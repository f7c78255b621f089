"""The part of a receive that is not fresh: due retries, and messages released from their key.

A consumer that hangs lets every lease expire. So that no message spends its attempts there, a due
retry passes such consumers over (:class:`RetryRule`).

:class:`Selection` collects what a receive takes, here and from the ready queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from goq import limits
from goq.config.topic import Ordering
from goq.delivery.events.event import Cause, Range, Span
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.group import DEFAULT_LANE, Group
from goq.delivery.group.key_locks import HeldMessage, MessageAttributes
from goq.delivery.queues.fair_scheduler import FairScheduler

if TYPE_CHECKING:
    from goq.delivery.partition_state import PartitionState

_UNKNOWN = MessageAttributes(0, DEFAULT_LANE, 0)
_PASSED_OVER_MAX = 100  # by one receive, so that it has time for others
_RETRY_STEPS = 4  # a retry that is selected and leased takes as long as so many fresh messages


class RetryRule(NamedTuple):
    """The due retries that a consumer may take.

    A *silent* consumer let a lease expire and has shown no life since. It takes none. Another takes
    those that it let expire itself only if no others wait for messages.
    """

    consumer: str = ""
    is_silent: bool = False
    others_wait: Callable[[], bool] = lambda: False


class AttributeColumns(NamedTuple):
    """The attributes of the messages from the offset asked for up to ``end``; None for all empty.

    ``keys`` holds hashes, 0 for none; ``expires_ms`` 0 for never; ``groups`` the one group that a
    message is for, None for all. Messages that are not readable are damaged and passed over. With
    ``is_gone`` compaction removed them: all up to ``end``, which may be further than was asked.
    """

    end: int
    is_readable: bool = True
    keys: Sequence[int] | None = None
    expires_ms: Sequence[int] | None = None
    groups: Sequence[str | None] | None = None
    is_gone: bool = False


AttributeReader = Callable[[int, int], AttributeColumns | None]
"""Reads attributes from one offset on, at most up to another; None when the receive is full."""


SingleReader = Callable[[int], tuple[int, int] | None]
"""Reads the hash of the key and the expiry of one message, 0 for none; None where an
:data:`AttributeReader` has to be asked: the message is not in memory, has other attributes, or the
receive is full.
"""


class Selection:
    """The messages that are about to be leased, and those that are done without a lease."""

    def __init__(self, read_attributes: AttributeReader) -> None:
        self.spans: list[Span] = []
        self.attributes: dict[int, MessageAttributes] = {}
        self.skipped: dict[Cause, list[Range]] = {}
        self.steps = 0
        """The reads, and the messages that were decided on one by one."""
        self.seen: set[int] = set()
        """The selected and skipped messages that may be in a queue twice."""
        self._has_no_room = False
        self._read_attributes = read_attributes
        self._tenants: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the receive selects no more messages now."""
        return self._has_no_room or self.steps >= limits.SELECTION_STEPS_MAX

    def read(self, start: int, end: int) -> AttributeColumns | None:
        """Return attributes, or None when the receive is full."""
        self.steps += 1
        columns = self._read_attributes(start, end)
        self._has_no_room |= columns is None
        return columns

    def select(self, start: int, end: int, attempt: int) -> None:
        """Add messages to those that are about to be leased."""
        if self.spans:
            first, last, last_attempt = self.spans[-1]
            if last == start and last_attempt == attempt:
                self.spans[-1] = (first, end, attempt)
                return
        self.spans.append((start, end, attempt))

    def skip(self, offset: int, cause: Cause, *, end: int | None = None) -> None:
        """Count a message as done, or all from it up to ``end``."""
        end = offset + 1 if end is None else end
        ranges = self.skipped.setdefault(cause, [])
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((offset, end))

    def count_tenant(self, tenant: int, count: int) -> None:
        """Count messages of a tenant as in flight."""
        if tenant:
            self._tenants[tenant] = self._tenants.get(tenant, 0) + count

    def tenant_count(self, tenant: int) -> int:
        """Return how many messages of a tenant are selected."""
        return self._tenants.get(tenant, 0)


class Redelivery:
    """One receive's walk over due retries and unlocked keys.

    The selector has it, and not the other way round: a cycle of references at each receive would
    stay until the next collection of garbage, which holds up all requests.
    """

    def __init__(
        self,
        state: PartitionState,
        group: Group,
        ordering: Ordering,
        default_lane: int,
        now_ms: int,
        selection: Selection,
        rule: RetryRule,
    ) -> None:
        self._state = state
        self._group = group
        self._ordering = ordering
        self._default_lane = default_lane
        self._now_ms = now_ms
        self._selection = selection
        self._selected: dict[tuple[int, int], int] = {}  # retries by key and lane
        self._rests: dict[int, AttemptRange] = {}  # by lane: what there was no room for so far
        self._untouched: list[int] = []
        self._passed_over_keys: set[int] = set()
        self._rule = rule
        self._others_wait: bool | None = None
        self.passed_over_count = 0
        """The due retries that are left to other consumers, at least."""
        self.has_unlocked = False
        """Whether a skipped retry had locked its key: it does so until the skip is recorded."""

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant the group has in flight, the selected included."""
        return self._group.in_flight.get(tenant, 0) + self._selection.tenant_count(tenant)

    def _room(self, tenant: int, messages_max: int) -> int:
        scheduler = self._group.scheduler
        assert isinstance(scheduler, FairScheduler)
        return scheduler.room(self, tenant, messages_max)

    def lanes(self) -> set[int]:
        """Return the lanes that have due retries or held messages of an unlocked key."""
        in_order = self._ordering is Ordering.PARTITION
        lanes = [] if in_order else self._group.retries.due_lanes()
        if lanes and self._rule.is_silent:
            self.passed_over_count += 1
            lanes = []
        if self._group.locks.held_count:
            lanes += self._group.locks.free_lanes()
        return {self._default_lane if lane == DEFAULT_LANE else lane for lane in lanes}

    def resume_parked(self, messages_max: int) -> None:
        """Resume deliveries that were parked because of a tenant that has room now."""
        group = self._group
        if not group.tenant_cap.freed:
            return

        def resume_retry(_tenant: int, offset: int) -> bool:
            group.retries.requeue(offset)
            attributes = group.attributes.get(offset, _UNKNOWN)
            if not group.retries.is_due(offset, self._now_ms):
                return False
            if not self._is_next_of_key(offset, attributes):
                return False
            if attributes.key:  # later retries of its key were passed over while it was parked
                for waiting in group.locks.retries(attributes.key, attributes.lane):
                    group.retries.requeue(waiting)
            return True

        def resume_key(tenant: int, key: int) -> bool:
            group.locks.unlock(key)
            return group.locks.is_next_of_tenant(key, tenant)

        group.tenant_cap.resume(
            lambda tenant: self._room(tenant, messages_max), resume_retry, resume_key
        )

    def take(self, lane: int, messages_max: int) -> int:
        """Select retries of a lane, then held messages of an unlocked key; return how many."""
        taken = 0
        if self._ordering is not Ordering.PARTITION and not self._rule.is_silent:
            taken = self._take_retries(lane, messages_max)
        return taken + self._take_held(lane, messages_max - taken)

    def take_in_order(self, messages_max: int) -> tuple[int, bool]:
        """Select retries in order of offset; return how many, and whether these are all."""
        left = messages_max
        for part in list(self._group.retries):
            tenant = self._group.attributes.get(part.start, _UNKNOWN).tenant
            room = self._room(tenant, left)
            if part.time_ms > self._now_ms or room <= 0 or self._selection.is_full:
                return messages_max - left, False
            if self._is_for_others(part):
                self.passed_over_count += 1
                return messages_max - left, False
            taken, reached = self._take_retry(part, room)
            self._selection.count_tenant(tenant, taken)
            left -= taken
            if reached < part.end:
                return messages_max - left, False
        return messages_max - left, True

    def finish(self) -> None:
        """Requeue retries that came up and were not touched, and those of their key behind them."""
        for offset in self._untouched:
            self._group.retries.requeue(offset)
        for key in self._passed_over_keys:
            for offset in self._group.locks.all_retries(key):
                self._group.retries.requeue(offset)

    # Retries

    def _take_retries(self, lane: int, messages_max: int) -> int:
        lanes = (lane, DEFAULT_LANE) if lane == self._default_lane else (lane,)
        left = messages_max
        while (
            left > 0 and not self._selection.is_full and self.passed_over_count < _PASSED_OVER_MAX
        ):
            part = self._rests.pop(lane, None) or self._group.retries.pop_due(lanes)
            if part is None:
                break
            attributes = self._group.attributes.get(part.start, _UNKNOWN)
            if not self._is_next_of_key(part.start, attributes):
                continue
            if self._is_for_others(part):
                self.passed_over_count += 1
                self._untouched.append(part.start)
                if attributes.key:
                    self._passed_over_keys.add(attributes.key)
                continue
            room = self._room(attributes.tenant, left)
            if room <= 0:
                self._group.tenant_cap.park_retry(attributes.tenant, part.start)
                continue
            taken, reached = self._take_retry(part, room)
            self._selection.count_tenant(attributes.tenant, taken)
            left -= taken
            if attributes.key and self._ordering is Ordering.KEY and taken < reached - part.start:
                self.has_unlocked = True
            if reached < part.end:
                self._rests[lane] = part._replace(start=reached)
            if attributes.key and reached == part.end and self._group.retries.has(part.start):
                queue = (attributes.key, attributes.lane)
                self._selected[queue] = self._selected.get(queue, 0) + 1
        return messages_max - left

    def _is_for_others(self, part: AttemptRange) -> bool:
        """Return whether a due retry is left to other consumers."""
        if self._rule.is_silent:
            return True
        last = part.failures[-1] if part.failures else None
        if last is None or (last.cause, last.consumer) != (Cause.EXPIRED, self._rule.consumer):
            return False
        if self._others_wait is None:
            self._others_wait = self._rule.others_wait()
        return self._others_wait

    def _is_next_of_key(self, offset: int, attributes: MessageAttributes) -> bool:
        """Return whether a retry need not wait for others of its key."""
        locks = self._group.locks
        if not attributes.key or self._ordering is not Ordering.KEY:
            return True
        if locks.is_leased(attributes.key):
            return False
        waiting = locks.retries(attributes.key, attributes.lane)
        number = self._selected.get((attributes.key, attributes.lane), 0)
        return number < len(waiting) and waiting[number] == offset

    def _take_retry(self, part: AttemptRange, messages_max: int) -> tuple[int, int]:
        """Select as much of a range as there is room for; return how many, and up to where.

        The rest of it comes up again when the selected messages are leased.
        """
        at, left = part.start, messages_max
        self._selection.steps += _RETRY_STEPS - 1  # the read counts one
        while at < part.end and left > 0:
            columns = self._selection.read(at, min(part.end, at + left))
            if columns is None:
                break
            end = min(columns.end, part.end)
            if columns.is_gone:
                self._selection.skip(at, Cause.COMPACTED, end=end)
            elif columns.is_readable:
                left -= self._select_readable(part, at, columns)
            at = end
        if at == part.start:
            self._untouched.append(at)
        return messages_max - left, at

    def _select_readable(self, part: AttemptRange, start: int, columns: AttributeColumns) -> int:
        if columns.expires_ms is None:
            self._selection.select(start, columns.end, part.attempt + 1)
            return columns.end - start
        count = 0
        for offset, expires_ms in zip(range(start, columns.end), columns.expires_ms, strict=False):
            if 0 < expires_ms <= self._now_ms:
                self._selection.skip(offset, Cause.TTL)
            else:
                self._selection.select(offset, offset + 1, part.attempt + 1)
                count += 1
        return count

    # Held messages

    def _take_held(self, lane: int, messages_max: int) -> int:
        locks = self._group.locks
        left = messages_max
        while left > 0 and not self._selection.is_full:
            held = locks.pop_free(lane)
            if held is None:
                break
            while held is not None:
                has_room = left > 0 and not self._selection.is_full
                taken = self._take_one(held, has_room)
                if taken is None:
                    break
                left -= taken
                held = locks.pop_next(held.attributes.key, lane)
        return messages_max - left

    def _take_one(self, held: HeldMessage, has_room: bool) -> int | None:
        """Deal with a held message; return how many were selected, None if it stays held."""
        offset, attributes, expires_ms = held
        if not self._is_deliverable(held):
            return 0
        if expires_ms and expires_ms <= self._now_ms:
            self._selection.seen.add(offset)
            self._selection.skip(offset, Cause.TTL)
            return 0
        if has_room and self._room(attributes.tenant, 1) <= 0:
            self._group.locks.put_back(held)
            self._group.tenant_cap.park_key(attributes.tenant, attributes.key)
            return None
        columns = self._selection.read(offset, offset + 1) if has_room else None
        if columns is None:
            self._group.locks.put_back(held)
            self._group.locks.unlock(attributes.key)
            return None
        if columns.is_gone:
            self._selection.seen.add(offset)
            self._selection.skip(offset, Cause.COMPACTED)
            return 0
        if not columns.is_readable:
            return 0
        self._selection.seen.add(offset)
        self._selection.attributes[offset] = attributes
        self._selection.count_tenant(attributes.tenant, 1)
        self._selection.select(offset, offset + 1, 1)
        return 1

    def _is_deliverable(self, held: HeldMessage) -> bool:
        offset, lane = held.offset, held.attributes.lane
        if self._state.moved.get(offset, lane) != lane or offset in self._selection.seen:
            return False
        return self._state.is_deliverable(self._group, offset)
