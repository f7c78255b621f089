"""A partition of an ordered group is with one consumer, and goes out in order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.support.ledger.promises.ledger import REFUSED, Got, Ledger, Settled
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows

PARTITIONS = 4
MEMBERS = ("one", "two", "three")
LEASES_MS = (300, 1500)


@on(1, 3)
@rounds
def test_a_partition_goes_out_in_order_to_one_consumer_at_a_time(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            PARTITIONS, delivery__max_attempts="none", delivery__backoff__initial="1ms",
            delivery__backoff__max="20ms", delivery__ordering="partition",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            publishing(each, ledger, a_message, (1, 4, 20), (0, 0.01, 0.05)),
            *(partial(consume, each, ledger, name) for name in MEMBERS),
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.settled), by=80)
        drain(each, ledger)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, int]:
    return {"partition": chance.randrange(PARTITIONS)}


def consume(
    each: Round, ledger: Ledger, name: str, chance: random.Random, over: threading.Event
) -> None:
    with each.connect(session=name) as wire:
        while not over.is_set():
            found = ledger.receive(
                wire, name, most=chance.randint(1, 20), visibility_ms=chance.choice(LEASES_MS)
            )
            while found:
                count = chance.randint(1, len(found))
                some, found = found[:count], found[count:]
                verb = chance.choices(("ack", "nack", "release", "forget"), (8, 1, 1, 1))[0]
                if verb != "forget":
                    ledger.settle(wire, verb, some)


def drain(each: Round, ledger: Ledger) -> None:
    """Let the members finish: partitions stay theirs for a session timeout."""
    with ExitStack() as stack:
        wires = [stack.enter_context(each.connect(20, session=name)) for name in MEMBERS]
        while ledger.counts(each.wire)["lag"]:
            for name, wire in zip(MEMBERS, wires, strict=True):
                found = ledger.receive(wire, name, most=1000, wait_ms=50, visibility_ms=20_000)
                ledger.settle(wire, "ack", found)


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, PARTITIONS)
    ends: dict[str, int] = {}
    settled: dict[str, list[Settled]] = defaultdict(list)
    for row in ledger.settled:
        settled[row.got.receipt].append(row)
    leases: dict[int, dict[int, list[Got]]] = defaultdict(lambda: defaultdict(list))
    for got in ledger.got:
        partition, token, _ = map(int, got.receipt.split(":"))
        leases[partition][token].append(got)
        until_us = got.lease_until_us
        for row in settled[got.receipt]:
            if row.outcome != REFUSED:
                until_us = min(until_us, row.asked_us)
        ends[got.receipt] = until_us
    acked = {
        row.got.id: row for row in ledger.settled if row.verb == "ack" and row.outcome != REFUSED
    }
    for partition, by_token in leases.items():
        rows = [by_token[token] for token in sorted(by_token)]
        for row in rows:
            offsets = [got.message["offset"] for got in row]
            if offsets != sorted(offsets):
                found.append(f"partition {partition}: {offsets} in one answer")
        for one, other in pairwise(rows):
            held_us = max(ends[got.receipt] for got in one)
            if one[0].consumer != other[0].consumer and other[0].answered_us < held_us - 2000:
                found.append(f"partition {partition} with two for {held_us - other[0].answered_us}"
                             f" us: {one} {other}")  # fmt: skip
        reached = 0
        for row in rows:
            for got in row:
                offset = got.message["offset"]
                for passed in range(reached, offset):
                    mid = f"t:{partition}:{passed}"
                    if mid not in acked and not ledger.lost:
                        held = [g for r in rows for g in r if g.id == mid]
                        found.append(f"{got.id} came before {mid} was done: {got}; {held}")
                if got.attempt == 1:
                    reached = max(reached, offset + 1)
    came = {got.value for got in ledger.got}
    found += [f"never came: {message}" for value, message in stored.items() if value not in came]
    report(found, ledger.summary())
