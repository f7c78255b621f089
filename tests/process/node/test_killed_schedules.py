"""However often a node is killed around due times, each time gives one message."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goq.client import Client
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))
SCHEDULES = 5


def dues(client: Client) -> list[tuple[str, int]]:
    """The schedule and the due time, in seconds, of each message."""
    return [
        (
            dict(message.headers)["goq-schedule"].decode(),
            round(datetime.fromisoformat(_due(message.headers)).timestamp()),
        )
        for message in client.read_log("ticks")
    ]


def _due(headers: object) -> str:
    return dict(headers)["goq-schedule-due"].decode()


@pytest.mark.parametrize("kills", [5, pytest.param(60, marks=pytest.mark.long)])
def test_each_second_gives_one_message_whenever_the_node_is_killed(
    kills: int, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.url) as client:
            client.create_topic("ticks", 3)
            for number in range(SCHEDULES):
                client.create_schedule(
                    f"s{number}", "ticks", "v", cron="* * * * * *", key=str(number)
                )
            eventually(lambda: dues(client), "a schedule has run")
        for _ in range(kills):
            # from just before a due time to well behind its record
            into_s = 1 - datetime.now(UTC).microsecond / 1e6 + chance.uniform(-0.02, 0.2)
            time.sleep(max(0.0, into_s))  # the moment is what is chosen here
            node.kill()
            node.start()
        with Client(node.url) as client:
            since_s = time.time()
            eventually(
                lambda: min(_last(client, name) for name in _names()) >= since_s,
                "all schedules have run again",
                seconds=30,
                pause_s=0.1,
            )
            counts = Counter(dues(client))
    assert set(counts.values()) == {1}, f"seed {SEED}: {counts.most_common(3)}"
    for name in _names():
        times = sorted(due for schedule, due in counts if schedule == name)
        assert times == list(range(times[0], times[-1] + 1)), f"seed {SEED}: {name}"


def _names() -> list[str]:
    return [f"s{number}" for number in range(SCHEDULES)]


def _last(client: Client, name: str) -> float:
    last = client.describe_schedule(name).last
    return 0.0 if last is None else last.timestamp()
