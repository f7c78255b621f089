"""A schedule gives one message for each time that it is due, whichever node is struck."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.ledger.promises.ledger import read_log
from tests.support.ledger.promises.rounds import Round, on, one_round, report, rounds
from tests.support.ledger.promises.storm import under_blows
from tests.support.ledger.promises.wire import as_us

PARTITIONS = 2
SCHEDULES = 4


@on(3)
@rounds
def test_each_due_time_gives_one_message(node_count: int, effort: int, tmp_path: Path) -> None:
    with one_round(tmp_path, effort, node_count) as each:
        each.create(PARTITIONS)
        for number in range(SCHEDULES):
            body = {"topic": "t", "messages": [{"value": "v", "key": f"{number}"}]}
            every = {"every": "1s"} if number % 2 else {"cron": "* * * * * *"}
            each.wire.must("PUT", f"/v1/schedules/s{number}", body | every)
        under_blows(each, [], blows=2 * effort, progress=lambda: len(ticks(each)), by=SCHEDULES)
        reached = len(ticks(each))
        eventually(lambda: len(ticks(each)) > reached + 2 * SCHEDULES, pause_s=0.2)
        for number in range(SCHEDULES):
            each.wire.must("POST", f"/v1/schedules/s{number}/pause")
        check(ticks(each))


def ticks(each: Round) -> list[Any]:
    return [message for p in range(PARTITIONS) for message in read_log(each.wire, "t", p)]


def check(messages: list[Any]) -> None:
    found = []
    dues: dict[str, Counter[int]] = {f"s{number}": Counter() for number in range(SCHEDULES)}
    for message in messages:
        due_us = as_us(message["headers"]["goq-schedule-due"])
        dues[message["headers"]["goq-schedule"]][due_us] += 1
        if as_us(message["timestamp"]) < due_us:
            found.append(f"before it was due: {message}")
    for name, times in dues.items():
        found += [f"{name} {count} times at {at}" for at, count in times.items() if count > 1]
        for one, other in pairwise(sorted(times)):
            if other - one != 1_000_000:
                found.append(f"{name}: nothing between {one} and {other}")
    report(found, f"{len(messages)} messages")
