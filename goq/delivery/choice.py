"""What a group gets next: one receive's walk over retries, freed keys and ready queues.

:class:`~goq.delivery.turns.Turns` says in which order lanes and tenants have their turn; a choice
is the :class:`~goq.delivery.turns.Source` that it asks. It passes over what was taken, cancelled,
moved away or is damaged, drops what has outlived its time, and holds back what stands behind its
key. A choice changes only places in queues, and what it chose has to be leased: what it passed is
not offered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from goq import limits
from goq.delivery.events import Cause, Range, Span
from goq.delivery.group import DEFAULT_LANE, Group
from goq.delivery.locks import Fact, Held
from goq.delivery.parts import Part
from goq.settings import Ordering

if TYPE_CHECKING:
    from goq.delivery.partition import PartitionState


class Facts(NamedTuple):
    """What is known of the messages from the offset asked for up to ``end``; None for nothing.

    ``keys`` holds hashes, 0 for none; ``expires_ms`` 0 for never; ``groups`` the one group that a
    message is for, None for all. Messages that are not readable are damaged and passed over.
    """

    end: int
    is_readable: bool = True
    keys: Sequence[int] | None = None
    expires_ms: Sequence[int] | None = None
    groups: Sequence[str | None] | None = None


FactsOf = Callable[[int, int], Facts | None]
"""Facts from one offset on, at most up to another; None where the receive has enough."""


class Choice:
    """The messages chosen for one receive."""

    def __init__(
        self,
        state: PartitionState,
        group: Group,
        ordering: Ordering,
        default_lane: int,
        now_ms: int,
        facts_of: FactsOf,
    ) -> None:
        self.spans: list[Span] = []
        self.facts: dict[int, Fact] = {}
        self.skipped: dict[Cause, list[Range]] = {}
        self._state = state
        self._group = group
        self._ordering = ordering
        self._default_lane = default_lane
        self._now_ms = now_ms
        self._facts_of = facts_of
        self._keys: dict[int, int] = {}  # in this choice, with how many of each had waited
        self._tenants: dict[int, int] = {}
        self._is_full = False

    def take(self, messages_max: int) -> None:
        """Choose up to ``messages_max`` messages."""
        group = self._group
        group.retries.ripen(self._now_ms)
        if self._ordering is Ordering.PARTITION:
            messages_max -= self._take_waiting_in_order(messages_max)
            if messages_max <= 0 or self._is_full or self._leaves_waiting():
                return
        assert group.turns is not None
        group.turns.take(self, self._now_ms, messages_max)

    # What turns ask

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes in which there are ripe retries, or messages whose key is free."""
        if self._ordering is Ordering.PARTITION:
            return ()
        lanes = self._group.retries.ripe_lanes()
        if self._group.locks.held_count:
            lanes += self._group.locks.freed_lanes()
        return {self._default_lane if lane == DEFAULT_LANE else lane for lane in lanes}

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Choose retries of a lane, then what was held back behind a key that is free."""
        lanes = (lane, DEFAULT_LANE) if lane == self._default_lane else (lane,)
        taken = 0
        for each in lanes:
            taken += self._take_retries(each, messages_max - taken)
        for each in lanes:
            taken += self._take_freed(each, messages_max - taken)
        return taken

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Choose from a run of a ready queue; return how many, and up to where it is dealt with."""
        left = messages_max
        for run_start, run_end in self._state.deliverable(self._group, start, end):
            at = run_start
            while at < run_end:
                if left <= 0 or self._is_full:
                    return messages_max - left, at
                stop = min(run_end, at + left)
                if self._state.moved:
                    stop = self._until_moved(lane, at, stop)
                    if stop == at:
                        at += 1
                        continue
                facts = self._facts_of(at, stop)
                if facts is None:
                    self._is_full = True
                    return messages_max - left, at
                if facts.is_readable:
                    chosen, at = self._fresh(lane, tenant, at, facts)
                    left -= chosen
                else:
                    at = facts.end
        return messages_max - left, end

    def is_full(self) -> bool:
        """Whether the receive has enough."""
        return self._is_full

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant the group has out, these included."""
        return self._group.in_flight.get(tenant, 0) + self._tenants.get(tenant, 0)

    # Fresh messages

    def _until_moved(self, lane: int, start: int, end: int) -> int:
        """Return the first offset that stands in the lane's queue and belongs to another."""
        moved = self._state.moved
        among = moved if len(moved) < end - start else range(start, end)
        return min(
            (o for o in among if start <= o < end and moved.get(o, lane) != lane), default=end
        )

    def _fresh(self, lane: int, tenant: int, start: int, facts: Facts) -> tuple[int, int]:
        """Deal with the messages from ``start`` on that the facts speak of."""
        keys = facts.keys if self._ordering is Ordering.KEY else None
        is_default = lane == self._default_lane and not tenant
        if keys is None and facts.expires_ms is None and facts.groups is None:
            if not is_default:
                fact = Fact(0, lane, tenant)
                self.facts.update(dict.fromkeys(range(start, facts.end), fact))
                self._tenants[tenant] = self._tenants.get(tenant, 0) + facts.end - start
            self._choose(start, facts.end, 1)
            return facts.end - start, facts.end
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
            key = keys[index] if keys is not None else 0
            fact = Fact(key, lane, tenant)
            if key and self._is_behind(key):
                if self._group.locks.held_count >= limits.HELD_MESSAGES_MAX:
                    self._is_full = True
                    return chosen, offset
                self._group.locks.hold(Held(offset, fact, expires_ms))
                continue
            if key:
                self._keys.setdefault(key, 0)
            if key or not is_default:
                self._note(offset, fact)
            self._choose(offset, offset + 1, 1)
            chosen += 1
        return chosen, facts.end

    def _is_behind(self, key: int) -> bool:
        """Whether a fresh message has to be held back behind others of its key."""
        locks = self._group.locks
        if key not in self._keys:
            return locks.is_in_hand(key)
        return locks.has_held(key) or len(locks.waiting(key)) > self._keys[key]

    def _note(self, offset: int, fact: Fact) -> None:
        self.facts[offset] = fact
        if fact.tenant:
            self._tenants[fact.tenant] = self._tenants.get(fact.tenant, 0) + 1

    def _choose(self, start: int, end: int, attempt: int) -> None:
        if self.spans:
            first, last, known = self.spans[-1]
            if last == start and known == attempt:
                self.spans[-1] = (first, end, attempt)
                return
        self.spans.append((start, end, attempt))

    def _skip(self, offset: int, cause: Cause) -> None:
        ranges = self.skipped.setdefault(cause, [])
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))

    # Retries

    def _take_retries(self, lane: int, messages_max: int) -> int:
        left = messages_max
        while left > 0 and not self._is_full:
            part = self._group.retries.pop_ripe(lane)
            if part is None:
                break
            fact = self._group.facts.get(part.start)
            if fact is None or not fact.key or self._ordering is not Ordering.KEY:
                left -= self._take_retry(part, left)
            elif self._is_next_of_key(part.start, fact.key):
                chosen = self._take_retry(part, left)
                left -= chosen
                if chosen:
                    self._keys[fact.key] = self._keys.get(fact.key, 0) + 1
        return messages_max - left

    def _is_next_of_key(self, offset: int, key: int) -> bool:
        locks = self._group.locks
        if locks.is_leased(key) and key not in self._keys:
            return False
        waiting, number = locks.waiting(key), self._keys.get(key, 0)
        return number < len(waiting) and waiting[number] == offset

    def _take_retry(self, part: Part, messages_max: int) -> int:
        """Choose as much of a part as there is room for; the rest comes up again."""
        facts = self._facts_of(part.start, min(part.end, part.start + messages_max))
        if facts is None:
            self._is_full = True
            self._group.retries.enter_again(part.start)
            return 0
        if not facts.is_readable:
            return 0
        end = facts.end
        if facts.expires_ms is not None:
            end = self._until_expiry(part.start, facts)
        if end > part.start:
            self._choose(part.start, end, part.attempt + 1)
        if end < part.end:
            self._enter_rest_again(part, end)
        return end - part.start

    def _until_expiry(self, start: int, facts: Facts) -> int:
        """Skip what has outlived its time; return the end of what comes before the first such."""
        assert facts.expires_ms is not None
        end = start
        while end < facts.end and not 0 < facts.expires_ms[end - start] <= self._now_ms:
            end += 1
        gone = end
        while gone < facts.end and 0 < facts.expires_ms[gone - start] <= self._now_ms:
            self._skip(gone, Cause.TTL)
            gone += 1
        return end

    def _enter_rest_again(self, part: Part, end: int) -> None:
        if end == part.start:  # else taking the first of it enters the rest
            self._group.retries.enter_again(part.start)

    def _take_waiting_in_order(self, messages_max: int) -> int:
        left = messages_max
        for part in list(self._group.retries):
            if part.time_ms > self._now_ms or left <= 0 or self._is_full:
                break
            taken = self._take_retry(part, left)
            left -= taken
            if taken < part.end - part.start:
                break
        return messages_max - left

    def _leaves_waiting(self) -> bool:
        chosen = sum(end - start for start, end, attempt in self.spans if attempt > 1)
        skipped = sum(end - start for r in self.skipped.values() for start, end in r)
        return chosen + skipped < self._group.retries.message_count

    # What was held back

    def _take_freed(self, lane: int, messages_max: int) -> int:
        locks = self._group.locks
        left = messages_max
        while left > 0 and not self._is_full:
            held = locks.pop_freed(lane)
            while held is not None:
                taken, is_dealt_with = self._take_held(held)
                left -= taken
                if not is_dealt_with:
                    locks.put_back(held)
                    return messages_max - left
                if left <= 0:
                    locks.free(held.fact.key)
                    return messages_max - left
                held = locks.pop_next(held.fact.key, lane)
            else:
                if not any(True for each in locks.freed_lanes() if each == lane):
                    break
        return messages_max - left

    def _take_held(self, held: Held) -> tuple[int, bool]:
        """Choose a message that was held back; return how many, and whether it is dealt with."""
        offset, fact, expires_ms = held
        if self._state.moved.get(offset, fact.lane) != fact.lane:
            return 0, True
        if not any(True for _ in self._state.deliverable(self._group, offset, offset + 1)):
            return 0, True
        if expires_ms and expires_ms <= self._now_ms:
            self._skip(offset, Cause.TTL)
            return 0, True
        facts = self._facts_of(offset, offset + 1)
        if facts is None:
            self._is_full = True
            return 0, False
        if not facts.is_readable:
            return 0, True
        self._keys.setdefault(fact.key, 0)
        self._note(offset, fact)
        self._choose(offset, offset + 1, 1)
        return 1, True
