"""An ack that was confirmed holds, one that was refused did nothing, whatever happens."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path

from tests.support.ledger.promises.ledger import DONE, REFUSED, UNKNOWN, Got, Ledger, Settled
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows

LEASES_MS = (200, 500, 1000)
PARTITIONS = 3


@on(1, 3)
@rounds
def test_a_message_comes_until_its_ack_is_confirmed_and_never_after(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(
            PARTITIONS, delivery__max_attempts="none", delivery__backoff__initial="1ms",
            delivery__ordering="none",
        )  # fmt: skip
        ledger = Ledger(each.topic, "g")
        works = [
            publishing(each, ledger, lambda _chance: {}, (1, 4, 15), (0.005, 0.02)),
            *(partial(consume, each, ledger, name) for name in ("one", "two", "three")),
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.settled), by=100)
        ledger.drain(each.wire)
        check(ledger, each)


def consume(
    each: Round, ledger: Ledger, name: str, chance: random.Random, over: threading.Event
) -> None:
    """Acknowledge most of what comes; an ack of an unknown outcome is sent again until it has one.

    With little patience, so that answers are lost also where the node only stands still.
    """
    with each.connect(0.4) as wire:
        while not over.is_set():
            found = ledger.receive(
                wire, name, most=chance.randint(1, 30), visibility_ms=chance.choice(LEASES_MS)
            )
            while found:
                count = chance.randint(1, len(found))
                some, found = found[:count], found[count:]
                if chance.random() < 0.1:
                    continue
                verb = chance.choices(("ack", "nack", "release"), (8, 1, 1))[0]
                rows = ledger.settle(wire, verb, some)
                while verb == "ack" and (left := [r.got for r in rows if is_open(r)]):
                    if over.is_set():
                        break
                    rows = ledger.settle(wire, verb, left)


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, PARTITIONS)
    gots: dict[str, list[Got]] = defaultdict(list)
    for got in ledger.got:
        gots[got.value].append(got)
    acks: dict[str, list[Settled]] = defaultdict(list)
    for row in ledger.settled:
        if row.verb == "ack":
            acks[row.got.value].append(row)
    for value, message in stored.items():
        rows = sorted(acks[value], key=lambda row: row.asked_us)
        done = [row for row in rows if row.outcome == DONE]
        last: dict[str, Settled] = {row.got.receipt: row for row in rows}
        is_lost = all(row.code == "lease_lost" for row in last.values())
        if not done and (not rows or is_lost):
            told = [(row.got.receipt, row.code, row.asked_us, row.answered_us) for row in rows]
            found.append(f"finished, and every ack was lost: {message} {told} {gots[value]}")
        tokens = {row.got.receipt for row in done}
        if len(tokens) > 1:
            found.append(f"acknowledged under {len(tokens)} leases: {done}")
        for ack in done[:1]:
            for got in gots[value]:
                if got.asked_us > ack.answered_us:
                    found.append(f"came after {ack}: {got}")
                elif token(got) > token(ack.got):
                    found.append(f"came under a later lease than {ack}: {got}")
    report(found, ledger.summary())


def is_open(row: Settled) -> bool:
    """Whether another ack may be answered otherwise."""
    return row.outcome == UNKNOWN or (row.outcome == REFUSED and row.code != "lease_lost")


def token(got: Got) -> int:
    return int(got.receipt.split(":")[1])
