"""``node.db``: what is small, relational and asked about by people.

SQLite in WAL mode with ``synchronous=FULL``: a change is durable when its call returns. Calls
block on the disk; the node makes them from one thread.

    node(key, value)                           this node's counters, as the boot epoch
    topics(name, partitions, settings, deleting)
    groups(topic, name)
    segments(topic, partition, log, base_offset, end_offset, size_bytes, sealed_at_us)
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import sqlite_utils

from goq.errors import DamagedData

FILE_NAME = "node.db"


class TopicRow(NamedTuple):
    """A topic as the database has it; ``settings`` as people write them."""

    name: str
    partitions: int
    settings: dict[str, str]
    deleting: bool = False


class SegmentRow(NamedTuple):
    """A sealed segment as the manifest has it."""

    topic: str
    partition: int
    log: str
    base_offset: int
    end_offset: int
    size_bytes: int
    sealed_at_us: int


class NodeDb:
    """The node's database. Not safe for use from several threads at once."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / FILE_NAME
        try:
            self._db = sqlite_utils.Database(sqlite3.connect(path, check_same_thread=False))
            self._db.enable_wal()
            self._db.execute("PRAGMA synchronous=FULL")
            self._create_tables()
        except sqlite3.DatabaseError as error:
            raise DamagedData(
                f"{path} cannot be used: {error}; restore it from a backup, or move it away: the"
                " topics are then taken up again from their folders, with default settings"
            ) from error

    def _create_tables(self) -> None:
        tables: list[tuple[str, dict[str, type], Any]] = [
            ("node", {"key": str, "value": int}, "key"),
            (
                "topics",
                {"name": str, "partitions": int, "settings": str, "deleting": int},
                "name",
            ),
            ("groups", {"topic": str, "name": str}, ("topic", "name")),
            (
                "segments",
                {
                    "topic": str,
                    "partition": int,
                    "log": str,
                    "base_offset": int,
                    "end_offset": int,
                    "size_bytes": int,
                    "sealed_at_us": int,
                },
                ("topic", "partition", "log", "base_offset"),
            ),
        ]
        for name, columns, key in tables:
            self._db.table(name).create(columns, pk=key, if_not_exists=True)

    def next_epoch(self) -> int:
        """Count a start of the node and return its number, 1 for the first."""
        rows = list(self._db.table("node").rows_where("key = ?", ["epoch"]))
        epoch = rows[0]["value"] + 1 if rows else 1
        self._db.table("node").upsert({"key": "epoch", "value": epoch}, pk="key")
        return int(epoch)

    def topics(self) -> list[TopicRow]:
        """Return all topics by name."""
        return [
            TopicRow(
                row["name"], row["partitions"], json.loads(row["settings"]), bool(row["deleting"])
            )
            for row in self._db.table("topics").rows_where(order_by="name")
        ]

    def put_topic(self, topic: TopicRow) -> None:
        """Insert or replace a topic."""
        row = topic._asdict() | {"settings": json.dumps(topic.settings)}
        self._db.table("topics").upsert(row, pk="name")

    def delete_topic(self, name: str) -> None:
        """Forget a topic and everything that belongs to it."""
        with self._db.conn:
            self._db.table("segments").delete_where("topic = ?", [name])
            self._db.table("groups").delete_where("topic = ?", [name])
            self._db.table("topics").delete_where("name = ?", [name])

    def groups(self, topic: str) -> list[str]:
        """Return a topic's groups by name."""
        rows = self._db.table("groups").rows_where("topic = ?", [topic], order_by="name")
        return [row["name"] for row in rows]

    def put_group(self, topic: str, name: str) -> None:
        """Remember a group."""
        self._db.table("groups").upsert({"topic": topic, "name": name}, pk=("topic", "name"))

    def delete_group(self, topic: str, name: str) -> None:
        """Forget a group."""
        self._db.table("groups").delete_where("topic = ? and name = ?", [topic, name])

    def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment to the manifest."""
        key = ("topic", "partition", "log", "base_offset")
        self._db.table("segments").upsert(segment._asdict(), pk=key)

    def delete_segments(self, keys: Iterable[tuple[str, int, str, int]]) -> None:
        """Take segments out of the manifest, by topic, partition, log and base offset."""
        with self._db.conn:
            for key in keys:
                self._db.table("segments").delete_where(
                    "topic = ? and partition = ? and log = ? and base_offset = ?", key
                )

    def segments(self) -> list[SegmentRow]:
        """Return the manifest."""
        order = "topic, partition, log, base_offset"
        return [SegmentRow(**row) for row in self._db.table("segments").rows_where(order_by=order)]

    def close(self) -> None:
        """Close the database."""
        self._db.conn.close()
