"""The analyses against plain loops over the same random histories."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.reports.audit.audit import audit
from goq.pipeline.reports.audit.frame_slices import FrameSlices
from goq.pipeline.reports.report import Report
from goq.pipeline.reports.retries import retries
from goq.pipeline.reports.skew import skew
from goq.pipeline.reports.waits import fairness, latency, lateness
from tests.support.pipeline.job_histories import History, deliveries, summary, waits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORIES, STEPS = 30, 120
QUANTILES = ("messages", "p50_ms", "p90_ms", "p99_ms", "max_ms")


def rows(report: Report, title: str) -> list[dict[str, Any]]:
    section = next(s for s in report.sections if s.title.startswith(title))
    assert not section.is_cut
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


class Made:
    """Histories, and the tables of all of them."""

    def __init__(self, spark: SparkSession, histories: list[History]) -> None:
        self.histories = histories
        self.messages = [row for h in histories for row in h.messages]
        self.events = [row for h in histories for row in h.events]
        self.groups = [row for h in histories for row in h.groups_rows]
        self._spark = spark

    def frames(self) -> tuple[DataFrame, DataFrame, DataFrame]:
        made = [
            self._spark.createDataFrame(
                [tuple(row[name] for name in schema.names) for row in found], ddl_of(schema)
            )
            for found, schema in (
                (self.messages, MESSAGES),
                (self.events, EVENTS),
                (self.groups, GROUPS),
            )
        ]
        return made[0], made[1], made[2]


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Made:
    """Histories that are at rest when they are exported."""
    histories = [History(seed) for seed in range(HISTORIES)]
    for history in histories:
        for _ in range(STEPS):
            history.step()
        history.stand()
    return Made(spark, histories)


def told(report: Report, title: str, by: list[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {
        tuple(row[name] for name in by): tuple(row[name] for name in QUANTILES)
        for row in rows(report, title)
    }


@pytest.mark.long
def test_waits_are_those_that_a_loop_over_the_rows_finds(made: Made) -> None:
    messages, events, _ = made.frames()
    report = latency(messages, events)
    by = ["topic", "group", "lane"]
    for title, until in (("Until first", "delivered"), ("Until ack", "acked")):
        found = waits(made.messages, made.events, until)
        assert told(report, title, by) == summary(found, by)
    found = waits(made.messages, made.events, "delivered")
    by = ["topic", "group", "tenant"]
    assert told(fairness(messages, events), "By tenant", by) == summary(found, by)
    delayed = [row for row in found if row["deliver_at"] is not None]
    late = lateness(messages, events)
    by = ["topic", "group", "lane"]
    assert told(late, "After", by) == summary(delayed, by)
    assert sum(row["early"] for row in rows(late, "After")) == sum(r["early"] for r in delayed)


def test_rates_and_reasons_are_those_that_a_loop_over_the_rows_finds(made: Made) -> None:
    messages, events, _ = made.frames()
    report = retries(messages, events)
    handed = deliveries(made.events)
    wanted: dict[tuple[str, str], list[int]] = {}
    for (message_id, group), found in handed.items():
        rate = wanted.setdefault((message_id.split(":")[0], group), [0, 0, 0])
        rate[0] += len(found)
        rate[1] += sum(event["attempt"] > 1 for event in found)
    for event in made.events:
        if event["event"] == "DEAD_LETTERED":
            wanted[event["topic"], event["group"]][2] += 1
    assert {
        (row["topic"], row["group"]): [row["deliveries"], row["again"], row["dead"]]
        for row in rows(report, "Rates")
    } == wanted
    attempts = {
        (e["message_id"], e["group"], e["lease"]): e["attempt"]
        for e in made.events
        if e["event"] == "DELIVERED"
    }
    nacks = [
        e
        for e in made.events
        if e["event"] == "NACKED"
        and e["attempt"] == attempts[e["message_id"], e["group"], e["lease"]]
    ]
    counted = Counter((e["topic"], e["group"], e["event"], e["reason"] or "") for e in nacks)
    for row in rows(report, "Reasons"):
        if row["event"] == "NACKED":
            named = (row["topic"], row["group"], row["event"], row["reason"])
            assert counted[named] == row["times"]


def test_skew_counts_every_partition_and_key(made: Made) -> None:
    messages, _, groups = made.frames()
    report = skew(messages, groups)
    for row in rows(report, "Partitions"):
        assert row["to_mean"] == 1.0
    sizes = Counter(row["topic"] for row in made.messages)
    keys = Counter((r["topic"], r["key"]) for r in made.messages if r["key"] is not None)
    for row in rows(report, "Largest keys"):
        key = {"a": b"a", "b": b"b", "\\xff": b"\xff"}[row["key"]]
        assert row["messages"] == keys[row["topic"], key]
        assert row["percent"] == round(100 * row["messages"] / sizes[row["topic"]], 3)


def fates_of(tables: FrameSlices) -> dict[tuple[str, str | None], str]:
    """Return what the audit finds of each message in each group."""
    progress = tables.progress
    names = {number: name for name, number in progress.group_numbers.items()}
    logs = {number: f"{log.topic}:{log.partition}" for number, log in progress.logs.items()}
    return {
        (f"{logs[row.log]}:{offset}", names.get(row.group)): row.name
        for row in tables.findings(shown=None)
        if row.what == "fate"
        for offset in row.offsets
    }


def test_the_fate_of_every_message_is_what_really_became_of_it(made: Made) -> None:
    found = fates_of(FrameSlices(*made.frames()))
    wanted = {named: fate for h in made.histories for named, fate in h.fates().items()}
    assert {n: (found.get(n), wanted[n]) for n in wanted if found.get(n) != wanted[n]} == {}
    assert len(set(wanted.values())) == 10, "a kind of fate is not in any history"
    assert not audit(FrameSlices(*made.frames())).failed


def test_an_export_taken_while_traffic_runs_raises_no_alarm(spark: SparkSession) -> None:
    histories = [History(1_000 + seed) for seed in range(HISTORIES)]
    for history in histories:
        for _ in range(history.luck.randrange(20, STEPS)):
            history.step()
        history.stand()
        for _ in range(history.luck.randrange(30)):
            history.step()
        known, gone = len(history.messages), 0
        if history.luck.random() < 0.5:  # retention was faster than the export
            gone = history.start
        for _ in range(history.luck.randrange(30)):
            history.step()
        history.messages = history.messages[gone:known]
    report = audit(FrameSlices(*Made(spark, histories).frames()))
    assert [section.rows for section in report.sections[1:]] == [[], [], [], []]
    assert not report.failed


def plant(history: History, is_forgotten: bool) -> tuple[str, str] | None:
    """Take away what is known of one message for one group: all of it, or only its end."""
    kinds = {"DELIVERED", "EXTENDED", "NACKED", "EXPIRED"} if is_forgotten else set()
    for (message_id, group), fate in history.fates().items():
        offset, state = int(message_id.split(":")[2]), history.groups[group]
        is_open = history.cursor(group) > offset >= max(history.start, state.restart)
        of_it = [e for e in history.events if (e["message_id"], e["group"]) == (message_id, group)]
        held = [e["event"] for e in of_it if e["event"] in ("DELIVERED", "NACKED", "EXPIRED")]
        if fate != "acknowledged" or not is_open or offset in history.cancelled:
            continue
        if is_forgotten or held[-1] == "DELIVERED":
            kinds |= {"ACKNOWLEDGED", "DEAD_LETTERED", "DROPPED", "SKIPPED"}
            gone = [e for e in of_it if e["event"] in kinds]
            history.events = [e for e in history.events if e not in gone]
            return message_id, group
    return None


def test_every_planted_loss_is_found_and_nothing_else(spark: SparkSession) -> None:
    histories = [History(2_000 + seed) for seed in range(HISTORIES)]
    lost: set[tuple[str, str] | None] = set()
    holes = set()
    for number, history in enumerate(histories):
        for _ in range(STEPS):
            history.step()
        history.now += timedelta(minutes=5)
        history.step()
        history.event("TRIMMED", history.start, None)
        history.stand()
        if number % 3 < 2:
            lost.add(plant(history, is_forgotten=number % 3 == 0))
        elif history.start < len(history.messages):
            place = history.luck.randrange(history.start, len(history.messages))
            del history.messages[place]
            holes.add((history.topic, place, place + 1))
    lost.discard(None)
    report = audit(FrameSlices(*Made(spark, histories).frames()))
    named = rows(report, "Messages that nothing")
    assert {(row["message_id"], row["group"]) for row in named} == lost
    assert {row["fate"] for row in named} == {"unaccounted", "overdue"}
    found = rows(report, "Offsets")
    assert {(row["topic"], row["start_offset"], row["end_offset"]) for row in found} == holes
    assert len(lost) > HISTORIES / 6
    assert holes
    assert report.failed
