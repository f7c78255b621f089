"""A trace tells what the clients saw, all of it and no more, whatever happens to the node."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.ledger.promises.ledger import DONE, REFUSED, Got, Ledger, Settled
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import as_us

PARTITIONS = 2
ATTEMPTS = 4
BACKOFF_MS = (40, 200)
JITTER = 0.25
LEASES_MS = (120, 300, 1500)
STEPS = {
    "ack": "ACKNOWLEDGED",
    "nack": "NACKED",
    "reject": "REJECTED",
    "extend": "EXTENDED",
    "release": "RETURNED",
}
TOLERANCE_US = 2000


@on(1, 3)
@rounds
def test_a_trace_tells_what_the_clients_saw(node_count: int, effort: int, tmp_path: Path) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            PARTITIONS, delivery__max_attempts=f"{ATTEMPTS}",
            delivery__backoff__initial=f"{BACKOFF_MS[0]}ms",
            delivery__backoff__max=f"{BACKOFF_MS[1]}ms", delivery__backoff__jitter=f"{JITTER}",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            publishing(each, ledger, a_message, (1, 3, 12), (0.01, 0.05)),
            *(partial(consume, each, ledger, name) for name in ("one", "two")),
        ]
        under_blows(each, works, blows=2 * effort, progress=lambda: len(ledger.settled), by=60)
        ledger.drain(each.wire)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, str]:
    said = {}
    if chance.random() < 0.2:
        said["key"] = f"k{chance.randint(0, 20)}"
    if chance.random() < 0.2:
        said["delay"] = f"{chance.choice((1, 40, 300))}ms"
    if chance.random() < 0.2:
        said["priority"] = chance.choice(("high", "low"))
    return said


def consume(
    each: Round, ledger: Ledger, name: str, chance: random.Random, over: threading.Event
) -> None:
    with each.connect() as wire:
        while not over.is_set():
            found = ledger.receive(
                wire, name, most=chance.randint(1, 12), visibility_ms=chance.choice(LEASES_MS)
            )
            while found:
                count = chance.randint(1, len(found))
                some, found = found[:count], found[count:]
                verb = chance.choice(
                    ("ack", "ack", "nack", "nack", "reject", "release", "extend", "forget")
                )
                if verb == "nack":
                    ledger.settle(wire, verb, some, lasts_ms=chance.choice((None, None, 0, 70)))
                elif verb == "extend":
                    ledger.settle(wire, verb, some, lasts_ms=chance.choice(LEASES_MS))
                    ledger.settle(wire, "ack", some)
                elif verb != "forget":
                    ledger.settle(wire, verb, some)


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, PARTITIONS)
    gots: dict[str, list[Got]] = defaultdict(list)
    for got in ledger.got:
        gots[got.id].append(got)
    settled: dict[str, list[Settled]] = defaultdict(list)
    for row in ledger.settled:
        settled[row.got.id].append(row)
    for value, message in stored.items():
        mid = message["id"]
        trace = each.wire.must("GET", f"/v1/messages/{mid}/trace")
        events = [event for event in trace["events"] if event["id"] == mid]
        row = ledger.sent[value]
        wrong = list(check_trace(events, trace, message, row, gots[mid], settled[mid], ledger))
        if wrong:
            told = "\n      ".join(map(str, trace["events"]))
            life = "\n      ".join(map(str, [*gots[mid], *settled[mid]]))
            found.append(
                f"{mid}: {'; '.join(wrong)}\n      {told}\n    and the ledger:\n      {life}"
            )
    report(found, ledger.summary())


def check_trace(
    events: list[Any],
    trace: Any,
    message: Any,
    row: Any,
    gots: list[Got],
    settled: list[Settled],
    ledger: Ledger,
) -> Any:
    by_kind: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        by_kind[event["event"]].append(event)
    if any(not part["reason"].startswith("another node leads") for part in trace["incomplete"]):
        yield f"incomplete: {trace['incomplete']}"
    for one, other in pairwise(events):
        if as_us(one["time"]) > as_us(other["time"]):
            yield f"{other} stands behind {one}"
    if [as_us(each["time"]) for each in by_kind["PUBLISHED"]] != [as_us(message["timestamp"])]:
        yield "published at another time"
    for got in gots:
        told = [
            each
            for each in by_kind["DELIVERED"]
            if (each["attempt"], each["consumer"]) == (got.attempt, got.consumer)
            and got.asked_us <= as_us(each["time"]) <= got.answered_us
        ]
        if len(told) != 1:
            yield f"{len(told)} deliveries are {got}"
    if len(by_kind["DELIVERED"]) > len(gots) and not ledger.lost:
        yield f"more deliveries than {len(gots)}"
    for verb, kind in STEPS.items():
        done = [each for each in settled if each.verb == verb and each.outcome == DONE]
        unsure = [
            each for each in settled if each.verb == verb and each.outcome not in (DONE, REFUSED)
        ]
        told = by_kind[kind]
        if verb == "ack":
            done = done[:1]
        if not len(done) <= len(told) <= len(done) + len(unsure) and kind != "RETURNED":
            yield f"{len(told)} {kind} for {len(done)} to {len(done) + len(unsure)}"
        for each in done:
            if not any(
                each.asked_us <= as_us(event["time"]) <= each.answered_us
                and event.get("consumer", "") == each.got.consumer
                for event in told
            ):
                yield f"no {kind} for {each}"
    if trace["attempts"] != sum(e["event"] == "DELIVERED" for e in trace["events"]) - len(
        [e for e in trace["events"] if e["event"] == "RETURNED"]
    ):
        yield f"{trace['attempts']} attempts"
    for place, event in enumerate(events):
        if event["event"] == "RETRY_SCHEDULED":
            yield from check_retry(events, place, settled)
    if "delay" in row.said:
        due = [as_us(each["due"]) for each in by_kind["SCHEDULED"]]
        ripe = [as_us(each["time"]) for each in by_kind["MATURED"]]
        if len(due) != 1 or len(ripe) != 1 or ripe[0] < due[0]:
            yield f"due {due}, matured {ripe}"


def check_retry(events: list[Any], place: int, settled: list[Settled]) -> Any:
    """Check how long a message waits; the wait of a nack begins while it is asked for."""
    event, before = events[place], events[place - 1]
    due_us, failed_us = as_us(event["due"]), as_us(before["time"])
    attempt = max(e["attempt"] for e in events[:place] if e["event"] == "DELIVERED")
    nacks = [
        each
        for each in settled
        if (each.verb, each.outcome, each.got.attempt) == ("nack", DONE, attempt)
        and each.asked_us <= failed_us <= each.answered_us
    ]
    middle_us = min(BACKOFF_MS[0] * 2 ** (attempt - 1), BACKOFF_MS[1]) * 1000
    least_us, most_us = middle_us * (1 - JITTER), middle_us * (1 + JITTER)
    since_us = until_us = failed_us
    if before["event"] == "EXPIRED":
        since_us = 0  # the wait begins at the decision, whose write may take a while
    if before["event"] == "NACKED":
        if len(nacks) != 1:
            return
        since_us, until_us = nacks[0].asked_us, nacks[0].answered_us
        if nacks[0].lasts_us is not None:
            least_us = most_us = nacks[0].lasts_us
    if not since_us + least_us - TOLERANCE_US <= due_us <= until_us + most_us + TOLERANCE_US:
        yield f"waits until {due_us} after {before}: not {least_us} to {most_us}"
