"""What a receive takes that is not fresh: ripe retries, and what was held back behind its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from goq.config.topic import Ordering
from goq.delivery.events.event import Cause, Range, Span
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.group import DEFAULT_LANE, Group
from goq.delivery.group.key_locks import HeldMessage, MessageAttributes

if TYPE_CHECKING:
    from goq.delivery.partition_state import PartitionState


class AttributeColumns(NamedTuple):
    """What is known of the messages from the offset asked for up to ``end``; None for nothing.

    ``keys`` holds hashes, 0 for none; ``expires_ms`` 0 for never; ``groups`` the one group that a
    message is for, None for all. Messages that are not readable are damaged and passed over. With
    ``is_gone`` they were compacted away: all up to ``end``, maybe further than was asked.
    """

    end: int
    is_readable: bool = True
    keys: Sequence[int] | None = None
    expires_ms: Sequence[int] | None = None
    groups: Sequence[str | None] | None = None
    is_gone: bool = False


AttributeReader = Callable[[int, int], AttributeColumns | None]
"""AttributeColumns from one offset on, at most up to another; None where the receive has enough."""


class Selection:
    """Messages that are about to be leased, and those that are done without having been."""

    def __init__(self, facts_of: AttributeReader) -> None:
        self.spans: list[Span] = []
        self.facts: dict[int, MessageAttributes] = {}
        self.skipped: dict[Cause, list[Range]] = {}
        self.is_full = False
        """Whether the receive has enough, whatever was asked for."""
        self.seen: set[int] = set()
        """What was chosen or skipped of the messages that may stand in a queue twice."""
        self._facts_of = facts_of
        self._tenants: dict[int, int] = {}

    def facts_of(self, start: int, end: int) -> AttributeColumns | None:
        """Return facts, or None when the receive is full."""
        facts = self._facts_of(start, end)
        self.is_full |= facts is None
        return facts

    def choose(self, start: int, end: int, attempt: int) -> None:
        """Choose messages."""
        if self.spans:
            first, last, known = self.spans[-1]
            if last == start and known == attempt:
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
        """Count messages of a tenant as out."""
        if tenant:
            self._tenants[tenant] = self._tenants.get(tenant, 0) + count

    def of_tenant(self, tenant: int) -> int:
        """Return how many messages of a tenant were chosen."""
        return self._tenants.get(tenant, 0)


_UNKNOWN = MessageAttributes(0, DEFAULT_LANE, 0)


class Redelivery:
    """A choice's walk over retries and freed keys.

    ``room`` says how many of so many messages a tenant may have more.
    """

    def __init__(
        self,
        state: PartitionState,
        group: Group,
        ordering: Ordering,
        default_lane: int,
        now_ms: int,
        chosen: Selection,
        room: Callable[[int, int], int],
    ) -> None:
        self._state = state
        self._group = group
        self._ordering = ordering
        self._default_lane = default_lane
        self._now_ms = now_ms
        self._chosen = chosen
        self._room = room
        self._passed: dict[tuple[int, int], int] = {}  # key and lane: how many had waited
        self._rests: dict[int, AttemptRange] = {}  # by lane what there was no room for so far
        self._untouched: list[int] = []

    def lanes(self) -> set[int]:
        """Return the lanes in which there are ripe retries, or messages whose key is free."""
        in_order = self._ordering is Ordering.PARTITION
        lanes = [] if in_order else self._group.retries.ripe_lanes()
        if self._group.locks.held_count:
            lanes += self._group.locks.freed_lanes()
        return {self._default_lane if lane == DEFAULT_LANE else lane for lane in lanes}

    def take_up(self, messages_max: int) -> None:
        """Take up again what was put aside because of a tenant that has room now."""
        group = self._group

        def retry(_tenant: int, offset: int) -> bool:
            group.retries.enter_again(offset)
            return group.retries.is_due(offset, self._now_ms) and self._is_next_of_key(
                offset, group.facts.get(offset, _UNKNOWN)
            )

        def free(tenant: int, key: int) -> bool:
            group.locks.free(key)
            return group.locks.is_for(key, tenant)

        group.capped.take_up(lambda tenant: self._room(tenant, messages_max), retry, free)

    def take(self, lane: int, messages_max: int) -> int:
        """Choose retries of a lane, then what was held back behind a key that is free."""
        taken = 0
        if self._ordering is not Ordering.PARTITION:
            taken = self._take_retries(lane, messages_max)
        return taken + self._take_freed(lane, messages_max - taken)

    def take_in_order(self, messages_max: int) -> tuple[int, bool]:
        """Choose what waits in order of offset; return how many, and whether it is all."""
        left = messages_max
        for part in list(self._group.retries):
            tenant = self._group.facts.get(part.start, _UNKNOWN).tenant
            room = self._room(tenant, left)
            if part.time_ms > self._now_ms or room <= 0 or self._chosen.is_full:
                return messages_max - left, False
            taken, reached = self._take_retry(part, room)
            self._chosen.count_tenant(tenant, taken)
            left -= taken
            if reached < part.end:
                return messages_max - left, False
        return messages_max - left, True

    def finish(self) -> None:
        """Let what came up and was not touched come up again."""
        for offset in self._untouched:
            self._group.retries.enter_again(offset)

    # Retries

    def _take_retries(self, lane: int, messages_max: int) -> int:
        lanes = (lane, DEFAULT_LANE) if lane == self._default_lane else (lane,)
        left = messages_max
        while left > 0 and not self._chosen.is_full:
            part = self._rests.pop(lane, None) or self._group.retries.pop_ripe(lanes)
            if part is None:
                break
            fact = self._group.facts.get(part.start, _UNKNOWN)
            if not self._is_next_of_key(part.start, fact):
                continue
            room = self._room(fact.tenant, left)
            if room <= 0:
                self._group.capped.put_retry(fact.tenant, part.start)
                continue
            taken, reached = self._take_retry(part, room)
            self._chosen.count_tenant(fact.tenant, taken)
            left -= taken
            if reached < part.end:
                self._rests[lane] = part._replace(start=reached)
            if fact.key and reached == part.end and self._group.retries.has(part.start):
                place = (fact.key, fact.lane)
                self._passed[place] = self._passed.get(place, 0) + 1
        return messages_max - left

    def _is_next_of_key(self, offset: int, fact: MessageAttributes) -> bool:
        """Whether a retry need not wait for others of its key."""
        locks = self._group.locks
        if not fact.key or self._ordering is not Ordering.KEY:
            return True
        if locks.is_leased(fact.key):
            return False
        waiting = locks.waiting(fact.key, fact.lane)
        number = self._passed.get((fact.key, fact.lane), 0)
        return number < len(waiting) and waiting[number] == offset

    def _take_retry(self, part: AttemptRange, messages_max: int) -> tuple[int, int]:
        """Choose as much of a part as there is room for; return how many, and up to where.

        What is left of it comes up again when what was chosen of it is leased.
        """
        at, left = part.start, messages_max
        while at < part.end and left > 0:
            facts = self._chosen.facts_of(at, min(part.end, at + left))
            if facts is None:
                break
            end = min(facts.end, part.end)
            if facts.is_gone:
                self._chosen.skip(at, Cause.COMPACTED, end=end)
            elif facts.is_readable:
                left -= self._choose_readable(part, at, facts)
            at = end
        if at == part.start:
            self._untouched.append(at)
        return messages_max - left, at

    def _choose_readable(self, part: AttemptRange, start: int, facts: AttributeColumns) -> int:
        if facts.expires_ms is None:
            self._chosen.choose(start, facts.end, part.attempt + 1)
            return facts.end - start
        count = 0
        for offset, expires_ms in zip(range(start, facts.end), facts.expires_ms, strict=False):
            if 0 < expires_ms <= self._now_ms:
                self._chosen.skip(offset, Cause.TTL)
            else:
                self._chosen.choose(offset, offset + 1, part.attempt + 1)
                count += 1
        return count

    # What was held back

    def _take_freed(self, lane: int, messages_max: int) -> int:
        locks = self._group.locks
        left = messages_max
        while left > 0 and not self._chosen.is_full:
            held = locks.pop_freed(lane)
            if held is None:
                break
            while held is not None and (taken := self._take_held(held, left > 0)) is not None:
                left -= taken
                held = locks.pop_next(held.fact.key, lane)
        return messages_max - left

    def _take_held(self, held: HeldMessage, has_room: bool) -> int | None:
        """Deal with a message that was held back; return how many are chosen, None if it stays."""
        offset, fact, expires_ms = held
        if not self._is_to_be_had(held):
            return 0
        if expires_ms and expires_ms <= self._now_ms:
            self._chosen.seen.add(offset)
            self._chosen.skip(offset, Cause.TTL)
            return 0
        if has_room and self._room(fact.tenant, 1) <= 0:
            self._group.locks.put_back(held)
            self._group.capped.put_key(fact.tenant, fact.key)
            return None
        facts = self._chosen.facts_of(offset, offset + 1) if has_room else None
        if facts is None:
            self._group.locks.put_back(held)
            self._group.locks.free(fact.key)
            return None
        if facts.is_gone:
            self._chosen.seen.add(offset)
            self._chosen.skip(offset, Cause.COMPACTED)
            return 0
        if not facts.is_readable:
            return 0
        self._chosen.seen.add(offset)
        self._chosen.facts[offset] = fact
        self._chosen.count_tenant(fact.tenant, 1)
        self._chosen.choose(offset, offset + 1, 1)
        return 1

    def _is_to_be_had(self, held: HeldMessage) -> bool:
        offset, fact, _ = held
        if self._state.moved.get(offset, fact.lane) != fact.lane or offset in self._chosen.seen:
            return False
        return self._state.is_deliverable(self._group, offset)
