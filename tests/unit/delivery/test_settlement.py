from __future__ import annotations

import pytest

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    Dropped,
    Expired,
    Leased,
    Nacked,
    Span,
    decode_events,
    encode_events,
    token_of,
)
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.partition_state import PartitionState
from goq.delivery.settlement import (
    DeadLetterTarget,
    FailureContext,
    acknowledge,
    expire_due,
    extend,
    nack,
    reject,
    release_undelivered,
)
from goq.model import Receipt

TOKEN = token_of(1, 0)


def leased(*spans: Span) -> PartitionState:
    state = PartitionState()
    state.extend_to(20)
    state.apply(Leased("g", "c", 1000, list(spans)), 0, 1)
    return state


def failing(**policy: object) -> FailureContext:
    made = RetryPolicy(**{"jitter": 0.0, **policy})
    return FailureContext(500, made, DeadLetterTarget("t.dlq", 3, 9), 0.5, reason="busy")


def receipt(start: int, end: int, token: int = TOKEN) -> Receipt:
    return Receipt(0, token, start, end)


def test_a_group_counts_what_is_leased_and_nothing_else() -> None:
    state = leased((0, 5, 1))
    assert state.groups["g"].leased_count == 5
    (event,) = acknowledge(state, "g", [receipt(1, 3)]).events
    state.apply(event, 1, 1)
    assert state.groups["g"].leased_count == 3


@pytest.mark.parametrize("how", [Cause.NACKED, Cause.EXPIRED, Cause.REJECTED])
def test_a_message_that_was_cancelled_while_it_was_leased_becomes_no_dead_letter(
    how: Cause,
) -> None:
    state = leased((0, 5, 1), (7, 9, 1))
    state.apply(Cancelled([(0, 1), (3, 5)]), 1, 1)
    context = failing(attempts_max=1)
    if how is Cause.EXPIRED:
        ((*events,),) = expire_due(state, "g", 1000, lambda: context)
    else:
        events = (nack if how is Cause.NACKED else reject)(
            state, "g", [receipt(0, 5), receipt(7, 9)], context
        ).events
    dead, dropped = events
    assert isinstance(dead, CopyQueued)
    assert isinstance(dropped, Dropped)
    assert (dead.spans, dead.cause) == ([(1, 3, 1), (7, 9, 1)], how)
    assert (dropped.spans, dropped.cause) == ([(0, 1, 1), (3, 5, 1)], how)
    for number, event in enumerate(events, 2):
        state.apply(event, number, 1)
    assert state.groups["g"].leased_count == 0
    assert not state.groups["g"].leases


def test_acks_of_another_token_change_nothing() -> None:
    answer = acknowledge(leased((0, 5, 1)), "g", [receipt(0, 5, TOKEN + 1)])
    assert (answer.events, answer.settled) == ([], 0)
    assert answer.void == [receipt(0, 5, TOKEN + 1)]


def test_a_receipt_is_void_for_the_part_that_is_not_leased_and_good_for_the_rest() -> None:
    state = leased((2, 4, 1), (6, 8, 1))
    answer = acknowledge(state, "g", [receipt(0, 10), receipt(3, 7)])
    assert answer.events == [Acked("g", TOKEN, [(2, 4), (6, 8)])]
    assert answer.settled == 4
    assert [(r.start, r.end) for r in answer.void] == [(0, 2), (4, 6), (8, 10), (4, 6)]
    for event in answer.events:
        state.apply(event, 1, 1)
    assert acknowledge(state, "g", [receipt(2, 4)]).void == [receipt(2, 4)]


def test_an_extension_gives_only_the_named_messages_another_deadline() -> None:
    state = leased((0, 4, 1))
    (event,) = extend(state, "g", [receipt(1, 3)], 2000).events
    state.apply(event, 1, 1)
    parts = [(p.start, p.end, p.time_ms) for p in state.groups["g"].leases[TOKEN].parts]
    assert parts == [(0, 1, 1000), (1, 3, 2000), (3, 4, 1000)]
    (events,) = expire_due(state, "g", 1000, failing)
    assert [e.spans for e in events if isinstance(e, Expired)] == [[(0, 1, 1), (3, 4, 1)]]


