"""What the analyses say of traffic that is known to the last message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa

from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.reports.audit.audit import Audit, audit
from goq.pipeline.reports.audit.frame_slices import FrameSlices
from goq.pipeline.reports.html.charts import chart_of
from goq.pipeline.reports.report import Report
from goq.pipeline.reports.report_selection import ReportSelection
from goq.pipeline.reports.retries import retries
from goq.pipeline.reports.skew import skew
from goq.pipeline.reports.traffic import traffic as traffic_report
from goq.pipeline.reports.waits import fairness, latency, lateness
from tests.support.effort import first_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2025, 1, 15, 12, tzinfo=UTC)


class Traffic:
    """Messages and what happened to them, put together by hand."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.groups: list[dict[str, Any]] = []

    def publish(self, offset: int, at_ms: int = 0, **said: Any) -> None:
        row = dict.fromkeys(MESSAGES.names) | {
            "value": b"12345678",
            "topic": "orders",
            "partition": 0,
            "offset": offset,
            "timestamp": NOON + timedelta(milliseconds=at_ms),
            "headers": [],
            "message_id": f"orders:0:{offset}",
            "lane": 1,
        }
        self.messages.append(row | said)

    def event(self, name: str, offset: int, at_ms: int, **said: Any) -> None:
        row = dict.fromkeys(EVENTS.names) | {
            "message_id": f"orders:0:{offset}",
            "event": name,
            "time": NOON + timedelta(milliseconds=at_ms),
            "group": "billing",
            "topic": "orders",
            "partition": 0,
            "offset": offset,
            "sequence": len(self.events),
        }
        self.events.append(row | said)

    def stands(self, cursor: int, end: int, start: int = 0) -> None:
        row = dict.fromkeys(GROUPS.names, 0) | {
            "time": NOON,
            "topic": "orders",
            "group": "billing",
            "start_offset": start,
            "end_offset": end,
            "cursor": cursor,
        }
        self.groups.append(row)

    def frames(self) -> tuple[DataFrame, DataFrame, DataFrame]:
        made = []
        for rows, schema in (
            (self.messages, MESSAGES),
            (self.events, EVENTS),
            (self.groups, GROUPS),
        ):
            table = pa.Table.from_pylist(rows, schema=schema)
            made.append(self._spark.createDataFrame(table, ddl_of(schema)))
        return made[0], made[1], made[2]


@pytest.fixture
def traffic(spark: SparkSession) -> Traffic:
    return Traffic(spark)


def rows(report: Report, title: str) -> list[dict[str, Any]]:
    section = next(s for s in report.sections if s.title.startswith(title))
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


def test_latency_is_told_by_quantiles_of_each_lane_and_in_the_course_of_time(
    traffic: Traffic,
) -> None:
    for offset in range(100):
        traffic.publish(offset, offset, lane=offset % 2)
        traffic.event("DELIVERED", offset, 2 * offset, attempt=1)
        traffic.event("ACKNOWLEDGED", offset, 2 * offset + 500)
    report = latency(*traffic.frames()[:2])
    first = rows(report, "Until first delivered")
    assert [(r["lane"], r["messages"]) for r in first] == [(0, 50), (1, 50)]
    assert [(r["p50_ms"], r["max_ms"]) for r in first] == [(48.0, 98.0), (49.0, 99.0)]
    whole = rows(report, "Until acknowledged")
    assert [(r["p90_ms"], r["max_ms"]) for r in whole] == [(588.0, 598.0), (589.0, 599.0)]
    (second,) = rows(report, "Until first delivered, every second")
    assert (second["time"], second["max_ms"]) == ("2025-01-15T12:00:00.000000Z", 99.0)
    assert report.scope is not None
    assert report.scope[:2] == (["orders"], 100)


