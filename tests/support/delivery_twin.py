"""A naive twin of a partition's delivery state, and a pair that runs both and compares.

The twin holds a dictionary from offset to state for each group, and sorts. It knows no ranges,
no cursor, no heaps and no events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from goq.delivery.events import (
    AnyEvent,
    Corrupted,
    Expired,
    GroupDeleted,
    Leased,
    Reset,
    Trimmed,
    Truncated,
    decode_events,
    encode_events,
    token_of,
)
from goq.delivery.group import Group
from goq.delivery.partition import PartitionState, Settled
from goq.model import Receipt

FRESH, DONE, CORRUPT = ("fresh",), ("done",), ("corrupt",)
State = tuple[Any, ...]


@dataclass
class Twin:
    start: int = 0
    end: int = 0
    corrupt: set[int] = field(default_factory=set)
    groups: dict[str, dict[int, State]] = field(default_factory=dict)

    def states(self, group: str) -> dict[int, State]:
        return self.groups.setdefault(group, {})

    def state_of(self, group: str, offset: int) -> State:
        if offset in self.corrupt:
            return CORRUPT
        return self.groups.get(group, {}).get(offset, FRESH)

    def view(self) -> dict[str, dict[int, State]]:
        offsets = range(self.start, self.end)
        return {name: {o: self.state_of(name, o) for o in offsets} for name in self.groups}

    def candidates(self, group: str, now_ms: int, messages_max: int) -> list[tuple[int, int]]:
        states = {o: self.state_of(group, o) for o in range(self.start, self.end)}
        due = sorted((s[2], o, s[1] + 1) for o, s in states.items() if s[0] == "retry")
        fresh = [(o, 1) for o, s in states.items() if s == FRESH]
        ready = [(o, attempt) for time_ms, o, attempt in due if time_ms <= now_ms] + fresh
        return ready[:messages_max]

    def held(self, group: str, token: int, offset: int) -> bool:
        state = self.groups.get(group, {}).get(offset, FRESH)
        return state[0] == "leased" and state[1] == token

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

    def outstanding(self, group: str, kind: str) -> dict[int, State]:
        return {o: s for o, s in self.groups.get(group, {}).items() if s[0] == kind}

    def forget_outstanding(self, offsets: set[int]) -> None:
        for states in self.groups.values():
            for offset in offsets & states.keys():
                states[offset] = DONE

    def cut(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.corrupt = {o for o in self.corrupt if start <= o < end}
        for states in self.groups.values():
            for offset in [o for o in states if not start <= o < end]:
                del states[offset]


def expanded(state: PartitionState, name: str) -> dict[int, State]:
    """Return the state of every message of a group, as the twin has it."""
    group = state.groups[name]
    states: dict[int, State] = {}
    for offset in range(state.start_offset, state.end_offset):
        states[offset] = DONE if offset < group.cursor else FRESH
    for token, lease in group.leases.items():
        for part in lease.parts:
            for offset in range(part.start, part.end):
                assert states.get(offset) == DONE, (offset, states.get(offset))
                states[offset] = ("leased", token, part.attempt, part.time_ms)
    for part in group.retries:
        for offset in range(part.start, part.end):
            assert states.get(offset) == DONE, (offset, states.get(offset))
            states[offset] = ("retry", part.attempt, part.time_ms)
    for start, end in state.corrupt:
        for offset in range(max(start, state.start_offset), min(end, state.end_offset)):
            assert states[offset] in (DONE, FRESH), (offset, states[offset])
            states[offset] = CORRUPT
    return states


def check_sound(state: PartitionState) -> None:
    """Assert what holds of every state: sorted, disjoint, counted, nobody leased twice."""
    assert all(a.end < b.start for a, b in pairwise(state.corrupt))
    for name, group in state.groups.items():
        expanded(state, name)  # asserts that no message is outstanding twice
        for parts in [group.retries, *(lease.parts for lease in group.leases.values())]:
            listed = list(parts)
            assert all(p.start < p.end for p in listed)
            assert all(a.end <= b.start for a, b in pairwise(listed))
            assert parts.message_count == sum(p.end - p.start for p in listed)
        assert all(lease.parts for lease in group.leases.values())
        assert group.leased_count == sum(x.parts.message_count for x in group.leases.values())


def canonical(state: PartitionState) -> Any:
    """Return all that a state says, in a form that two equal states share."""
    groups = {}
    for name, group in state.groups.items():
        consumers = {token: lease.consumer for token, lease in group.leases.items()}
        groups[name] = (group.cursor, consumers, expanded(state, name))
    producers = state.producers.snapshot()
    return state.start_offset, state.end_offset, state.corrupt, groups, producers


def restored(events: list[AnyEvent], end_offset: int) -> PartitionState:
    """Return the state that a snapshot's events lead to, through their bytes."""
    state = PartitionState()
    state.extend_to(end_offset)
    for event in decode_events(encode_events(events)):
        state.apply(event, 0, 0)
    return state


