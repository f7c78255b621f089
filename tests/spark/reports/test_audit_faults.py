"""Faults planted one at a time, each in a topic of its own: the audit names every one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa
import pyarrow.parquet as pq

from goq.model import Message
from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from goq.pipeline.export.ledger import ExportLedger, Plan
from goq.pipeline.export.plan import Piece, file_name
from goq.pipeline.reports.audit import file_slices, frame_slices
from goq.pipeline.reports.audit.audit import audit
from goq.pipeline.reports.audit.file_rows import RowGroup, TableFile
from goq.pipeline.reports.audit.file_slices import FileSlices
from goq.pipeline.reports.audit.frame_slices import FrameSlices
from goq.pipeline.reports.tables import ExportedTables
from tests.support.paths import DOCS
from tests.support.pipeline.logged_frames import LoggedFrames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2025, 1, 15, 12, tzinfo=UTC)
COUNT = 6
Row = dict[str, Any]


@dataclass
class Topic:
    """A partition at rest for an hour: every message delivered to a group, and acknowledged."""

    name: str
    messages: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        for offset in range(COUNT):
            self.messages.append(
                dict.fromkeys(MESSAGES.names)
                | {"topic": self.name, "partition": 0, "offset": offset, "lane": 1, "headers": []}
                | {"message_id": f"{self.name}:0:{offset}", "timestamp": NOON, "value": b"v"}
            )
            for group in ("billing", "mail"):
                lease = len(self.events)
                due = NOON + timedelta(seconds=30)
                self.event("DELIVERED", offset, group, lease=lease, attempt=1, due=due)
                self.event("ACKNOWLEDGED", offset, group, lease=lease)
        for group in ("billing", "mail"):
            self.groups.append(
                dict.fromkeys(GROUPS.names, 0)
                | {"time": NOON + timedelta(hours=1), "topic": self.name, "group": group}
                | {"end_offset": COUNT, "cursor": COUNT}
            )

    def event(self, name: str, offset: int, group: str, **said: Any) -> None:
        self.events.append(
            dict.fromkeys(EVENTS.names)
            | {"topic": self.name, "partition": 0, "offset": offset, "group": group}
            | {"message_id": f"{self.name}:0:{offset}", "event": name, "sequence": len(self.events)}
            | {"time": NOON + timedelta(milliseconds=len(self.events))}
            | said
        )

    def drop(self, **said: Any) -> None:
        """Take away the events of which all of this is true."""
        self.events = [e for e in self.events if not said.items() <= e.items()]

    def last(self, event: str, group: str = "billing") -> Row:
        return next(e for e in self.events[::-1] if (e["event"], e["group"]) == (event, group))


def lost_ack(topic: Topic) -> None:
    topic.drop(event="ACKNOWLEDGED", group="billing", offset=COUNT - 1)
    topic.drop(offset=COUNT - 1, group="mail")
    topic.groups[1]["cursor"] = COUNT - 1


def duplicate_message(topic: Topic) -> None:
    topic.messages.append(topic.messages[2])


def duplicate_event(topic: Topic) -> None:
    topic.events.append(topic.events[2])


def lost_delivery(topic: Topic) -> None:
    topic.drop(event="DELIVERED", offset=2, group="billing")


def double_ack(topic: Topic) -> None:
    topic.event("ACKNOWLEDGED", 2, "billing", lease=topic.last("DELIVERED")["lease"])


def delivery_after_ack(topic: Topic) -> None:
    topic.event("DELIVERED", 2, "billing", lease=len(topic.events), attempt=2)


def lost_group(topic: Topic) -> None:
    del topic.groups[0]


def unknown_offset(topic: Topic) -> None:
    topic.event("DELIVERED", COUNT + 3, "billing", lease=len(topic.events), attempt=1)


def stuck_cursor(topic: Topic) -> None:
    topic.groups[0]["cursor"] = 2


def lost_message(topic: Topic) -> None:
    del topic.messages[2]


def lost_last_message(topic: Topic) -> None:
    del topic.messages[-1]


def lost_events(topic: Topic) -> None:
    topic.drop(offset=2)


def lost_lease_end(topic: Topic) -> None:
    """A lease that is not over when the group is read, and that the group does not have."""
    topic.drop(event="ACKNOWLEDGED", group="billing", offset=2)
    for event in topic.events:
        if (event["event"], event["offset"]) == ("DELIVERED", 2):
            event["due"] = NOON + timedelta(days=1)


def lost_retry(topic: Topic) -> None:
    """Given back, and nothing of what came after; and one that waits for its retry rightly."""
    for group, offset in (("billing", 2), ("mail", 3)):
        topic.drop(event="ACKNOWLEDGED", group=group, offset=offset)
        due = NOON + timedelta(minutes=2)
        topic.event("NACKED", offset, group, lease=2 * offset, attempt=1, due=due)
    topic.groups[1] |= {"lag": 1, "ready": 1}


def ended(topic: Topic) -> Topic:
    """A group that gets nothing from offset 4 on; the last message before waits for its retry."""
    topic.drop(group="billing")
    topic.event("RESET", 3, "billing", reason="end 4")
    topic.event("DELIVERED", 3, "billing", lease=900, attempt=1, due=NOON + timedelta(seconds=30))
    topic.event("NACKED", 3, "billing", lease=900, attempt=1, due=NOON + timedelta(minutes=2))
    topic.groups[0] |= {"cursor": 4, "lag": 1, "ready": 1}
    return topic


FAULTS: dict[str, tuple[Callable[[Topic], None], str]] = {
    "the last ack of a partition is lost": (lost_ack, "overdue"),
    "the end of a lease that is not over": (lost_lease_end, "the group lacks a lease"),
    "all that came after a message was given back": (lost_retry, "the group lacks a message"),
    "all events of a message": (lost_events, "unaccounted"),
    "a message": (lost_message, "Offsets"),
    "the last message": (lost_last_message, "Offsets"),
    "a message is there twice": (duplicate_message, "a message is there twice"),
    "an event is there twice": (duplicate_event, "an event is there twice"),
    "an ack without its delivery": (lost_delivery, "an ack without its delivery"),
    "a second ack": (double_ack, "acknowledged twice"),
    "a delivery after the ack": (delivery_after_ack, "delivered after its ack"),
    "a group's row": (lost_group, "a group without its row in groups"),
    "an event of an offset that does not exist": (
        unknown_offset,
        "an event of a message that does not exist",
    ),
    "a cursor that is stuck": (stuck_cursor, "the cursor is stuck"),
}


def frames_of(spark: SparkSession, topics: list[Topic]) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the three tables of topics."""
    made = [
        spark.createDataFrame(
            pa.Table.from_pylist([r for t in topics for r in getattr(t, name)], schema=schema),
            ddl_of(schema),
        )
        for name, schema in (("messages", MESSAGES), ("events", EVENTS), ("groups", GROUPS))
    ]
    return made[0], made[1], made[2]


