"""A message is delivered until its TTL is over, and never after, whatever happens to the node."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.ledger.promises.ledger import DONE, Got, Ledger, Sent, read_dead_letters
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import as_us, now_us

LEASE_MS = 500


@on(1, 3)
@rounds
def test_a_message_never_comes_after_its_ttl_and_else_always(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            2, delivery__max_attempts="none", delivery__backoff__initial="1ms",
            dead_letters__expired="true",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            *[publishing(each, ledger, a_message, (1, 5, 20), (0, 0.01, 0.05))] * 2,
            *[partial(consume, each, ledger)] * 2,
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.settled))
        ledger.drain(each.wire)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, object]:
    said: dict[str, object] = {}
    if chance.random() < 0.8:
        said["ttl"] = f"{chance.choice((1, 5, 20, 100, 300, 60_000, 3_600_000))}ms"
    if chance.random() < 0.3:
        said["delay"] = f"{chance.choice((1, 30, 200, 500))}ms"
    if chance.random() < 0.3:
        said["key"] = f"k{chance.randint(0, 20)}"
    if chance.random() < 0.3:
        said["priority"] = chance.choice(("high", "low"))
    return said


def consume(each: Round, ledger: Ledger, chance: random.Random, over: threading.Event) -> None:
    with each.connect() as wire:
        while not over.is_set():
            found = ledger.receive(wire, "c", most=chance.randint(1, 20), visibility_ms=LEASE_MS)
            if chance.random() < 0.3:
                ledger.settle(wire, "nack", found, lasts_ms=chance.choice((0, 5, 50, 200)))
            elif chance.random() < 0.9:
                ledger.settle(wire, "ack", found)
            over.wait(chance.choice((0, 0, 0.05)))


def expiry_us(row: Sent, message: Mapping[str, Any]) -> int:
    """Return when the TTL of a stored message is over."""
    parts = (str(row.said.get(name, "0ms")).removesuffix("ms") for name in ("delay", "ttl"))
    return as_us(message["timestamp"]) + sum(map(int, parts)) * 1000


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, 2)
    expected = ledger.counts(each.wire)["dead"]
    eventually(
        lambda: len(read_dead_letters(each.wire, each.topic)) >= expected, "copies have arrived"
    )
    dead: dict[str, list[object]] = defaultdict(list)
    for letter in read_dead_letters(each.wire, each.topic):
        dead[letter["value"]].append(letter)
        if letter["cause"] != "ttl":
            found.append(f"died of {letter['cause']}: {letter}")
    gots: dict[str, list[Got]] = defaultdict(list)
    for got in ledger.got:
        gots[got.value].append(got)
    acked = {row.got.value for row in ledger.settled if row.verb == "ack" and row.outcome == DONE}
    unsure = {row.got.value for row in ledger.settled if row.outcome != DONE}
    over_us = now_us()
    for row in ledger.sent.values():
        if row.value not in stored:
            if row.outcome == DONE:
                found.append(f"not in the log: {row}")
            continue
        has_ttl = "ttl" in row.said
        for got in gots[row.value]:
            leased_us = got.lease_until_us - got.visibility_us
            if has_ttl and leased_us >= expiry_us(row, stored[row.value]) + 2000:
                found.append(f"leased after its TTL: {row} {got}")
            if has_ttl and got.asked_us >= expiry_us(row, stored[row.value]) + 2000:
                found.append(f"received after its TTL: {row} {got}")
        is_dead = len(dead[row.value])
        if is_dead and (not has_ttl or expiry_us(row, stored[row.value]) > over_us):
            found.append(f"died before its TTL was over: {row} {dead[row.value]}")
        if is_dead > 1 or (is_dead and row.value in acked):
            found.append(f"acked: {row.value in acked}, dead {is_dead} times: {row}")
        if not is_dead and row.value not in acked and row.value not in unsure:
            found.append(f"neither acknowledged nor dead: {row} {gots[row.value]}")
    report(found, f"{ledger.summary()}, {len(dead)} died")
