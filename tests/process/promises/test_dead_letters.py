"""A message that fails each attempt is dead once, after exactly the attempts that it may have."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.ledger.promises.ledger import DONE, REFUSED, UNKNOWN, Ledger, read_dead_letters
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import as_us

ATTEMPTS = 3
LEASE_MS = 400


@on(1, 3)
@rounds
def test_a_message_dies_once_after_its_last_attempt(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            2, delivery__max_attempts=f"{ATTEMPTS}", delivery__visibility_timeout="1s",
            delivery__backoff__initial="1ms", delivery__backoff__max="5ms",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            publishing(each, ledger, a_message, (1, 5, 20), (0, 0.01, 0.05)),
            *(partial(consume, each, ledger, name) for name in ("one", "two")),
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.settled), by=80)
        ledger.drain(each.wire)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, str]:
    return {"key": f"k{chance.randint(0, 40)}"} if chance.random() < 0.3 else {}


def consume(
    each: Round, ledger: Ledger, name: str, chance: random.Random, over: threading.Event
) -> None:
    with each.connect() as wire:
        while not over.is_set():
            found = ledger.receive(wire, name, most=chance.randint(1, 30), visibility_ms=LEASE_MS)
            while found:
                count = chance.randint(1, len(found))
                some, found = found[:count], found[count:]
                verb = chance.choice(("ack", "nack", "nack", "nack", "reject", "release", "forget"))
                if verb == "nack":
                    ledger.settle(wire, verb, some, lasts_ms=chance.choice((None, 0, 3)))
                elif verb != "forget":
                    ledger.settle(wire, verb, some)


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, 2)
    dead: dict[str, list[Any]] = defaultdict(list)
    expected = ledger.counts(each.wire)["dead"]
    eventually(
        lambda: len(read_dead_letters(each.wire, each.topic)) >= expected, "copies have arrived"
    )
    for letter in read_dead_letters(each.wire, each.topic):
        dead[letter["origin"]].append(letter)
    settled: dict[str, list[Any]] = defaultdict(list)
    for row in ledger.settled:
        settled[row.got.id].append(row)
    attempts: dict[str, Counter[int]] = defaultdict(Counter)
    for got in ledger.got:
        attempts[got.id][got.attempt] += 1
    for message in stored.values():
        mid = message["id"]
        life = settled[mid]
        acked = [row for row in life if row.verb == "ack"]
        rejected = [row for row in life if row.verb == "reject"]
        released = any(row.verb == "release" and row.outcome != REFUSED for row in life)
        copies = dead[mid]
        gots = sorted(attempts[mid])
        if len(copies) > 1:
            found.append(f"{mid} is dead {len(copies)} times")
        if copies and any(row.outcome == DONE for row in acked):
            found.append(f"{mid} is dead and was acknowledged: {copies} {life}")
        if not copies and not any(row.outcome in (DONE, UNKNOWN) for row in acked):
            found.append(f"{mid} is neither dead nor acknowledged: {life}")
        if not copies and any(row.verb == "reject" and row.outcome == DONE for row in rejected):
            found.append(f"{mid} was rejected and is not dead: {life}")
        if gots and gots[-1] > ATTEMPTS:
            found.append(f"{mid} was delivered for the {gots[-1]}th time")
        again = [number for number, times in attempts[mid].items() if times > 1]
        if again and not released and not ledger.lost:
            found.append(f"{mid} had attempts {again} more than once")
        for copy in copies:
            found += check_letter(copy, message, life)
            if copy["cause"] != "rejected" and copy["attempts"] != ATTEMPTS:
                found.append(f"{mid} died after {copy['attempts']} attempts: {copy} {life}")
            if copy["cause"] == "rejected" and not rejected:
                found.append(f"{mid} is said to be rejected: {copy} {life}")
    for origin in dead:
        if origin not in {message["id"] for message in stored.values()}:
            found.append(f"{origin} is dead and never lived")
    report(found, f"{ledger.summary()}, {len(dead)} dead")


def check_letter(copy: Any, message: Any, life: list[Any]) -> list[str]:
    found = []
    if (copy["value"], copy.get("key")) != (message["value"], message.get("key")):
        found.append(f"another value or key than {message}: {copy}")
    if as_us(copy["published_at"]) != as_us(message["timestamp"]):
        found.append(f"another time of publishing than {message}: {copy}")
    nacks = [row for row in life if row.verb == "nack" and row.outcome == DONE]
    nacks.sort(key=lambda row: row.got.attempt)
    told = [each for each in copy["failures"] if each["cause"] == "nacked"]
    unsure = [row for row in life if row.verb == "nack" and row.outcome is UNKNOWN]
    if not len(nacks) <= len(told) <= len(nacks) + len(unsure):
        found.append(f"{len(nacks)} nacks, and the letter tells {copy['failures']}: {life}")
    for nack, failure in zip(nacks, told, strict=False):
        time_us = as_us(failure["time"])
        if not unsure and not nack.asked_us - 1000 <= time_us <= nack.answered_us:
            found.append(f"nacked at {nack.asked_us}, and the letter says {failure}")
    return found
