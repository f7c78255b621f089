"""Decisions on leased messages: ack, nack, reject, extend, release and expiry.

Each function reads the state and returns events; it changes nothing. A receipt whose lease is gone,
in whole or in part, is void for that part and has no effect there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cause,
    CopyQueued,
    Dropped,
    Expired,
    Extended,
    Nacked,
    Span,
)
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.partition_state import PartitionState
from goq.model import Receipt

_GOLDEN_RATIO = 0.6180339887498949  # spreads further random numbers from one
_DRAWS_MAX = 1_000  # by one decision: each costs a range of its own


class Settlement(NamedTuple):
    """The result of settling receipts: events, the number of messages, and the void receipts."""

    events: list[AnyEvent]
    settled: int
    void: list[Receipt]


class JitterDraws:
    """The random numbers of one decision about ``message_count`` messages: one for each.

    Of over 1,000 messages each run of ``run_length`` shares one.
    """

    __slots__ = ("_count", "run_length")

    def __init__(self, message_count: int) -> None:
        self.run_length = max(1, -(-message_count // _DRAWS_MAX))
        self._count = 0

    def next(self, random: float) -> float:
        """Return the next number, given the first."""
        self._count += 1
        return (random + (self._count - 1) * _GOLDEN_RATIO) % 1


class DeadLetterTarget(NamedTuple):
    """The partition for dead letters; the producer id counts only if the outbox has none yet."""

    topic: str
    partition: int
    producer_id: int


class FailureContext(NamedTuple):
    """The context of a failed attempt; ``random`` is from 0 to below 1.

    ``delay_ms`` is the consumer's choice, None for the group's backoff.
    """

    now_ms: int
    policy: RetryPolicy
    dead_letters: DeadLetterTarget
    random: float
    delay_ms: int | None = None
    reason: str = ""


def acknowledge(state: PartitionState, group: str, receipts: Iterable[Receipt]) -> Settlement:
    """Decide which messages are done."""
    return _settle(
        state,
        group,
        receipts,
        lambda token, parts, _draws: [Acked(group, token, [(p.start, p.end) for p in parts])],
    )


def extend(
    state: PartitionState, group: str, receipts: Iterable[Receipt], deadline_ms: int
) -> Settlement:
    """Decide which leases get a new deadline."""
    return _settle(
        state,
        group,
        receipts,
        lambda token, parts, _draws: [
            Extended(group, token, [(p.start, p.end) for p in parts], deadline_ms)
        ],
    )


def nack(
    state: PartitionState, group: str, receipts: Iterable[Receipt], failing: FailureContext
) -> Settlement:
    """Decide which messages wait for another attempt, and which have had their last."""
    return _settle(
        state,
        group,
        receipts,
        lambda token, parts, draws: _failed(state, group, token, parts, failing, Nacked, draws),
    )


def reject(
    state: PartitionState, group: str, receipts: Iterable[Receipt], failing: FailureContext
) -> Settlement:
    """Decide which messages are given up at once."""

    def make(token: int, parts: list[AttemptRange], _draws: JitterDraws) -> list[AnyEvent]:
        return _given_up(state, group, token, spans_of(parts), failing, Cause.REJECTED)

    return _settle(state, group, receipts, make)


def release(
    state: PartitionState, group: str, receipts: Iterable[Receipt], now_ms: int
) -> Settlement:
    """Decide to return messages that their consumer did not begin: that counts no attempt."""
    return _settle(
        state, group, receipts, lambda token, parts, _draws: [_back(group, token, parts, now_ms)]
    )


def release_undelivered(
    state: PartitionState, group: str, token: int, spans: Iterable[Span], now_ms: int
) -> Nacked | None:
    """Decide to release a lease that was never delivered, without counting an attempt."""
    lease = state.group(group).leases.get(token)
    if lease is None:
        return None
    held = [part for start, end, _ in spans for part in lease.parts.within(start, end)]
    return _back(group, token, held, now_ms) if held else None


def _back(group: str, token: int, parts: Iterable[AttemptRange], now_ms: int) -> Nacked:
    back = sorted((p.start, p.end, p.attempt - 1) for p in parts)
    return Nacked(group, token, back, now_ms, "", now_ms)


def expire_lease(
    state: PartitionState, group: str, token: int, failing: FailureContext
) -> list[AnyEvent]:
    """Decide to end a lease before its deadline: its consumer is gone."""
    lease = state.group(group).leases.get(token)
    return _expired(state, group, token, list(lease.parts), failing) if lease else []


def expire_due(
    state: PartitionState, group_name: str, now_ms: int, failing_of: Callable[[], FailureContext]
) -> Iterator[list[AnyEvent]]:
    """Yield the expiry of each due lease of a group, if there is one.

    The caller applies an expiry before it takes the next.
    """
    group = state.groups.get(group_name)
    if group is not None:
        for token, parts in group.expired(now_ms):
            yield _expired(state, group_name, token, parts, failing_of())


def spans_of(parts: Iterable[AttemptRange]) -> list[Span]:
    """Return ranges as spans of an event."""
    return [(part.start, part.end, part.attempt) for part in parts]


def _failed(
    state: PartitionState,
    group: str,
    token: int,
    parts: list[AttemptRange],
    failing: FailureContext,
    event: type[Nacked] | type[Expired],
    draws: JitterDraws,
) -> list[AnyEvent]:
    """Return the events of a failed attempt: attempts apart, because the waits differ."""
    events: list[AnyEvent] = []
    for attempt in sorted({part.attempt for part in parts}):
        spans = spans_of(part for part in parts if part.attempt == attempt)
        if failing.policy.is_last(attempt):
            cause = Cause.NACKED if event is Nacked else Cause.EXPIRED
            events += _given_up(state, group, token, spans, failing, cause)
            continue
        due_ms = failing.now_ms + (failing.delay_ms or 0)
        shifts_ms: list[int] = []
        if failing.delay_ms is None:
            due_ms += failing.policy.wait_ms(attempt, 0.5)
            spans, shifts_ms = _jittered(spans, failing, draws)
            if len(set(shifts_ms)) == 1:
                due_ms, shifts_ms = due_ms + shifts_ms[0], []
        events.append(event(group, token, spans, due_ms, failing.reason, failing.now_ms, shifts_ms))
    return events


def _jittered(
    spans: list[Span], failing: FailureContext, draws: JitterDraws
) -> tuple[list[Span], list[int]]:
    """Return the spans in pieces, and how far the wait of each is from the wait without jitter."""
    pieces: list[Span] = []
    shifts_ms: list[int] = []
    for start, end, attempt in spans:
        plain_ms = failing.policy.wait_ms(attempt, 0.5)
        for at in range(start, end, draws.run_length):
            stop = min(end, at + draws.run_length)
            shift_ms = failing.policy.wait_ms(attempt, draws.next(failing.random)) - plain_ms
            if pieces and pieces[-1][1:] == (at, attempt) and shifts_ms[-1] == shift_ms:
                pieces[-1] = (pieces[-1][0], stop, attempt)
            else:
                pieces.append((at, stop, attempt))
                shifts_ms.append(shift_ms)
    return pieces, shifts_ms


def _expired(
    state: PartitionState,
    group: str,
    token: int,
    parts: list[AttemptRange],
    failing: FailureContext,
) -> list[AnyEvent]:
    draws = JitterDraws(sum(part.end - part.start for part in parts))
    return _failed(state, group, token, parts, failing, Expired, draws)


def _given_up(
    state: PartitionState,
    group: str,
    token: int,
    spans: list[Span],
    failing: FailureContext,
    cause: Cause,
) -> list[AnyEvent]:
    """Return the events of messages that are not tried again.

    Those that were cancelled meanwhile become no dead letters, which could be redriven.
    """
    now_ms, reason, dead_letters = failing.now_ms, failing.reason, failing.dead_letters
    dead, dropped = spans, list[Span]()
    if not failing.policy.dead_letters:
        dead, dropped = [], spans
    elif (cancelled := state.cancelled).top() > min(spans)[0]:
        dead = [(*run, n) for start, end, n in spans for run in cancelled.missing(start, end)]
        dropped = [(*run, n) for start, end, n in spans for run in cancelled.present(start, end)]
    events: list[AnyEvent] = []
    if dead:
        events.append(CopyQueued(group, token, dead, cause, reason, now_ms, *dead_letters))
    if dropped:
        events.append(Dropped(group, token, dropped, cause, reason, now_ms))
    return events


def _settle(
    state: PartitionState,
    group_name: str,
    receipts: Iterable[Receipt],
    make: Callable[[int, list[AttemptRange], JitterDraws], list[AnyEvent]],
) -> Settlement:
    leases = state.group(group_name).leases
    by_token: dict[int, dict[int, AttemptRange]] = {}
    void: list[Receipt] = []
    known_token, lease = -1, None
    chosen: dict[int, AttemptRange] = {}
    for receipt in receipts:
        _, token, start, end, _ = receipt
        if token != known_token:
            known_token, lease = token, leases.get(token)
            chosen = by_token.setdefault(token, {})
        part = lease.parts.at(start) if lease and start not in chosen else None
        if part is not None and part[1] >= end:  # one receipt for a range or a piece: as usual
            is_whole = part[0] == start and part[1] == end
            chosen[start] = part if is_whole else AttemptRange(start, end, *part[2:])
            continue
        parts = lease.parts.within(start, end) if lease else []
        reached = start
        for part in parts:
            if part.start > reached:
                void.append(receipt._replace(start=reached, end=part.start))
            reached = part.end
            known = chosen.get(part.start)
            if known is None or known.end < part.end:
                chosen[part.start] = part
        if reached < end:
            void.append(receipt._replace(start=reached))
    events: list[AnyEvent] = []
    settled = [(token, merged) for token, chosen in by_token.items() if (merged := _merged(chosen))]
    done = sum([part.end - part.start for _, parts in settled for part in parts])
    draws = JitterDraws(done)
    for token, parts in settled:
        events += make(token, parts, draws)
    return Settlement(events, done, void)


def _merged(parts: dict[int, AttemptRange]) -> list[AttemptRange]:
    """Return ranges in order: neighbours of one attempt joined, overlaps counted once."""
    merged: list[AttemptRange] = []
    for part in sorted(parts.values()):
        last = merged[-1] if merged else None
        if last and part.start <= last.end and part.attempt == last.attempt:
            merged[-1] = last._replace(end=max(last.end, part.end))
        elif last and part.start < last.end:
            merged.append(part._replace(start=last.end))
        else:
            merged.append(part)
    return merged
