"""The ledger finds every broken promise: a history with one is refused, without it is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from goq.client import LogMessage, Published
from goq.client.messages import FailedReceipt, Settled
from goq.errors import LeaseLost, NotLeader, TimedOut
from goq.model import MessageId, Receipt
from tests.support.ledger.ledger import Delivered, Ledger, Marked, Outcome, Settlement, Violations

PLACE = (0, 0)
FIRST = Delivered(PLACE, 1, 100, "first", b"a", 9_000_000, 1_000_000, 1_100_000)
SECOND = Delivered(PLACE, 2, 200, "second", b"a", 19_000_000, 9_100_000, 9_200_000)
ACK = Settlement("ack", PLACE, 200, "second", 0, 9_300_000, 9_400_000, Outcome.DONE)
EARLY_ACK = replace(ACK, token=100, asked_us=1_200_000, answered_us=1_300_000)


def message(offset: int, value: bytes, key: bytes | None = None, time_us: int = 5) -> LogMessage:
    return LogMessage("t", 0, offset, time_us, value, key, ())


LOG = [message(0, b"a"), message(1, b"b")]


def ledger_of_publishing() -> Ledger:
    ledger = Ledger()
    record = ledger.producer("p")
    for offset, value in enumerate((b"a", b"b")):
        record.stored(record.sending(value), Published(MessageId("t", 0, offset), 5, False))
    record.unknown(record.sending(b"without an answer"))
    return ledger


def check_log(log: list[LogMessage]) -> None:
    ledger = ledger_of_publishing()
    ledger.check_log(log, 1)
    ledger.raise_violations()


def check_deliveries(*history: Delivered | Settlement) -> None:
    ledger = Ledger()
    ledger.deliveries += [each for each in history if isinstance(each, Delivered)]
    ledger.settlements += [each for each in history if isinstance(each, Settlement)]
    ledger.check_deliveries(LOG)
    ledger.raise_violations()


def test_a_log_with_all_that_was_confirmed_is_right_with_and_without_what_was_not() -> None:
    check_log(LOG)
    check_log([*LOG, message(2, b"without an answer")])


@pytest.mark.parametrize(
    "log",
    [
        [message(0, b"a")],
        [message(0, b"a"), message(1, b"x")],
        [message(0, b"a", key=b"k"), message(1, b"b")],
        [message(0, b"a", time_us=6), message(1, b"b")],
        [message(0, b"b"), message(1, b"a")],
        [*LOG, message(2, b"b")],
        [*LOG, message(2, b"never sent")],
        [*LOG, message(3, b"without an answer")],
        [*LOG, *LOG],
    ],
    ids=[
        "lost",
        "other-bytes",
        "other-key",
        "other-time",
        "swapped",
        "doubled",
        "invented",
        "with-a-gap",
        "read-twice",
    ],
)
def test_a_log_is_refused_when_a_message_was(log: list[LogMessage]) -> None:
    with pytest.raises(Violations):
        check_log(log)


def test_what_one_producer_was_told_out_of_its_order_is_refused() -> None:
    ledger = Ledger()
    record = ledger.producer("p")
    record.stored(record.sending(b"b"), Published(MessageId("t", 0, 1), 5, False))
    record.stored(record.sending(b"a"), Published(MessageId("t", 0, 0), 5, False))
    ledger.check_log(LOG, 1)
    with pytest.raises(Violations, match="came after offset 1"):
        ledger.raise_violations()


@pytest.mark.parametrize(
    "history",
    [
        (FIRST, SECOND, ACK),
        (SECOND, ACK, FIRST),
        (FIRST, EARLY_ACK, replace(EARLY_ACK, outcome=Outcome.REFUSED, asked_us=1_400_000)),
        (FIRST, EARLY_ACK, replace(EARLY_ACK, asked_us=1_400_000)),
        (FIRST, replace(EARLY_ACK, outcome=Outcome.UNKNOWN), SECOND, ACK),
        (FIRST, replace(EARLY_ACK, verb="nack"), replace(SECOND, answered_us=1_400_000)),
        (FIRST, replace(EARLY_ACK, asked_us=9_100_000, answered_us=9_150_000)),
        (FIRST, replace(EARLY_ACK, outcome=Outcome.FAILED), SECOND, ACK),
    ],
    ids=[
        "expired",
        "answers-swapped",
        "acked-twice",
        "acked-again",
        "unknown-ack",
        "nacked",
        "late-ack-in-time",
        "failed-without-a-leader",
    ],
)
def test_a_history_as_it_should_be_is_right(history: tuple[Any, ...]) -> None:
    check_deliveries(*history)


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        ((FIRST, EARLY_ACK, SECOND), "after its ack was confirmed"),
        ((FIRST, SECOND, EARLY_ACK, ACK), "acked more than once"),
        ((FIRST, replace(SECOND, answered_us=8_000_000)), "before the lease of first was over"),
        (
            (
                FIRST,
                replace(EARLY_ACK, outcome=Outcome.FAILED),
                replace(SECOND, answered_us=8_000_000),
            ),
            "before the lease of first was over",
        ),
        ((FIRST, replace(SECOND, attempt=1)), "attempt 1 came after attempt 1"),
        ((FIRST, replace(FIRST, consumer="second")), "handed over twice under one lease"),
        ((FIRST, replace(SECOND, value=b"x"), ACK), "other bytes"),
        ((replace(FIRST, place=(0, 2)),), "not in the log"),
        ((FIRST, SECOND, replace(ACK, token=100)), "under a lease that was lost"),
        ((FIRST, replace(EARLY_ACK, outcome=Outcome.REFUSED)), "refused within the lease"),
        (
            (FIRST, EARLY_ACK, replace(EARLY_ACK, verb="extend", asked_us=2_000_000)),
            "took effect after",
        ),
        (
            (
                FIRST,
                replace(EARLY_ACK, verb="extend", lasts_us=9_000_000),
                replace(SECOND, answered_us=9_900_000),
            ),
            "before the lease of first was over",
        ),
        (
            (FIRST, replace(EARLY_ACK, verb="nack", lasts_us=9_000_000), SECOND),
            "before its delay was over",
        ),
    ],
)
def test_a_history_is_refused_when_a_message_was(history: tuple[Any, ...], violation: str) -> None:
    with pytest.raises(Violations, match=violation):
        check_deliveries(*history)


def test_only_a_lost_lease_is_a_refusal() -> None:
    messages: list[Any] = [
        SimpleNamespace(partition=0, token=100, offset=n, receipt=str(Receipt(0, 100, n, n + 1)))
        for n in range(4)
    ]
    codes = (TimedOut.code, LeaseLost.code, NotLeader.code)
    failed = [FailedReceipt(m.receipt, code) for m, code in zip(messages, codes, strict=False)]
    client: Any = SimpleNamespace(ack=lambda *_: Settled(1, failed))
    ledger = Ledger()
    ledger.consumer(client, "c", "t", "g", repeats=False).ack(messages)
    outcomes = [each.outcome for each in ledger.settlements]
    assert outcomes == [Outcome.UNKNOWN, Outcome.REFUSED, Outcome.FAILED, Outcome.DONE]
    ledger.raise_violations()


def drained(**changes: int) -> dict[str, Any]:
    totals = {"lag": 0, "ready": 0, "leased": 0, "retry": 0}
    return {**totals, "partitions": [{"partition": 0, "cursor": 2}], **changes}


def check_drained(group: dict[str, Any], *, without: str = "") -> None:
    ledger = Ledger()
    for offset in (0, 1):
        if without != "delivery" or offset == 0:
            ledger.deliveries.append(replace(FIRST, place=(0, offset)))
        if without != "ack" or offset == 0:
            ledger.settlements.append(replace(EARLY_ACK, place=(0, offset)))
    ledger.check_fates(LOG, [])
    ledger.check_drained(group, {0: 2})
    ledger.raise_violations()


def test_a_group_that_is_done_with_all_that_was_delivered_and_acked_is_right() -> None:
    check_drained(drained())


def test_a_group_is_refused_that_is_done_with_what_nobody_had_or_acked_or_is_not_done() -> None:
    with pytest.raises(Violations, match="nobody was given it"):
        check_drained(drained(), without="delivery")
    with pytest.raises(Violations, match="nobody has acked it"):
        check_drained(drained(), without="ack")
    with pytest.raises(Violations, match="the group is not done"):
        check_drained(drained(leased=1))
    with pytest.raises(Violations, match="does not stand at the end"):
        check_drained({**drained(), "partitions": [{"partition": 0, "cursor": 1}]})


def sent_with(ledger: Ledger, offset: int, **said: Any) -> None:
    record = ledger.producers.get("p") or ledger.producer("p")
    sent = record.sending(b"%d" % offset, b"k", **said)
    record.stored(sent, Published(MessageId("t", 0, offset), 5, False))


def refused_with(ledger: Ledger, violation: str) -> None:
    with pytest.raises(Violations, match=violation):
        ledger.raise_violations()


def test_a_message_that_came_before_its_time_or_after_it_was_cancelled_is_noticed() -> None:
    ledger = Ledger()
    sent_with(ledger, 0, due_us=2_000_000)
    ledger.deliveries.append(FIRST)
    ledger.check_times()
    refused_with(ledger, "before its time")
    ledger = Ledger()
    ledger.deliveries.append(FIRST)
    ledger.marks.append(Marked("cancel", PLACE, 0, 800_000, 900_000, Outcome.DONE))
    ledger.check_times()
    refused_with(ledger, "after it was cancelled")


def test_first_deliveries_out_of_order_are_noticed_within_a_key_and_lane_only() -> None:
    for other_lane, is_refused in ((None, True), ("low", False)):
        ledger = Ledger()
        sent_with(ledger, 0)
        sent_with(ledger, 1, lane=other_lane)
        ledger.deliveries += [
            replace(FIRST, token=300),
            replace(FIRST, place=(0, 1), token=200),
        ]
        ledger.check_order()
        if is_refused:
            refused_with(ledger, "came after one published later")
        else:
            ledger.raise_violations()


@pytest.mark.parametrize(
    ("verb", "dead", "violation"),
    [
        ("ack", [PLACE], "nobody gave it up"),
        ("ack", [PLACE], "was acked"),
        ("reject", [], "is not dead"),
        ("reject", [PLACE, PLACE], "dead 2 times"),
        ("reject", [PLACE, (0, 7)], "not in the log"),
    ],
)
def test_a_message_with_two_ends_or_none_is_noticed(
    verb: Any, dead: list[tuple[int, int]], violation: str
) -> None:
    ledger = Ledger()
    ledger.deliveries.append(FIRST)
    ledger.settlements.append(replace(EARLY_ACK, verb=verb))
    ledger.check_fates(LOG[:1], dead)
    refused_with(ledger, violation)