@pytest.mark.parametrize(
    ("span_s", "step"),
    first_of(
        [(121, "10 seconds"), (1201, "minute"), (120, "second"), (1200, "10 seconds")], quick=2
    ),
)
def test_the_course_has_steps_that_fit_the_time(traffic: Traffic, span_s: int, step: str) -> None:
    traffic.publish(0)
    traffic.publish(1, span_s * 1000)
    for offset in range(2):
        traffic.event("DELIVERED", offset, span_s * 1000 + 1, attempt=1)
    titles = [section.title for section in latency(*traffic.frames()[:2]).sections]
    assert f"Until first delivered, every {step}" in titles


def test_waits_over_a_bound_have_their_share(traffic: Traffic) -> None:
    for offset, wait_ms in enumerate((10, 1000, 1001, 5000)):
        traffic.publish(offset, deliver_at=NOON)
        traffic.event("DELIVERED", offset, wait_ms, attempt=1)
    messages, events, _ = traffic.frames()
    for report in (latency, lateness, fairness):
        assert report(messages, events, 1000).sections[0].rows[0][-2:].count(50.0) == 1
        assert "over_slo_percent" not in report(messages, events).sections[0].columns


def test_a_report_is_about_the_messages_of_a_time_and_about_one_group(traffic: Traffic) -> None:
    for offset in range(4):
        traffic.publish(offset, offset * 1000)
        traffic.event("DELIVERED", offset, 9000, attempt=1)
        traffic.event("DELIVERED", offset, 9000, attempt=1, group="other")
        traffic.event("MOVED", offset, 8000, group=None, reason="lane 2")
    traffic.stands(0, 4)
    whole, happened, groups = traffic.frames()
    noon_us = int(NOON.timestamp() * 1_000_000)
    chosen = ReportSelection(noon_us + 1_000_000, noon_us + 3_000_000, "billing")
    messages = chosen.messages(whole)
    assert sorted(row.offset for row in messages.collect()) == [1, 2]
    events = chosen.events(happened, messages).collect()
    told = {(row.offset, row.event, row.group) for row in events}
    assert told == {
        (offset, *what) for offset in (1, 2) for what in (("DELIVERED", "billing"), ("MOVED", None))
    }
    assert len(events) == 4
    every = ReportSelection()
    assert every.events(happened, every.messages(whole)).count() == 12
    assert (chosen.groups(groups).count(), ReportSelection(group="no").groups(groups).count()) == (
        1,
        0,
    )


def test_traffic_tells_rates_backlog_and_service_over_time(traffic: Traffic) -> None:
    """Ten messages in two seconds; the last is due at the end, one is cancelled, one is passed."""
    for offset in range(10):
        due = NOON + timedelta(seconds=3) if offset == 9 else None
        traffic.publish(offset, 200 * offset, deliver_at=due)
    for offset in range(6):
        traffic.event("DELIVERED", offset, 2000, attempt=1, lease=1, consumer=f"c{offset % 2}")
    for offset in range(5):
        traffic.event("ACKNOWLEDGED", offset, 2100 + 100 * offset, lease=1)
    traffic.event("DEAD_LETTERED", 5, 3200, attempt=1, lease=1)
    traffic.event("CANCELLED", 7, 3300, group=None)
    traffic.event("RESET", 7, 3400)
    messages, events, _ = traffic.frames()
    report = traffic_report(messages, events, 400)
    (total,) = rows(report, "In all")
    assert {name: total[name] for name in list(total)[2:]} == {
        "published": 10,
        "delivered": 6,
        "acknowledged": 5,
        "dead": 1,
        "most_backlog": 9,
    }
    rates = rows(report, "Messages a second, every second")
    assert [row["published"] for row in rates] == [5, 5, 0, 0]
    assert [row["acknowledged"] for row in rates] == [0, 0, 5, 0]
    assert [row["dead"] for row in rates] == [0, 0, 0, 1]
    assert [row["backlog"] for row in rows(report, "Backlog")] == [5, 9, 4, 2]
    assert [row["oldest_ms"] for row in rows(report, "Age")] == [1000, 2000, 2000, 3000]
    service = {row["consumer"]: row for row in rows(report, "From the delivery")}
    assert {name: row["max_ms"] for name, row in service.items()} == {"c0": 500, "c1": 400}
    assert service["c0"]["over_slo_percent"] == 33.333
    for section in report.sections[1:]:
        assert section.chart is not None
        ElementTree.fromstring(chart_of(section))


