from __future__ import annotations

import pytest

from goq.delivery.events.event import (
    Acked,
    Cause,
    CopyQueued,
    Dropped,
    Expired,
    Leased,
    Nacked,
    Span,
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
    made = RetryPolicy(**{"jitter": 0.0, **policy})  # type: ignore[arg-type]
    return FailureContext(500, made, DeadLetterTarget("t.dlq", 3, 9), 0.5, reason="busy")


def receipt(start: int, end: int, token: int = TOKEN) -> Receipt:
    return Receipt(0, token, start, end)


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
    (events,) = expire_due(state, 1000, lambda _group: failing())
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