def files_of(folder: Path, topics: list[Topic]) -> FileSlices:
    """Return the slices of files with several row groups, a file for each table and topic."""
    files: dict[str, list[TableFile]] = {"messages": [], "events": [], "groups": []}
    for name, schema in (("messages", MESSAGES), ("events", EVENTS), ("groups", GROUPS)):
        for topic in topics:
            path = folder / f"{name}-{topic.name}.parquet"
            table = pa.Table.from_pylist(getattr(topic, name), schema=schema)
            pq.write_table(table, path, row_group_size=5)
            files[name].append(TableFile(str(path), topic.name, 0))
    return FileSlices(one_by_one, *files.values())


def one_by_one(work: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    return [work(each) for each in items]


@pytest.fixture
def faulty() -> list[Topic]:
    """A topic for each fault, and two sound ones."""
    topics = [Topic(f"topic-{number}") for number in range(len(FAULTS))]
    for topic, (plant, _) in zip(topics, FAULTS.values(), strict=True):
        plant(topic)
    return [*topics, Topic("sound"), ended(Topic("ended"))]


@pytest.mark.parametrize("slice_rows", [4, 10**6])
def test_each_planted_fault_is_found_and_nothing_in_the_sound_topic(
    tmp_path: Path, faulty: list[Topic], slice_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_slices, "_SLICE_ROWS", slice_rows)
    report = audit(files_of(tmp_path, faulty))
    assert report.failed
    found: dict[str, set[str]] = {topic.name: set() for topic in faulty}
    for section in report.sections[1:]:
        for row in section.rows:
            named = dict(zip(section.columns, row, strict=True))
            topic = named.get("topic") or named["message_id"].split(":")[0]
            said = named.get("fault") or named.get("fate") or section.title
            found[topic].add(said)
    assert found.pop("sound") == found.pop("ended") == set()
    for (fault, (_, wanted)), said in zip(FAULTS.items(), found.values(), strict=True):
        assert any(each.startswith(wanted) for each in said), (fault, said)


@pytest.mark.long
@pytest.mark.parametrize("slice_rows", [pytest.param(4, marks=pytest.mark.long), 10**6])
def test_frames_of_spark_have_the_same_faults_as_files(
    spark: SparkSession,
    tmp_path: Path,
    faulty: list[Topic],
    slice_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_slices, "_SLICE_ROWS", slice_rows)
    monkeypatch.setattr(frame_slices, "_SLICE_OFFSETS_MIN", 2)
    assert audit(FrameSlices(*frames_of(spark, faulty))) == audit(files_of(tmp_path, faulty))


def test_row_groups_that_spread_over_all_offsets_are_cut_into_slices_of_like_size() -> None:
    wide = [RowGroup("f", number, 1_000_000, 0, 10_000_000) for number in range(10)]
    narrow = [RowGroup("g", n, 1_000_000, n * 1_000_000, (n + 1) * 1_000_000) for n in range(10)]
    assert file_slices.cuts([*wide, *narrow]) == [n * 1_000_000 for n in range(1, 10)]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def replace(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.set_column(1, "value", pa.array([b"other"] * len(table))), path)


def shorten(path: Path) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)


def copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.parquet"))


FILES = {
    "a file": (remove, "is missing"),
    "a file's end": (cut, "is no Parquet file"),
    "values in a file": (replace, "has another checksum"),
    "rows in a file": (shorten, "has 2 rows, not 3"),
    "a manifest": (remove, "manifest 1 is missing"),
    "state.json, or all of _goq": (remove, "state.json is missing"),
    "a file is there twice": (copy, "is in no manifest"),
}
_LEDGERS = {
    "a manifest": "manifest-000001.json",
    "state.json, or all of _goq": "state.json",
}


@pytest.mark.parametrize("fault", FILES)
def test_each_file_that_is_not_as_exported_is_found(tmp_path: Path, fault: str) -> None:
    log = LoggedFrames(1)
    for _ in range(2):
        log.publish(0, [Message(b"v", b"k")] * 3, 1)
        Export(log, LocalDestination(tmp_path), MESSAGES_TABLE, "orders").run()
    tables = ExportedTables(cast("SparkSession", None), str(tmp_path), [])
    assert tables.changed_files() == []
    plant, wanted = FILES[fault]
    if fault in _LEDGERS:
        path = tmp_path / "_goq/messages/orders" / _LEDGERS[fault]
        named = "_goq/messages/orders"
    else:
        path = sorted(tmp_path.glob("messages/*/*/*.parquet"))[0]
        named = str(path.relative_to(tmp_path))
    plant(path)
    if plant is copy:
        named = str(path.with_name("copy.parquet").relative_to(tmp_path))
    assert tables.changed_files() == [(named, wanted)]


def test_files_without_any_manifest_or_state_are_found(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    log.publish(0, [Message(b"v", b"k")] * 3, 1)
    Export(log, LocalDestination(tmp_path), MESSAGES_TABLE, "orders").run()
    shutil.rmtree(tmp_path / "_goq/messages/orders")
    tables = ExportedTables(cast("SparkSession", None), str(tmp_path), [])
    assert tables.changed_files() == [("_goq/messages/orders", "state.json is missing")]


def test_files_of_an_export_under_way_raise_no_alarm(tmp_path: Path) -> None:
    log, target = LoggedFrames(1), LocalDestination(tmp_path)
    log.publish(0, [Message(b"v", b"k")] * 3, 1)
    Export(log, target, MESSAGES_TABLE, "orders").run()
    piece = Piece(0, 3, 6)
    ExportLedger(target, "messages", "orders").note(Plan(number=2, pieces=[piece]))
    (path,) = tmp_path.glob("messages/*/*/*.parquet")
    shutil.copy(path, path.with_name(file_name(piece)))
    (path.parent / "_temporary").write_bytes(b"")
    (path.parent / ".part.crc").write_bytes(b"")
    tables = ExportedTables(cast("SparkSession", None), str(tmp_path), [])
    assert tables.changed_files() == []


def test_the_page_names_the_faults_that_are_planted_here() -> None:
    listed = (DOCS / "spark.md").read_text().split("\n### What an audit finds\n", 1)[1]
    listed = listed.split("\n## ", 1)[0]
    assert re.findall(r"^\| ([^|`]+) \| `", listed, re.MULTILINE) == [*FAULTS, *FILES]
