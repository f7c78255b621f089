"""A naive twin of a partition's delivery: what every message is to every group, and sorts.

The twin holds a dictionary from offset to state for each group. It knows no ranges, no floors, no
heaps, no queues and no events. What a receive may return it finds by looking at everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from goq.delivery.events.event import Cause
from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState
from goq.delivery.selection.redelivery import RetryRule
from goq.model import Receipt

FRESH, DONE, CORRUPT = ("fresh",), ("done",), ("corrupt",)
State = tuple[Any, ...]
"""``("leased", attempt, deadline_ms, failures, token)``, ``("retry", attempt, due_ms, failures)``
or one of the above."""


class Message(NamedTuple):
    """What was published; a key of 0 and times of 0 are none."""

    lane: int
    tenant: str | None = None
    key: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    only_group: str | None = None


@dataclass
class Twin:
    start: int = 0
    messages: list[Message] = field(default_factory=list)
    corrupt: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    """Compaction removed them; a group is done with one once it comes to it."""
    cancelled: set[int] = field(default_factory=set)
    lanes: dict[int, int] = field(default_factory=dict)
    """Of the messages that were moved."""
    waiting: dict[int, int] = field(default_factory=dict)
    """When each message is due that has not matured."""
    ranks: dict[int, int | None] = field(default_factory=dict)
    """In which order messages became ready in their lane; None where it is not determined."""
    groups: dict[str, dict[int, State]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """Of the groups that have one: from there on they get nothing."""

    @property
    def end(self) -> int:
        return len(self.messages)

    def states(self, group: str) -> dict[int, State]:
        return self.groups.setdefault(group, {})

    def state_of(self, group: str, offset: int) -> State:
        if offset in self.corrupt:
            return CORRUPT
        is_behind = offset >= self.ends.get(group, offset + 1)
        default = DONE if is_behind or offset in self.cancelled else FRESH
        return self.groups.get(group, {}).get(offset, default)

    def view(self, group: str) -> dict[int, State]:
        return {o: self.state_of(group, o) for o in range(self.start, self.end)}

    def lane(self, offset: int) -> int:
        return self.lanes.get(offset, self.messages[offset].lane)

    def become_ready(self, offset: int) -> None:
        self.ranks[offset] = 1 + max((r for r in self.ranks.values() if r is not None), default=0)

    def rank_by_offset(self) -> None:
        """What is rebuilt stands in order of offset."""
        self.ranks = {o: o + 1 for o in range(self.start, self.end)}

    def outstanding(self, group: str, kind: str) -> dict[int, State]:
        states = sorted(self.groups.get(group, {}).items())
        return {o: s for o, s in states if s[0] == kind and o not in self.corrupt}

    def is_expired(self, offset: int, now_ms: int) -> bool:
        return 0 < self.messages[offset].expires_ms <= now_ms

    def is_passed(self, offset: int, now_ms: int) -> bool:
        """Return whether a message is not handed out any more."""
        return offset in self.gone or self.is_expired(offset, now_ms)

    def due(self, group: str, now_ms: int) -> dict[int, int]:
        """Return what a group could be handed but for keys and caps, and which attempt it is."""
        found = {}
        for offset, state in self.view(group).items():
            only = self.messages[offset].only_group
            if offset in self.waiting or self.is_passed(offset, now_ms):
                continue
            if state == FRESH and only in (None, group):
                found[offset] = 1
            elif state[0] == "retry" and state[2] <= now_ms:
                found[offset] = state[1] + 1
        return found

    def for_others(self, group: str, rule: RetryRule) -> set[int]:
        """Return the retries that a consumer leaves to others."""
        last = {o: (s[3] or (None,))[-1] for o, s in self.outstanding(group, "retry").items()}
        return {
            offset
            for offset, failure in last.items()
            if rule.is_silent
            or (
                rule.others_wait()
                and failure is not None
                and failure[1:3] == (rule.consumer, Cause.EXPIRED)
            )
        }

    def in_order(self, group: str, now_ms: int) -> list[int]:
        """Return all that a group is handed if each message is handed in order of readiness."""
        due = self.due(group, now_ms)
        retries = self.outstanding(group, "retry")
        return sorted(
            due,
            key=lambda o: (
                self.lane(o),
                o not in retries,
                retries[o][2] if o in retries else self.ranks[o] or 0,
                o,
            ),
        )

    def in_partition_order(self, group: str, now_ms: int) -> list[int]:
        """Return what a group gets that waits for each retry before it goes on."""
        found = []
        for offset, state in self.outstanding(group, "retry").items():
            if state[2] > now_ms:
                return found
            if self.is_passed(offset, now_ms):
                continue
            found.append(offset)
        return found + [o for o in self.in_order(group, now_ms) if o not in found]

    def by_key(self, group: str, now_ms: int) -> list[int]:
        """Return what a group gets that hands no key out twice."""
        leased = {self.messages[o].key for o in self.outstanding(group, "leased")}
        retries = self.outstanding(group, "retry")
        found: list[int] = []
        for offset in self.in_order(group, now_ms):
            key = self.messages[offset].key
            same = [o for o in retries if self.messages[o].key == key]
            if offset in retries:
                same = [o for o in same if o not in found and o < offset]
                same = [o for o in same if self.lane(o) == self.lane(offset)]
            if not key or not (key in leased or same):
                found.append(offset)
        return found

    def held(self, group: str, token: int, offset: int) -> bool:
        state = self.groups.get(group, {}).get(offset, FRESH)
        return state[0] == "leased" and state[4] == token

    def settle(
        self, group: str, receipts: list[Receipt]
    ) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Return the token of each message settled, and the runs that are lost."""
        settled: dict[int, int] = {}
        lost: list[tuple[int, int, int]] = []
        for receipt in receipts:
            run: list[int] = []
            for offset in range(receipt.start, receipt.end + 1):
                if offset < receipt.end and not self.held(group, receipt.token, offset):
                    run.append(offset)
                    continue
                if run:
                    lost.append((receipt.token, run[0], run[-1] + 1))
                    run = []
                if offset < receipt.end:
                    settled[offset] = receipt.token
        return settled, lost

    def cancel(self, offset: int) -> None:
        self.cancelled.add(offset)
        self.waiting.pop(offset, None)
        for states in self.groups.values():
            if states.get(offset, FRESH)[0] != "leased":
                states[offset] = DONE

    def forget(self, offsets: set[int]) -> None:
        """No group has these out any more."""
        for states in self.groups.values():
            for offset in offsets & states.keys():
                states[offset] = DONE

    def cut(self, start: int, end: int) -> None:
        """The messages before ``start`` and from ``end`` on are gone."""
        self.start = start
        del self.messages[end:]
        known: list[Any] = [self.lanes, self.waiting, self.ranks, *self.groups.values()]
        for mapping in known:
            for offset in [o for o in mapping if not start <= o < end]:
                del mapping[offset]
        self.ends = {name: min(each, end) for name, each in self.ends.items()}
        self.corrupt = {o for o in self.corrupt if start <= o < end}
        self.cancelled = {o for o in self.cancelled if start <= o < end}