def test_a_reset_to_behind_the_last_message_ends_the_backlog_of_a_time(traffic: Traffic) -> None:
    for offset in range(3):
        traffic.publish(offset, at_ms=1000)
    traffic.event("RESET", 0, -5000)
    traffic.event("RESET", 3, 2500)  # of a message that is not published yet
    messages, events, _ = traffic.frames()
    chosen = ReportSelection(since_us=int(NOON.timestamp() * 1_000_000))
    some = chosen.messages(messages)
    report = traffic_report(some, chosen.events(events, some))
    backlog = rows(report, "Backlog at the end, every second")
    assert [row["backlog"] for row in backlog] == [3, 0]


def test_a_rescheduled_message_is_in_the_backlog_from_its_latest_due_time_on(
    traffic: Traffic,
) -> None:
    for offset, due_s in enumerate((1, 1, 60)):
        traffic.publish(offset, deliver_at=NOON + timedelta(seconds=due_s))
    for offset, due_s in ((0, 2), (0, 3600), (2, 2)):
        due = NOON + timedelta(seconds=due_s)
        traffic.event("RESCHEDULED", offset, 500, group=None, due=due)
    traffic.event("DELIVERED", 1, 3500, attempt=1, lease=1)
    traffic.event("ACKNOWLEDGED", 1, 3600, lease=1)
    report = traffic_report(*traffic.frames()[:2])
    assert [row["backlog"] for row in rows(report, "Backlog")] == [0, 1, 2, 1]


def test_a_message_that_retention_deleted_is_in_no_backlog_any_more(traffic: Traffic) -> None:
    for offset in range(6):
        traffic.publish(offset)
    traffic.event("TRIMMED", 1, 1000, group=None)
    traffic.event("TRIMMED", 2, 1500, group=None)
    traffic.event("DELIVERED", 3, 2000, attempt=1, lease=1)
    traffic.event("ACKNOWLEDGED", 3, 2000, lease=1)
    traffic.event("TRIMMED", 5, 3000, group=None)
    messages, events, _ = traffic.frames()
    report = traffic_report(messages, events)
    assert [row["backlog"] for row in rows(report, "Backlog")] == [6, 4, 3, 1]
    chosen = ReportSelection(until_us=int(NOON.timestamp() * 1_000_000) + 1)
    some = chosen.messages(messages.where("offset < 5"))
    backlog = rows(traffic_report(some, chosen.events(events, some)), "Backlog")
    assert [row["backlog"] for row in backlog] == [5, 3, 2, 0]


def test_traffic_of_a_topic_without_groups_has_its_rate(traffic: Traffic) -> None:
    traffic.publish(0)
    report = traffic_report(*traffic.frames()[:2])
    (row,) = rows(report, "Messages a second")
    assert (row["group"], row["published"]) == (None, 1)
    assert rows(report, "Backlog") == []


def test_a_second_delivery_is_not_taken_for_the_first(traffic: Traffic) -> None:
    traffic.publish(0)
    traffic.event("DELIVERED", 0, 10, attempt=1)
    traffic.event("DELIVERED", 0, 5_000, attempt=2)
    (row,) = rows(latency(*traffic.frames()[:2]), "Until first delivered")
    assert row["max_ms"] == 10


def test_lateness_counts_from_the_time_that_was_asked_for(traffic: Traffic) -> None:
    traffic.publish(0, deliver_at=NOON + timedelta(seconds=60))
    traffic.publish(1)
    traffic.event("DELIVERED", 0, 60_007, attempt=1)
    traffic.event("DELIVERED", 1, 3, attempt=1)
    (row,) = rows(lateness(*traffic.frames()[:2]), "After their time")
    assert (row["messages"], row["max_ms"]) == (1, 7.0)


