"""Searches find exactly what the log has, whatever happens to the node."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.ledger.promises.ledger import DONE, Ledger
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import publishing, under_blows
from tests.support.ledger.promises.wire import Wire, as_us

PARTITIONS = 2


@on(1)
@rounds
def test_a_search_finds_exactly_the_messages_of_the_log(
    node_count: int, effort: int, tmp_path: Path
) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(PARTITIONS, dedup__window="1s")
        ledger = Ledger(each.topic, "g")
        found: list[str] = []
        works = [
            publishing(each, ledger, a_message, (1, 3, 40), (0, 0.01)),
            partial(search, each, ledger, found),
        ]
        under_blows(each, works, blows=2 * effort, progress=lambda: len(ledger.sent), by=300)
        check(ledger, each, found)


def a_message(chance: random.Random) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if chance.random() < 0.7:
        said["key"] = f"k{chance.randint(0, 15)}"
    if chance.random() < 0.3:
        said["dedup_id"] = f"d{chance.randint(0, 60)}"
    if chance.random() < 0.3:
        said["headers"] = {"h": f"x{chance.randint(0, 10)}"}
    if chance.random() < 0.2:
        said["delay"] = f"{chance.choice((1, 3600))}s"
    return said


def search(
    each: Round, ledger: Ledger, found: list[str], chance: random.Random, over: threading.Event
) -> None:
    """Look for keys meanwhile: what was confirmed before a search began is found by it."""
    with each.connect(15) as wire:
        while not over.is_set():
            key = f"k{chance.randint(0, 15)}"
            wanted = {
                row.id
                for row in list(ledger.sent.values())
                if row.outcome == DONE and row.said.get("key") == key
                and "duplicate_of" not in row.result
            }  # fmt: skip
            if wanted and (missing := wanted - set(ids_of(wire, "key", key))):
                found.append(f"a search for {key} did not find {missing}")
            over.wait(0.02)


def ids_of(wire: Wire, name: str, text: str) -> list[str]:
    """Return the ids that a search finds, in its order."""
    found: list[str] = []
    after = ""
    while True:
        page = wire.must("GET", f"/v1/topics/t/trace?{name}={quote(text)}&limit=30{after}")
        found.extend(trace["message"]["id"] for trace in page["traces"])
        if page["next"] is None:
            return found
        after = f"&cursor={quote(page['next'])}"


def check(ledger: Ledger, each: Round, found: list[str]) -> None:
    stored = ledger.stored(each.wire, PARTITIONS)
    wanted: dict[tuple[str, str], list[str]] = defaultdict(list)
    times: dict[str, int] = {}
    for value, message in stored.items():
        said = ledger.sent[value].said
        times[message["id"]] = as_us(message["timestamp"])
        for name in ("key", "dedup_id"):
            if name in said:
                wanted[name, said[name]].append(message["id"])
        if "headers" in said:
            wanted["header", f"h={said['headers']['h']}"].append(message["id"])
    for (name, text), ids in wanted.items():
        seen = ids_of(each.wire, name, text)
        if sorted(seen) != sorted(ids):
            found.append(f"{name} {text}: missing {set(ids) - set(seen)}, too many {len(seen)} of"
                         f" {len(ids)}: {set(seen) - set(ids)}")  # fmt: skip
        for one, other in pairwise(seen):
            if times[one] < times[other]:
                found.append(f"{name} {text}: {one} before {other}, which is newer")
    found += check_scheduled(ledger, each, stored)
    report(found, f"{ledger.summary()}, {len(wanted)} searches")


def check_scheduled(ledger: Ledger, each: Round, stored: dict[str, Any]) -> list[str]:
    wanted = {
        message["id"] for value, message in stored.items()
        if ledger.sent[value].said.get("delay") == "3600s"
    }  # fmt: skip
    seen: list[Any] = []
    after = ""
    while True:
        page = each.wire.must("GET", f"/v1/topics/t/scheduled?limit=30{after}")
        seen += page["messages"]
        if page["next"] is None:
            break
        after = f"&after={quote(page['next'])}"
    dues = [as_us(message["deliver_at"]) for message in seen]
    far = [message["id"] for message in seen if ledger.sent[message["value"]].said["delay"] != "1s"]
    found = []
    if dues != sorted(dues):
        found.append("the scheduled are not in the order of their due times")
    if sorted(far) != sorted(wanted):
        found.append(f"scheduled: {len(far)} listed, {len(wanted)} are; {wanted ^ set(far)}")
    return found
