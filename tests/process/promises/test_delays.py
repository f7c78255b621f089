"""A delayed message never comes early, and comes once, whatever happens to the node."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.support.ledger.promises.ledger import DONE, REFUSED, Ledger, Sent
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import under_blows
from tests.support.ledger.promises.wire import Wire, as_us

LEASE_MS = 1_000
Moves = dict[str, list[tuple[int, str]]]
"""The other times that messages were given, by value, each with the outcome."""


@on(1, 3)
@rounds
def test_a_delayed_message_is_never_early_and_comes_once(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(3, delivery__max_attempts="none")
        ledger = Ledger(each.topic, "g")
        moved: Moves = {}
        works = [
            *[partial(publish, each, ledger, moved)] * 2,
            *(partial(consume, each, ledger, name) for name in ("one", "two")),
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.got), by=60)
        ledger.drain(each.wire)
        check(ledger, moved, each.wire)


def publish(
    each: Round,
    ledger: Ledger,
    moved: Moves,
    chance: random.Random,
    over: threading.Event,
) -> None:
    with each.connect() as wire:
        while not over.is_set():
            rows = ledger.publish(wire, [a_delay(chance) for _ in range(chance.randint(1, 20))])
            row = chance.choice(rows)
            if row.outcome == DONE and chance.random() < 0.3:
                reschedule(wire, row, chance, moved)
            over.wait(chance.choice((0, 0, 0.002, 0.02)))


def a_delay(chance: random.Random) -> dict[str, object]:
    ahead_ms = chance.choice((0, 1, 2, 5, 20, 100, 400, 900)) + chance.randint(0, 10)
    kind = chance.random()
    key = {"key": f"k{chance.randint(0, 50)}"} if chance.random() < 0.2 else {}
    if kind < 0.4:
        return {"deliver_at": time.time_ns() // 1_000_000 + ahead_ms, **key}
    if kind < 0.5:
        return {"deliver_at": f"+{ahead_ms}ms", **key}
    return {"delay": f"{ahead_ms}ms", **key}


def reschedule(wire: Wire, row: Sent, chance: random.Random, moved: Moves) -> None:
    at_ms = time.time_ns() // 1_000_000 + chance.randint(-50, 700)
    outcome = "unknown"
    try:
        reply = wire.ask("PATCH", f"/v1/messages/{row.id}", {"deliver_at": at_ms})
        outcome = DONE if reply.is_done else "unknown" if reply.is_unknown else REFUSED
    except Exception:
        pass
    moved.setdefault(row.value, []).append((at_ms * 1000, outcome))


def consume(
    each: Round, ledger: Ledger, name: str, _chance: random.Random, over: threading.Event
) -> None:
    with each.connect() as wire:
        while not over.is_set():
            found = ledger.receive(wire, name, visibility_ms=LEASE_MS)
            ledger.settle(wire, "ack", found)


def least_due_us(row: Sent, moved: Moves) -> int:
    said = row.said
    if "delay" in said or isinstance(said["deliver_at"], str):
        text = said.get("delay") or said["deliver_at"]
        due_us = row.asked_us + int(text.strip("+ms")) * 1000
    else:
        due_us = said["deliver_at"] * 1000
    for at_us, outcome in moved.get(row.value, ()):
        if outcome == DONE:
            due_us = at_us
        elif outcome != REFUSED:
            due_us = min(due_us, at_us)
    return due_us


def check(ledger: Ledger, moved: Moves, wire: Wire) -> None:
    found = []
    stored = ledger.stored(wire, 3)
    times = Counter(got.value for got in ledger.got)
    acked = {s.got.value for s in ledger.settled if s.outcome == DONE}
    unsure = {s.got.value for s in ledger.settled if s.outcome != DONE}
    for got in ledger.got:
        row = ledger.sent[got.value]
        early_us = least_due_us(row, moved) - got.answered_us
        if early_us > 0:
            found.append(
                f"{early_us} us early: {got}, of {row}, rescheduled {moved.get(row.value)}"
            )
    for row in ledger.sent.values():
        if (row.outcome == DONE) > (row.value in stored):
            found.append(f"not in the log: {row}")
        if (row.value in stored) > times[row.value]:
            found.append(f"never came: {row}, {stored[row.value]}")
        if times[row.value] > 1 and row.value in acked - unsure:
            found.append(f"came {times[row.value]} times: {row}")
        told = row.result.get("deliver_at")
        if told and ("delay" in row.said or isinstance(row.said["deliver_at"], str)):
            text = row.said.get("delay") or row.said["deliver_at"]
            most_us = row.answered_us + int(text.strip("+ms")) * 1000 + 1000
            if not least_due_us(row, {}) <= as_us(told) <= most_us:
                found.append(f"due at another time than {text} after the publish: {row}")
    report(found, ledger.summary())
