"""An afternoon of a shop's traffic, made up from a seed: what the pictures of reports are made of.

Three topics, four groups of workers, half an hour in which payments fail, a tenant that sends in
bursts, reminders for later, and a few orders that never work. The same seed gives the same rows.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger, ExportState, FileEntry, Manifest

START = datetime(2025, 1, 15, 13, tzinfo=UTC)
HOURS = 4
_ATTEMPTS = 4
_LEASE_S = 30.0
_OUTAGE_S = (7_800.0, 9_300.0)  # from 15:10 to 15:35


class Kind(NamedTuple):
    """A topic: how many partitions, how often a message comes, and what it is like."""

    partitions: int
    every_s: float
    keys: int
    tenants: Sequence[str | None]
    delayed_share: float


class Workers(NamedTuple):
    """A group: how many workers, how long each takes, and how often they fail or vanish."""

    topic: str
    group: str
    size: int
    work_s: float
    fails: float
    vanishes: float
    suffers: bool


TOPICS = {
    "orders": Kind(6, 2.2, 700, (None,), 0.0),
    "mails": Kind(3, 4.5, 0, (None,), 0.35),
    "telemetry": Kind(4, 3.4, 40, ("acme", "globex", "initech", "umbrella"), 0.0),
}
GROUPS_OF = (
    Workers("orders", "billing", 3, 2.4, 0.015, 0.004, True),
    Workers("orders", "warehouse", 2, 1.1, 0.005, 0.001, False),
    Workers("mails", "sender", 2, 0.9, 0.03, 0.002, False),
    Workers("telemetry", "metrics", 1, 1.6, 0.0, 0.001, False),
)


@dataclass(slots=True)
class Rows:
    """The rows of the three tables."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)


def traffic(seed: int = 7) -> Rows:
    """Return the traffic of the afternoon."""
    luck = random.Random(seed)
    rows = Rows()
    for topic, kind in TOPICS.items():
        rows.messages += _published(luck, topic, kind)
    for workers in GROUPS_OF:
        of_topic = [row for row in rows.messages if row["topic"] == workers.topic]
        events = list(_worked_on(luck, workers, of_topic))
        rows.events += events
        rows.groups += _standing(workers, of_topic, events)
    rows.events.sort(key=lambda row: row["time"])
    for number, row in enumerate(rows.events):
        row["sequence"] = number
    return rows


def write_export(rows: Rows, folder: Path) -> None:
    """Write rows as ``goq export`` would have: one file a partition, of groups one a topic."""
    target = LocalDestination(folder)
    tables = (
        ("messages", MESSAGES, rows.messages, "timestamp"),
        ("events", EVENTS, rows.events, "time"),
        ("groups", GROUPS, rows.groups, "time"),
    )
    for table, schema, found, time in tables:
        for topic in TOPICS:
            by_partition: dict[int, list[dict[str, Any]]] = {}
            for row in found:
                if row["topic"] == topic:
                    partition = -1 if table == "groups" else row["partition"]
                    by_partition.setdefault(partition, []).append(row)
            entries = []
            for partition, some in sorted(by_partition.items()):
                path = f"{table}/topic_folder={topic}/date=2025-01-15/{partition}.parquet"
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(some, schema=schema), folder / path)
                times_us = [int(row[time].timestamp() * 1e6) for row in some]
                entries.append(
                    FileEntry(
                        path=path,
                        partition=partition,
                        start_offset=0,
                        end_offset=len(some),
                        rows=len(some),
                        bytes=(folder / path).stat().st_size,
                        first_time_us=min(times_us),
                        last_time_us=max(times_us),
                    )
                )
            ExportLedger(target, table, topic).finish(
                Manifest(number=1, files=entries),
                ExportState(id=f"{table} {topic}", topic=topic, plans=1),
            )


