"""A read from one time to another has exactly the messages appended between them."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.ledger.promises.ledger import DONE, Ledger, read_log
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import Unanswered, as_rfc, as_us, now_us

PARTITIONS = 2
Seen = tuple[int, int, int, list[Any]]
"""From when to when which partition was read, and the messages."""


@on(1, 3)
@rounds
def test_a_replay_has_exactly_what_was_appended_in_its_time(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    seen: list[Seen] = []
    with one_round(tmp_path, effort, node_count) as each:
        each.create(PARTITIONS)
        ledger = Ledger(each.topic, "g")
        works = [
            *[publishing(each, ledger, lambda _chance: {}, (1, 1, 3, 30), (0, 0, 0.002, 0.02))] * 2,
            *[partial(read, each, ledger, seen)] * 2,
        ]
        under_blows(each, works, blows=3 * effort, progress=lambda: len(seen), by=30)
        check(ledger, each, seen)


def some_times(ledger: Ledger, chance: random.Random) -> tuple[int, int]:
    """Return a range that ends about now, or one from one message exactly to another."""
    rows = [row for row in list(ledger.sent.values())[-300:] if row.outcome == DONE]
    if len(rows) < 2 or chance.random() < 0.5:
        to_us = now_us() - chance.choice((0, 0, 100, 1000, 50_000))
        return to_us - chance.choice((500, 20_000, 300_000)), to_us
    first, last = sorted(as_us(row.result["timestamp"]) for row in chance.sample(rows, 2))
    return first, last


def read(
    each: Round, ledger: Ledger, seen: list[Seen], chance: random.Random, over: threading.Event
) -> None:
    """Read ranges of time that end now, or ended lately, while messages are being stored."""
    with each.connect(15) as wire:
        while not over.is_set():
            partition = chance.randrange(PARTITIONS)
            from_us, to_us = some_times(ledger, chance)
            times = f"&from_time={as_rfc(from_us)}&to_time={as_rfc(to_us)}"
            offset, found = 0, []
            try:
                while True:
                    path = f"/v1/topics/t/messages?partition={partition}&offset={offset}&limit=500"
                    reply = wire.ask("GET", path + times)
                    if not reply.is_done:
                        break
                    found += reply.body["messages"]
                    if reply.body["next"] >= reply.body["end"]:
                        seen.append((from_us, to_us, partition, found))
                        break
                    offset = reply.body["next"]
            except Unanswered:
                pass
            over.wait(0.005)


def check(ledger: Ledger, each: Round, seen: list[Seen]) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, PARTITIONS)
    for row in ledger.sent.values():
        if row.outcome == DONE and row.value not in stored:
            found.append(f"not in the log: {row}")
        if row.outcome == DONE:
            time_us = as_us(row.result["timestamp"])
            if not row.asked_us <= time_us <= row.answered_us:
                found.append(f"stored at another time than asked: {row}")
            if as_us(stored[row.value]["timestamp"]) != time_us:
                found.append(f"{stored[row.value]} has another time than was told: {row}")
    logs = [
        [(as_us(message["timestamp"]), message["id"]) for message in read_log(each.wire, "t", p)]
        for p in range(PARTITIONS)
    ]
    for from_us, to_us, partition, messages in seen:
        wanted = [mid for time_us, mid in logs[partition] if from_us <= time_us < to_us]
        got = [message["id"] for message in messages]
        if got != wanted:
            found.append(f"partition {partition} from {as_rfc(from_us)} to {as_rfc(to_us)}:"
                         f" missing {sorted(set(wanted) - set(got))[:5]}, too many"
                         f" {sorted(set(got) - set(wanted))[:5]}")  # fmt: skip
    full = sum(bool(messages) for *_, messages in seen)
    report(found, f"{ledger.summary()}, {len(seen)} reads, {full} not empty")