def expanded(state: PartitionState, name: str) -> dict[int, State]:
    """Return the state of every message of a group, as the twin has it."""
    group = state.group(name)
    present = group.taken.present(state.start_offset, state.end_offset)
    taken = {o for run in present for o in range(*run)}
    states: dict[int, State] = {}
    for offset in range(state.start_offset, state.end_offset):
        states[offset] = DONE if offset in taken else FRESH
    for token, part, offset in _outstanding(group):
        assert states.get(offset) == DONE, (offset, states.get(offset))
        kind = "retry" if token is None else "leased"
        failures = tuple(tuple(failure) for failure in part.failures)
        tail = () if token is None else (token,)
        states[offset] = (kind, part.attempt, part.time_ms, failures, *tail)
    for start, end in state.corrupt:
        for offset in range(max(start, state.start_offset), min(end, state.end_offset)):
            assert states[offset] in (DONE, FRESH), (offset, states[offset])
            states[offset] = CORRUPT
    return states


def _outstanding(group: Group) -> Iterator[tuple[int | None, Any, int]]:
    for token, lease in group.leases.items():
        for part in lease.parts:
            yield from ((token, part, offset) for offset in range(part.start, part.end))
    for part in group.retries:
        yield from ((None, part, offset) for offset in range(part.start, part.end))