def test_fairness_compares_tenants_and_lanes(traffic: Traffic) -> None:
    for offset, (tenant, lane, waits) in enumerate([("a", 0, 5), ("b", 0, 50), (None, 1, 500)]):
        traffic.publish(offset, tenant=tenant, lane=lane)
        traffic.event("DELIVERED", offset, waits, attempt=1)
    report = fairness(*traffic.frames()[:2])
    tenants = {r["tenant"]: r["max_ms"] for r in rows(report, "By tenant")}
    assert tenants == {None: 500.0, "a": 5.0, "b": 50.0}
    assert {r["lane"]: r["max_ms"] for r in rows(report, "By lane")} == {0: 50.0, 1: 500.0}


def test_retries_tell_rates_reasons_and_the_keys_behind_them(traffic: Traffic) -> None:
    for offset in range(4):
        traffic.publish(offset, key=b"bad" if offset == 0 else b"good")
        traffic.event("DELIVERED", offset, 1, attempt=1)
    traffic.event("NACKED", 0, 2, attempt=1, reason="no card")
    traffic.event("DELIVERED", 0, 3, attempt=2)
    traffic.event("DEAD_LETTERED", 0, 4, attempt=2, reason="no card")
    report = retries(*traffic.frames()[:2])
    (rate,) = rows(report, "Rates")
    assert (rate["deliveries"], rate["messages"], rate["again"], rate["dead"]) == (5, 4, 1, 1)
    assert (rate["again_percent"], rate["dead_percent"]) == (20.0, 25.0)
    assert {(r["event"], r["reason"], r["times"]) for r in rows(report, "Reasons")} == {
        ("NACKED", "no card", 1),
        ("DEAD_LETTERED", "no card", 1),
    }
    (poison,) = rows(report, "Keys that fail most")
    assert (poison["key"], poison["failures"], poison["dead"]) == ("bad", 2, 1)


def test_skew_tells_partitions_beside_the_mean_and_the_largest_keys(traffic: Traffic) -> None:
    for offset in range(6):
        traffic.publish(offset, partition=0 if offset < 5 else 1, key=b"k" if offset else None)
    traffic.stands(cursor=0, end=0)
    traffic.groups[-1]["partition"] = 2
    messages, _, groups = traffic.frames()
    report = skew(messages, groups)
    assert [r["to_mean"] for r in rows(report, "Partitions")] == [2.5, 0.5, 0.0]
    (key,) = rows(report, "Largest keys")
    assert (key["messages"], key["percent"]) == (5, 83.333)


def account(report: Report) -> dict[str, int]:
    found = rows(report, "What became of them")
    return {r["fate"]: r["messages"] for r in found}


def test_an_audit_accounts_for_every_fate(traffic: Traffic) -> None:
    for offset in range(10):
        traffic.publish(offset)
    for offset in (0, 1, 2, 3):
        traffic.event("DELIVERED", offset, 1, attempt=1)
    traffic.event("ACKNOWLEDGED", 0, 2)
    traffic.event("DEAD_LETTERED", 1, 2, attempt=1)
    traffic.event("NACKED", 2, 2, attempt=1)
    traffic.event("EXPIRED", 4, 2, reason="ttl")
    traffic.event("CANCELLED", 5, 2, group=None)
    traffic.event("CORRUPTED", 6, 2, group=None)
    traffic.event("SKIPPED", 7, 2)
    traffic.stands(cursor=8, end=10)
    report = audit(FrameSlices(*traffic.frames()))
    assert account(report) == {
        "acknowledged": 1,
        "cancelled": 1,
        "damaged": 1,
        "dead": 1,
        "expired": 1,
        "skipped": 1,
        "outstanding": 2,
        "waiting": 2,
    }
    assert not report.failed


def test_an_audit_fails_for_a_message_that_was_taken_and_never_heard_of(traffic: Traffic) -> None:
    for offset in range(3):
        traffic.publish(offset)
    traffic.event("DELIVERED", 0, 1, attempt=1)
    traffic.event("ACKNOWLEDGED", 0, 2)
    traffic.event("DELIVERED", 2, 1, attempt=1)
    traffic.event("ACKNOWLEDGED", 2, 2)
    traffic.stands(cursor=3, end=3)
    report = audit(FrameSlices(*traffic.frames()))
    assert report.failed
    (lost,) = rows(report, "Messages that nothing is known of")
    assert lost["message_id"] == "orders:0:1"


