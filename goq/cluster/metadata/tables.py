"""SQLite tables of the state: read as a whole, written by differences.

    nodes(id, incarnation, http_url, cluster_address, rack, status, leaving, unfit_reason,
          disk, feature_level)
    topics(name, topic_id, settings, deleting, version, min_insync)
    partitions(topic, partition, replicas, leader, in_sync, leader_epoch, target, moving, damaged,
               returned, unclean, wanted, by_name, version)
    deleted_topics(id, name, topic_id, nodes)
    groups(topic, name, settings, version)
    cluster(id, replication_factor, min_insync, moves_at_once, move_bytes_per_s, version)
    features(id, level)
    tokens(id, name, digest, rules, created_ms, expires_ms, previous_digest, previous_until_ms,
           revoked_ms, last_used_day, version)
    schedules(name, topic, messages, cron, tz, every_ms, principal, created_ms, resumed_ms,
              paused_ms, last_due_ms, problem, version)
    diverged(topic_id, partition)      of this node alone, see ``divergence.py``
    state_digest(id, applied_index, digest)        of the state in the other tables

Settings and lists of nodes are JSON. Columns have the encoded names of the fields, see ``rename``
in ``state.py``. The version of the state is not stored here: it is the applied index, which also
changes when no row does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from goq.access.token_record import TokenRecord
from goq.cluster.metadata.divergence import DivergedPartitions
from goq.cluster.metadata.rows import RowChange, changed_rows, row_fields
from goq.cluster.metadata.state import (
    ClusterSettings,
    DeletedTopic,
    Features,
    GroupMetadata,
    MetadataState,
    NodeMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from goq.schedules.schedule_record import ScheduleRecord

SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    id TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, http_url TEXT NOT NULL,
    cluster_address TEXT NOT NULL, rack TEXT, status TEXT NOT NULL, leaving INTEGER NOT NULL,
    unfit_reason TEXT NOT NULL, disk TEXT NOT NULL, feature_level INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY, topic_id INTEGER NOT NULL, settings TEXT NOT NULL,
    deleting INTEGER NOT NULL, version INTEGER NOT NULL, min_insync INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS partitions (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, replicas TEXT NOT NULL, leader TEXT,
    in_sync TEXT NOT NULL, leader_epoch INTEGER NOT NULL, target TEXT NOT NULL,
    moving INTEGER NOT NULL, damaged TEXT NOT NULL, returned TEXT NOT NULL,
    unclean INTEGER NOT NULL, wanted INTEGER NOT NULL, by_name INTEGER NOT NULL,
    version INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deleted_topics (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, topic_id INTEGER NOT NULL, nodes TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
    topic TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (topic, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cluster (
    id INTEGER PRIMARY KEY CHECK (id = 1), replication_factor INTEGER NOT NULL,
    min_insync INTEGER NOT NULL, moves_at_once INTEGER NOT NULL,
    move_bytes_per_s INTEGER NOT NULL, version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS features (
    id INTEGER PRIMARY KEY CHECK (id = 1), level INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, rules TEXT NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, previous_digest TEXT NOT NULL,
    previous_until_ms INTEGER NOT NULL, revoked_ms INTEGER NOT NULL,
    last_used_day INTEGER NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS schedules (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, messages TEXT NOT NULL, cron TEXT NOT NULL,
    tz TEXT NOT NULL, every_ms INTEGER NOT NULL, principal TEXT NOT NULL,
    created_ms INTEGER NOT NULL, resumed_ms INTEGER NOT NULL, paused_ms INTEGER NOT NULL,
    last_due_ms INTEGER NOT NULL, problem TEXT NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS diverged (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state_digest (
    id INTEGER PRIMARY KEY CHECK (id = 1), applied_index INTEGER NOT NULL, digest BLOB NOT NULL
);
"""
_ADDED_COLUMNS = {
    ("nodes", "feature_level"): "INTEGER NOT NULL DEFAULT 0",
    ("topics", "min_insync"): "INTEGER",
}
"""Columns that databases and snapshots of earlier versions lack. Each may be left out."""