def check_sound(state: PartitionState) -> dict[str, dict[int, State]]:
    """Assert what holds of every state: sorted, disjoint, counted, nobody leased twice.

    Returns the state of every message, by group.
    """
    states = {}
    assert all(a.end < b.start for a, b in pairwise(state.corrupt))
    for name, group in state.groups.items():
        states[name] = expanded(state, name)  # asserts that nothing is outstanding twice
        for parts in [group.retries, *(lease.parts for lease in group.leases.values())]:
            listed = list(parts)
            assert all(p.start < p.end for p in listed)
            assert all(a.end <= b.start for a, b in pairwise(listed))
            assert parts.message_count == sum(p.end - p.start for p in listed)
        assert all(lease.parts for lease in group.leases.values())
        assert group.leased_count == sum(x.parts.message_count for x in group.leases.values())
        _check_derived(group)
    return states


def _check_derived(group: Group) -> None:
    """Assert that locks and counts are those of the outstanding, and nothing else is known."""
    leased: dict[int, int] = {}
    waiting: dict[tuple[int, int], list[int]] = {}
    in_flight: dict[int, int] = {}
    offsets = set()
    for token, _, offset in _outstanding(group):
        offsets.add(offset)
        fact = group.attributes.get(offset)
        if fact is None:
            continue
        if token is not None:
            in_flight[fact.tenant] = in_flight.get(fact.tenant, 0) + 1
            leased[fact.key] = leased.get(fact.key, 0) + 1
        else:
            waiting.setdefault((fact.key, fact.lane), []).append(offset)
    assert group.attributes.keys() <= offsets
    assert group.in_flight == {tenant: n for tenant, n in in_flight.items() if tenant}
    assert group.locks._leased == {key: n for key, n in leased.items() if key}
    known = {
        (k, n): found for k, lanes in group.locks._retries.items() for n, found in lanes.items()
    }
    assert known == {place: sorted(found) for place, found in waiting.items() if place[0]}


def canonical(state: PartitionState) -> Any:
    """Return all that a state says, in a form that two equal states share."""
    start, end = state.start_offset, state.end_offset
    groups = {}
    for name, group in state.groups.items():
        consumers = {token: lease.member for token, lease in group.leases.items()}
        end_offset, dead = group.end_offset, group.dead_count
        groups[name] = (consumers, end_offset, expanded(state, name), dead)
    untouched = ({}, None, expanded(state, "-"), 0)
    outbox = state.outbox
    return (
        (start, end, [(r.start, r.end) for r in state.corrupt]),
        {name: found for name, found in groups.items() if found != untouched},
        {o for run in state.cancelled.present(start, end) for o in range(*run)},
        (state.moved, state.rescheduled),
        (state.maturity.pairs, sorted(state.maturity.exempt)),
        (outbox.producer_id, sorted(outbox.sequences()), _plain(outbox.entries)),
        state.producers.snapshot(),
        list(state.producer_names.items()),
    )


def _plain(departures: dict[int, Any]) -> dict[int, Any]:
    return {
        number: (
            departure.first_sequence,
            departure.event,
            {
                offset: tuple(map(tuple, failures))
                for start, end, failures in departure.histories
                for offset in range(start, end)
            },
        )
        for number, departure in departures.items()
    }


def skipped(damaged: PartitionState, true: PartitionState) -> dict[str, list[int]]:
    """Return what the damaged state takes for done and the true one does not, by group."""
    found = {}
    for name in damaged.groups:
        truth = expanded(true, name)
        states = expanded(damaged, name).items()
        fine = (DONE, CORRUPT)
        done = [o for o, s in states if s == DONE and o not in true.cancelled]
        found[name] = [o for o in done if truth.get(o, FRESH) not in fine]
    return found


def heap_sizes(group: Group) -> int:
    """Return how many entries a group keeps in all its heaps and lists."""
    retries = group.retries
    return (
        len(group._deadlines._heap)
        + len(retries._waiting)
        + sum(map(len, retries._due.values()))
        + len(retries)
        + sum(len(lease.parts) for lease in group.leases.values())
    )