def _published(luck: random.Random, topic: str, kind: Kind) -> Iterator[dict[str, Any]]:
    ends = [0] * kind.partitions
    at_s = 0.0
    while at_s < HOURS * 3600:
        is_burst = len(kind.tenants) > 1 and 5_400 < at_s < 6_000
        at_s += luck.expovariate(1 / (kind.every_s / (9 if is_burst else 1)))
        key = f"customer-{int(luck.paretovariate(0.7)) % kind.keys:04d}" if kind.keys else None
        partition = hash_of(key or str(luck.random())) % kind.partitions
        tenant = "umbrella" if is_burst else luck.choice(kind.tenants)
        is_delayed = luck.random() < kind.delayed_share
        due = START + timedelta(seconds=round(at_s + luck.choice((60, 900, 3_600)), 3))
        offset, ends[partition] = ends[partition], ends[partition] + 1
        yield dict.fromkeys(MESSAGES.names) | {
            "key": None if key is None else key.encode(),
            "value": b"x" * int(luck.lognormvariate(5, 1)),
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": START + timedelta(seconds=at_s),
            "headers": [],
            "message_id": f"{topic}:{partition}:{offset}",
            "lane": luck.choices((0, 1, 2), (1, 8, 3))[0],
            "deliver_at": due if is_delayed else None,
            "tenant": tenant,
        }


def hash_of(text: str) -> int:
    """Return a number that depends on the text alone."""
    return random.Random(text).getrandbits(32)


def _worked_on(
    luck: random.Random, workers: Workers, messages: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what the workers of a group do: each takes the first of the most urgent lane."""
    coming = [
        ((row["deliver_at"] or row["timestamp"]).timestamp(), number, 1)
        for number, row in enumerate(messages)
    ]
    heapq.heapify(coming)
    free = [START.timestamp()] * workers.size
    heapq.heapify(free)
    ready: list[tuple[int, float, int, int]] = []
    for lease in itertools.count(1):
        if not coming and not ready:
            return
        now = heapq.heappop(free)
        if not ready:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            since, number, attempt = heapq.heappop(coming)
            heapq.heappush(ready, (messages[number]["lane"], since, number, attempt))
        _, _, number, attempt = heapq.heappop(ready)
        if now > START.timestamp() + HOURS * 3600:
            return
        now += luck.uniform(0.001, 0.006)
        row = messages[number]
        consumer = f"{workers.group}-{luck.randrange(workers.size) + 1}"
        told = {"attempt": attempt, "due": _time(now + _LEASE_S), "consumer": consumer}
        yield _event(row, workers.group, lease, "DELIVERED", now, **told)
        how, reason = _outcome(luck, workers, row, now - START.timestamp())
        work_s = luck.lognormvariate(0, 0.6) * workers.work_s
        done = now + (_LEASE_S if how == "EXPIRED" else work_s)
        told = {"attempt": attempt, "reason": reason}
        if how == "ACKNOWLEDGED":
            told = {}
        elif attempt == _ATTEMPTS:
            how, told["reason"] = "DEAD_LETTERED", reason or "expired"
        else:
            back = done + 2 ** (attempt - 1) * 5 * luck.uniform(0.8, 1.2)
            told["due"] = _time(back)
            heapq.heappush(coming, (back, number, attempt + 1))
        yield _event(row, workers.group, lease, how, done, **told)
        heapq.heappush(free, done if done < now + _LEASE_S else now + 3)


def _event(
    row: dict[str, Any], group: str, lease: int, name: str, at: float, **said: Any
) -> dict[str, Any]:
    return dict.fromkeys(EVENTS.names) | {
        "message_id": row["message_id"],
        "event": name,
        "time": _time(at),
        "group": group,
        "lease": lease,
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        **said,
    }


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _outcome(
    luck: random.Random, workers: Workers, row: dict[str, Any], at_s: float
) -> tuple[str, str | None]:
    chance = luck.random()
    if chance < workers.vanishes:
        return "EXPIRED", None
    if workers.suffers and _OUTAGE_S[0] < at_s < _OUTAGE_S[1] and chance < 0.6:
        return "NACKED", "payment provider: 503"
    if workers.suffers and row["key"] in (b"customer-0013", b"customer-0042"):
        return "NACKED", "no such customer"
    return ("NACKED", "connection reset") if chance < workers.fails else ("ACKNOWLEDGED", None)


def _standing(
    workers: Workers, messages: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    delivered = {(row["partition"], row["offset"]) for row in events}
    for partition in range(TOPICS[workers.topic].partitions):
        end = sum(row["partition"] == partition for row in messages)
        fresh = (offset for offset in range(end) if (partition, offset) not in delivered)
        yield dict.fromkeys(GROUPS.names, 0) | {
            "time": START + timedelta(hours=HOURS),
            "topic": workers.topic,
            "group": workers.group,
            "partition": partition,
            "end_offset": end,
            "cursor": next(fresh, end),
        }