def test_an_audit_fails_for_an_offset_that_is_in_no_file(traffic: Traffic) -> None:
    for offset in (0, 1, 4):
        traffic.publish(offset)
    traffic.event("CORRUPTED", 3, 1, group=None)
    traffic.stands(cursor=0, end=5)
    messages, events, groups = traffic.frames()
    report = audit(FrameSlices(messages, events, groups))
    assert report.failed
    (gap,) = rows(report, "Offsets that are in no file")
    assert (gap["start_offset"], gap["end_offset"]) == (2, 3)


def test_offsets_that_compaction_took_are_not_missing(traffic: Traffic) -> None:
    for offset in (0, 5, 9, 12):
        traffic.publish(offset)
    traffic.event("COMPACTED", 0, 1, group=None, reason="7")
    traffic.event("COMPACTED", 7, 1, group=None, reason="10")
    messages, events, groups = traffic.frames()
    (gap,) = Audit.of(FrameSlices(messages, events, groups)).gaps
    assert gap[2:] == (10, 12)


def test_what_a_reset_passed_over_and_retention_deleted_is_accounted_for(traffic: Traffic) -> None:
    for offset in range(4):
        traffic.publish(offset)
    traffic.event("RESET", 4, 1)
    traffic.stands(cursor=4, end=4)
    assert account(audit(FrameSlices(*traffic.frames()))) == {"passed over": 4}
    traffic.events.clear()
    traffic.groups.clear()
    traffic.stands(cursor=4, end=4, start=4)
    traffic.event("DELIVERED", 9, 1, attempt=1)
    assert account(audit(FrameSlices(*traffic.frames()))) == {"deleted": 4}


def test_the_end_of_a_log_that_is_in_no_file_is_missing_and_so_is_its_beginning(
    traffic: Traffic,
) -> None:
    for offset in (3, 4):
        traffic.publish(offset)
    traffic.stands(cursor=0, end=7, start=1)
    messages, events, groups = traffic.frames()
    gaps = Audit.of(FrameSlices(messages, events, groups)).gaps
    assert [gap[2:] for gap in gaps] == [(1, 3), (5, 7)]


def test_what_retention_deleted_before_it_was_exported_is_not_missing(traffic: Traffic) -> None:
    traffic.stands(cursor=0, end=6)
    for offset in (4, 5):
        traffic.publish(offset)
    traffic.event("TRIMMED", 3, 1, group=None)
    messages, events, groups = traffic.frames()
    (gap,) = Audit.of(FrameSlices(messages, events, groups)).gaps
    assert gap[2:] == (3, 4)


def test_a_receive_that_was_taken_back_is_neither_a_delivery_nor_a_failure(
    traffic: Traffic,
) -> None:
    traffic.publish(0, key=b"k")
    traffic.event("DELIVERED", 0, 1, attempt=1, lease=1)
    traffic.event("NACKED", 0, 2, attempt=0, lease=1)
    traffic.event("DELIVERED", 0, 30, attempt=1, lease=2)
    messages, events, _ = traffic.frames()
    (row,) = rows(latency(messages, events), "Until first delivered")
    assert row["max_ms"] == 30
    report = retries(messages, events)
    (rate,) = rows(report, "Rates")
    assert (rate["deliveries"], rate["again"]) == (1, 0)
    assert rows(report, "Reasons") == []


def test_a_topic_without_messages_gives_empty_reports(traffic: Traffic) -> None:
    messages, events, groups = traffic.frames()
    for report in (
        *(job(messages, events) for job in (traffic_report, latency, lateness, fairness, retries)),
        skew(messages, groups),
        audit(FrameSlices(messages, events, groups)),
    ):
        assert not report.failed
        assert all(section.rows == [] for section in report.sections)


def test_messages_that_no_group_has_come_for_are_said_to_be_so(traffic: Traffic) -> None:
    traffic.publish(0)
    assert account(audit(FrameSlices(*traffic.frames()))) == {"no group": 1}