def test_attempts_wait_their_own_time_and_the_last_one_is_given_up() -> None:
    state = leased((0, 2, 1), (2, 4, 2), (4, 6, 3))
    events = nack(state, "g", [receipt(0, 6)], failing(attempts_max=3)).events
    assert events == [
        Nacked("g", TOKEN, [(0, 2, 1)], 1500, "busy", 500),
        Nacked("g", TOKEN, [(2, 4, 2)], 2500, "busy", 500),
        CopyQueued("g", TOKEN, [(4, 6, 3)], Cause.NACKED, "busy", 500, "t.dlq", 3, 9),
    ]


def test_a_delay_that_was_asked_for_counts_instead_of_the_backoff() -> None:
    asked = failing()._replace(delay_ms=7)
    (event,) = nack(leased((0, 2, 1)), "g", [receipt(0, 2)], asked).events
    assert isinstance(event, Nacked)
    assert event.due_ms == 507


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_rejected_becomes_a_dead_letter_if_the_group_keeps_any(keeps: bool) -> None:
    (event,) = reject(leased((0, 2, 1)), "g", [receipt(0, 2)], failing(dead_letters=keeps)).events
    assert isinstance(event, CopyQueued if keeps else Dropped)
    assert event.cause is Cause.REJECTED
    assert event.spans == [(0, 2, 1)]


def test_what_never_left_the_node_counts_as_no_attempt() -> None:
    state = leased((0, 4, 2))
    event = release_undelivered(state, "g", TOKEN, [(1, 3, 2)], 700)
    assert event == Nacked("g", TOKEN, [(1, 3, 1)], 700, "", 700)
    state.apply(event, 1, 1)
    assert [(p.start, p.attempt, p.failures) for p in state.groups["g"].retries] == [(1, 1, ())]
    assert release_undelivered(state, "g", TOKEN, [(1, 3, 2)], 700) is None


@pytest.mark.parametrize("lease_messages", [1, 8, 200])
def test_each_message_that_is_nacked_has_a_jitter_of_its_own(lease_messages: int) -> None:
    state = PartitionState()
    state.extend_to(200)
    for first in range(0, 200, lease_messages):
        state.apply(Leased("g", "c", 1000, [(first, first + lease_messages, 1)]), first, 1)
    receipts = [
        Receipt(0, lease.token, part.start, part.end)
        for lease in state.groups["g"].leases.values()
        for part in lease.parts
    ]
    context = failing(jitter=0.2)._replace(delay_ms=None, random=0.3)
    _check_spread(state, nack(state, "g", receipts, context).events)


def test_each_message_of_a_lease_that_expires_has_a_jitter_of_its_own() -> None:
    state = PartitionState()
    state.extend_to(200)
    state.apply(Leased("g", "c", 1000, [(0, 200, 1)]), 0, 1)
    context = failing(jitter=0.2)._replace(random=0.3)
    (events,) = expire_due(state, "g", 1000, lambda: context)
    _check_spread(state, events)


def _check_spread(state: PartitionState, events: list[AnyEvent]) -> None:
    """Apply what 200 failed messages wait; assert that it is spread over 0.8 to 1.2 s."""
    for number, event in enumerate(decode_events(encode_events(events))):
        state.apply(event, 1000 + number, 1)
    retries = state.groups["g"].retries
    waits = [part.time_ms - 500 for part in retries for _ in range(part.start, part.end)]
    assert len(waits) == 200
    assert len(set(waits)) >= 150
    assert 800 <= min(waits) < 810
    assert 1190 < max(waits) <= 1200
    for low_ms in range(800, 1200, 100):
        assert 40 <= sum(low_ms <= wait < low_ms + 100 for wait in waits) <= 60


def test_very_many_messages_of_one_call_share_their_jitter_in_runs() -> None:
    state = PartitionState()
    state.extend_to(10_000)
    state.apply(Leased("g", "c", 1000, [(0, 10_000, 1)]), 0, 1)
    (event,) = nack(state, "g", [receipt(0, 10_000)], failing(jitter=0.2)).events
    assert isinstance(event, Nacked)
    assert 900 <= len(event.spans) <= 1000
    state.apply(event, 1, 1)
    assert state.groups["g"].retries.message_count == 10_000


def test_a_wait_without_jitter_takes_one_range() -> None:
    (event,) = nack(leased((0, 9, 1)), "g", [receipt(0, 9)], failing(jitter=0.0)).events
    assert isinstance(event, Nacked)
    assert (event.spans, event.due_shifts_ms) == ([(0, 9, 1)], [])
