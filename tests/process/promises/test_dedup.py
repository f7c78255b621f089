"""A dedup id is stored once in its window, and again behind it, whatever happens to the node."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from tests.support.ledger.promises.ledger import DONE, Ledger
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import as_us

WINDOW_MS = 1000
PARTITIONS = 3


@on(1, 3)
@rounds
def test_an_id_is_stored_once_in_its_window(node_count: int, effort: int, tmp_path: Path) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(PARTITIONS, dedup__window=f"{WINDOW_MS}ms")
        ledger = Ledger(each.topic, "g")
        works = [publishing(each, ledger, a_message, (1, 1, 2, 30), (0, 0.001, 0.02))] * 3
        under_blows(each, works, blows=3 * effort, progress=lambda: len(ledger.sent), by=600)
        check(ledger, each)


def a_message(chance: random.Random) -> dict[str, object]:
    said: dict[str, object] = {"dedup_id": f"d{chance.randint(0, 150)}"}
    if chance.random() < 0.1:
        said["delay"] = "1h"
    if chance.random() < 0.1:
        said["priority"] = "high"
    return said


def check(ledger: Ledger, each: Round) -> None:
    found: list[str] = []
    stored = ledger.stored(each.wire, PARTITIONS)
    window_us = WINDOW_MS * 1000
    by_id = {message["id"]: message for message in stored.values()}
    times: dict[object, list[int]] = defaultdict(list)
    for message in stored.values():
        said = ledger.sent[message["value"]].said
        times[said["dedup_id"]].append(as_us(message["timestamp"]))
    for dedup_id, appended in times.items():
        appended.sort()
        for one, next_ in pairwise(appended):
            if next_ - one < window_us:
                found.append(f"{dedup_id} was stored twice in {next_ - one} us, at {one}")
    for row in ledger.sent.values():
        is_stored = row.value in stored
        if row.outcome != DONE:
            continue
        first = row.result.get("duplicate_of")
        if (first is None) is not is_stored:
            found.append(f"told as stored: {first is None}; in the log: {is_stored}; {row}")
        if first is None:
            continue
        original = by_id.get(first)
        if (
            original is None
            or ledger.sent[original["value"]].said["dedup_id"] != row.said["dedup_id"]
        ):
            found.append(f"a duplicate of {original}: {row}")
        elif row.asked_us - as_us(original["timestamp"]) >= window_us:
            found.append(f"refused {row.asked_us - as_us(original['timestamp'])} us later: {row}")
        elif as_us(row.result["timestamp"]) != as_us(original["timestamp"]):
            found.append(f"not the time of the original {original}: {row}")
    report(found, f"{ledger.summary()}, {len(stored)} stored")