_LISTS = ("replicas", "in_sync", "target", "damaged", "returned")


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables, and add the columns that an earlier version did not have."""
    db.executescript(f"BEGIN; {SCHEMA} COMMIT")
    for (table, column), kind in _ADDED_COLUMNS.items():
        names = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if column not in names:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def load_state(db: sqlite3.Connection, version: int) -> MetadataState:
    """Return the state in the tables; raise ``msgspec.ValidationError`` if it is invalid."""
    partitions: dict[str, list[PartitionMetadata]] = {}
    for row in _rows(db, "partitions", "topic, partition", *_LISTS):
        partitions.setdefault(row["topic"], []).append(
            msgspec.convert(row, PartitionMetadata, strict=False)
        )
    topics = {
        row["name"]: msgspec.convert(
            {**row, "partitions": partitions.get(row["name"], ())}, TopicMetadata, strict=False
        )
        for row in _rows(db, "topics", "name", "settings")
    }
    groups: dict[str, dict[str, GroupMetadata]] = {}
    for row in _rows(db, "groups", "topic, name", "settings"):
        groups.setdefault(row["topic"], {})[row["name"]] = msgspec.convert(row, GroupMetadata)
    deleted = {
        row["id"]: msgspec.convert(row, DeletedTopic)
        for row in _rows(db, "deleted_topics", "id", "nodes")
    }
    nodes = {
        row["id"]: msgspec.convert(row, NodeMetadata, strict=False)
        for row in _rows(db, "nodes", "id")
    }
    tokens = {
        row["id"]: msgspec.convert(row, TokenRecord) for row in _rows(db, "tokens", "id", "rules")
    }
    schedules = {
        row["name"]: msgspec.convert(row, ScheduleRecord) for row in _rows(db, "schedules", "name")
    }
    settings = [msgspec.convert(row, ClusterSettings) for row in _rows(db, "cluster", "id")]
    features = [msgspec.convert(row, Features) for row in _rows(db, "features", "id")]
    return MetadataState(
        version,
        nodes,
        topics,
        groups,
        settings[0] if settings else ClusterSettings(),
        features[0] if features else Features(),
        deleted,
        tokens,
        schedules,
    )


def save_state(db: sqlite3.Connection, before: MetadataState, after: MetadataState) -> None:
    """Write the differences between two states. The caller has a transaction open."""
    for change in changed_rows(before, after):
        _write(db, change)


def load_diverged(db: sqlite3.Connection) -> DivergedPartitions:
    """Return the partitions of which this node had other metadata than the cluster."""
    rows = db.execute("SELECT topic_id, partition FROM diverged ORDER BY topic_id, partition")
    return tuple((topic_id, number) for topic_id, number in rows)


def save_diverged(db: sqlite3.Connection, partitions: DivergedPartitions) -> None:
    """Replace the partitions of which this node had other metadata than the cluster."""
    db.execute("DELETE FROM diverged")
    db.executemany("INSERT INTO diverged VALUES (?, ?)", partitions)


def load_digest(db: sqlite3.Connection) -> bytes | None:
    """Return the digest of the state as of the applied index, None if there is none.

    An earlier version applies commands without it.
    """
    row = db.execute(
        "SELECT digest FROM state_digest JOIN raft_state USING (id, applied_index)"
    ).fetchone()
    return None if row is None else bytes(row[0])


def save_digest(db: sqlite3.Connection, digest: bytes) -> None:
    """Replace the digest by that of the state as of the applied index."""
    db.execute(
        "INSERT OR REPLACE INTO state_digest SELECT 1, applied_index, ? FROM raft_state", (digest,)
    )


def _write(db: sqlite3.Connection, change: RowChange) -> None:
    """Insert, replace or delete one row."""
    table, key, _, value = change
    if value is None:
        where = " AND ".join(f"{column} = ?" for column in key)
        db.execute(f"DELETE FROM {table} WHERE {where}", tuple(key.values()))
        return
    row = key | {
        encoded: _column(getattr(value, name))
        for name, encoded, _ in row_fields(type(value))
        if name != "partitions"
    }
    marks = ", ".join("?" * len(row))
    db.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
    )


def _column(content: Any) -> Any:
    if isinstance(content, tuple | Mapping):
        return msgspec.json.encode(content, order="deterministic").decode()
    return content


def _rows(db: sqlite3.Connection, table: str, order: str, *json: str) -> Iterable[dict[str, Any]]:
    cursor = db.execute(f"SELECT * FROM {table} ORDER BY {order}")
    names = [column[0] for column in cursor.description]
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        for name in json:
            row[name] = msgspec.json.decode(row[name])
        yield row
