"""A key is with one consumer at a time and goes out in order, whatever happens to the node."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.support.ledger.promises.ledger import DONE, REFUSED, Got, Ledger, Settled
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows

KEYS = 12
LEASE_MS = (150, 400, 1000)
TOLERANCE_US = 2000  # the node counts times in milliseconds


@on(1, 3)
@rounds
def test_a_key_has_one_consumer_and_keeps_its_order(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            2, delivery__max_attempts="none", delivery__backoff__initial="1ms",
            delivery__backoff__max="20ms",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            publishing(each, ledger, a_message, (1, 2, 15), (0, 0.005, 0.03)),
            *(partial(consume, each, ledger, name) for name in ("one", "two", "three")),
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.settled), by=80)
        ledger.drain(each.wire)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, str]:
    said = {"key": f"k{chance.randrange(KEYS)}"}
    if chance.random() < 0.2:
        said["priority"] = "high"
    return said


def consume(
    each: Round, ledger: Ledger, name: str, chance: random.Random, over: threading.Event
) -> None:
    with each.connect() as wire:
        while not over.is_set():
            found = ledger.receive(
                wire, name, most=chance.randint(1, 12), visibility_ms=chance.choice(LEASE_MS)
            )
            over.wait(chance.choice((0, 0, 0.02, 0.2)))
            while found:
                count = chance.randint(1, len(found))
                some, found = found[:count], found[count:]
                verb = chance.choice(("ack", "ack", "ack", "nack", "extend", "release", "forget"))
                if verb == "nack":
                    ledger.settle(wire, verb, some, lasts_ms=chance.choice((None, 0, 50)))
                elif verb == "extend":
                    ledger.settle(wire, verb, some, lasts_ms=chance.choice(LEASE_MS))
                    ledger.settle(wire, "ack", some)
                elif verb != "forget":
                    ledger.settle(wire, verb, some)


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, 2)
    settled: dict[str, list[Settled]] = defaultdict(list)
    for row in ledger.settled:
        settled[row.got.receipt].append(row)
    holds: dict[str, list[tuple[int, int, Got]]] = defaultdict(list)
    for got in ledger.got:
        least_us, rows = held_until_us(got, settled[got.receipt])
        found += rows
        holds[ledger.sent[got.value].said["key"]].append((got.answered_us, least_us, got))
    for key, several in holds.items():
        several.sort(key=lambda hold: hold[:2])
        for (one_us, until_us, one), (next_us, _, other) in pairwise(several):
            if one.consumer != other.consumer and next_us < until_us - TOLERANCE_US:
                found.append(f"{key} at two consumers, {until_us - next_us} us: {one_us} {one}"
                             f" {settled[one.receipt]}; {other}")  # fmt: skip
    found += check_first(ledger, stored)
    report(found, ledger.summary())


def held_until_us(got: Got, rows: list[Settled]) -> tuple[int, list[str]]:
    """Return until when a consumer surely had a message, and what was wrong in its lease."""
    found: list[str] = []
    until_us = got.lease_until_us
    if until_us < got.asked_us + got.visibility_us - TOLERANCE_US:
        found.append(f"a lease shorter than asked: {got}")
    if until_us > got.answered_us + got.visibility_us + TOLERANCE_US:
        found.append(f"a lease longer than asked: {got}")
    is_sure = True
    for row in rows:
        was_early = is_sure and row.answered_us < until_us - TOLERANCE_US
        if was_early and row.code == "lease_lost":
            found.append(f"{row.verb} was refused within the lease until {until_us}: {row}")
        if row.outcome == REFUSED:
            continue
        if row.verb == "extend":
            longer_us = row.asked_us + row.lasts_us
            until_us = longer_us if row.outcome == DONE else min(until_us, longer_us)
        else:
            until_us = min(until_us, row.asked_us)
        is_sure = False if row.verb != "extend" else is_sure
    return until_us, found


def check_first(ledger: Ledger, stored: dict[str, dict[str, object]]) -> list[str]:
    """Check that messages of a key and lane came for the first time in the order of the log."""
    found = []
    first: dict[str, Got] = {}
    for got in sorted(ledger.got, key=lambda got: int(got.receipt.split(":")[1])):
        first.setdefault(got.value, got)
    rows: dict[tuple[object, ...], list[Got]] = defaultdict(list)
    for value, message in sorted(stored.items(), key=lambda item: item[1]["offset"]):
        if value not in first:
            found.append(f"never came: {message}")
        else:
            rows[message["partition"], message["key"], message["priority"]].append(first[value])
    for row, gots in rows.items():
        for one, other in pairwise(gots):
            token, later = (int(got.receipt.split(":")[1]) for got in (one, other))
            if one.attempt == 1 and token > later:
                found.append(f"{row}: {other.id} came before {one.id}: {one} {other}")
    return found