class Pair:
    """The state and its twin side by side; every step compares them."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.now_ms = 1_000_000
        self.real = PartitionState()
        self.twin = Twin()
        self.history: list[tuple[AnyEvent, int, int]] = []
        self.receipts: list[Receipt] = []
        self.announced: dict[str, set[int]] = {}

    def apply(self, event: AnyEvent) -> int:
        sequence = len(self.history)
        self.history.append((event, sequence, self.epoch))
        self.real.apply(event, sequence, self.epoch)
        return token_of(self.epoch, sequence)

    def check(self) -> None:
        check_sound(self.real)
        assert self.real.start_offset == self.twin.start
        assert self.real.end_offset == self.twin.end
        assert {name: expanded(self.real, name) for name in self.real.groups} == self.twin.view()
        self._check_timers()

    def _check_timers(self) -> None:
        newly_due = False
        for name in self.twin.groups:
            retries = self.twin.outstanding(name, "retry")
            due = {o for o, s in retries.items() if s[2] <= self.now_ms}
            newly_due |= bool(due - self.announced.get(name, set()))
            self.announced[name] = due
        ripened = self.real.ripen(self.now_ms)
        assert ripened or not newly_due
        wanted = [s[3] for name in self.twin.groups for s in self._leased(name).values()]
        for name in self.twin.groups:
            retries = self.twin.outstanding(name, "retry")
            wanted += [s[2] for s in retries.values() if s[2] > self.now_ms]
        next_ms = self.real.next_timer_ms()
        assert not wanted or (next_ms is not None and next_ms <= min(wanted))

    def _leased(self, name: str) -> dict[int, State]:
        return self.twin.outstanding(name, "leased")

    def publish(self, count: int) -> None:
        self.twin.end += count
        self.real.extend_to(self.twin.end)

    def receive(self, group: str, count: int, keep: int, visibility_ms: int) -> int | None:
        """Lease the first ``keep`` of ``count`` candidates, as one who reads less than there is."""
        spans = self.real.candidates(group, self.now_ms, count)
        flat = [(o, attempt) for start, end, attempt in spans for o in range(start, end)]
        assert flat == self.twin.candidates(group, self.now_ms, count)
        assert len({o for o, _ in flat}) == len(flat)
        kept = []
        for start, end, attempt in spans:
            end = min(end, start + keep)
            keep -= end - start
            if start < end:
                kept.append((start, end, attempt))
        if not kept:
            return None
        deadline_ms = self.now_ms + visibility_ms
        token = self.apply(Leased(group, f"c{len(self.history)}", deadline_ms, kept))
        for start, end, attempt in kept:
            self.receipts.append(Receipt(0, token, start, end))
            for offset in range(start, end):
                state = ("leased", token, attempt, deadline_ms)
                self.twin.states(group)[offset] = state
        return token

    def settle(self, how: str, group: str, receipts: list[Receipt], time_ms: int) -> None:
        settled, lost = self.twin.settle(group, receipts)
        answer = self._decide(how, group, receipts, time_ms)
        assert answer.done == len(settled)
        assert [(r.token, r.start, r.end) for r in answer.lost] == lost
        for event in answer.events:
            self.apply(event)
        states = self.twin.groups.get(group, {})
        for offset in settled:
            _, token, attempt, _ = states[offset]
            states[offset] = {
                "ack": DONE,
                "nack": ("retry", attempt, time_ms),
                "extend": ("leased", token, attempt, time_ms),
            }[how]

    def _decide(self, how: str, group: str, receipts: list[Receipt], time_ms: int) -> Settled:
        if how == "ack":
            return self.real.acknowledge(group, receipts)
        if how == "nack":
            return self.real.give_back(group, receipts, time_ms, "busy")
        return self.real.extend_leases(group, receipts, time_ms)

    def move_clock(self, step_ms: int) -> None:
        """Move the clock, perhaps back, and let what is over expire."""
        self.now_ms += step_ms
        expired: dict[tuple[str, int, int], int] = {}
        for event in self.real.expire(self.now_ms):
            assert isinstance(event, Expired)
            for start, end, attempt in event.spans:
                for offset in range(start, end):
                    assert (event.group, event.token, offset) not in expired
                    expired[event.group, event.token, offset] = attempt
            self.apply(event)
        wanted: dict[tuple[str, int, int], int] = {}
        for name in self.twin.groups:
            for offset, (_, token, attempt, deadline_ms) in self._leased(name).items():
                if deadline_ms <= self.now_ms:
                    wanted[name, token, offset] = attempt
                    self.twin.groups[name][offset] = ("retry", attempt, self.now_ms)
        assert expired == wanted

    def reset(self, group: str, offset: int) -> None:
        self.apply(Reset(group, offset))
        states = self.twin.states(group)
        states.clear()
        states.update(dict.fromkeys(range(self.twin.start, offset), DONE))

    def delete_group(self, group: str) -> None:
        self.apply(GroupDeleted(group))
        self.twin.groups.pop(group, None)

    def trim(self, offset: int) -> None:
        self.apply(Trimmed(offset))
        self.twin.cut(offset, self.twin.end)

    def corrupt(self, start: int, end: int) -> None:
        self.apply(Corrupted(start, end, "bit rot"))
        self.twin.forget_outstanding(set(range(start, end)))
        self.twin.corrupt |= set(range(start, end))

    def lose(self, end_offset: int) -> None:
        """The messages from an offset on are gone after a power cut."""
        self.apply(Truncated(end_offset))
        self.real.extend_to(end_offset)
        self.twin.cut(min(self.twin.start, end_offset), end_offset)

    def restore(self) -> None:
        """Go on with the state that a snapshot leads to."""
        fresh = restored(self.real.snapshot(self.real.end_offset), self.real.end_offset)
        assert canonical(fresh) == canonical(self.real)
        self.real = fresh
        self.announced = {}

    def replay(self) -> None:
        """All events from the first on lead to the state that is live."""
        fresh = PartitionState()
        fresh.extend_to(self.real.end_offset)
        for event, sequence, epoch in self.history:
            fresh.apply(event, sequence, epoch)
        assert canonical(fresh) == canonical(self.real)

    def replay_damaged(self, rng: random.Random, lossy: tuple[type, ...]) -> PartitionState:
        """Replay with some events of the given kinds missing; the outcome is a sound state."""
        fresh = PartitionState()
        fresh.extend_to(self.real.end_offset)
        share = rng.choice([0.1, 0.3, 0.6])
        for event, sequence, epoch in self.history:
            if not isinstance(event, lossy) or rng.random() > share:
                fresh.apply(event, sequence, epoch)
        if fresh.start_offset < self.real.start_offset:
            fresh.apply(Trimmed(self.real.start_offset), 0, 0)
        check_sound(fresh)
        return fresh


def skipped(damaged: PartitionState, true: PartitionState) -> dict[str, list[int]]:
    """Return what the damaged state takes for done and the true one does not, by group."""
    found = {}
    for name in damaged.groups:
        truth = expanded(true, name) if name in true.groups else {}
        states = expanded(damaged, name).items()
        fine = (DONE, CORRUPT)
        found[name] = [o for o, s in states if s == DONE and truth.get(o, FRESH) not in fine]
    return found


def heap_sizes(group: Group) -> int:
    """Return how many entries a group keeps in all its heaps and lists."""
    retries = group.retries
    return (
        len(group._deadlines._heap)
        + len(retries._waiting)
        + len(retries._ripe)
        + len(retries)
        + sum(len(lease.parts) for lease in group.leases.values())
    )
