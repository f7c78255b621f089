"""The columns of exported tables, for Arrow and for Spark.

Messages have the columns of Spark's Kafka source under the same names, then goq's own. Columns
that are never null are declared so: Spark compares schemas exactly.
"""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _never_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


MESSAGES = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        _never_null("topic", pa.string()),
        _never_null("partition", pa.int32()),
        _never_null("offset", pa.int64()),
        _never_null("timestamp", TIMESTAMP),
        pa.field("headers", HEADERS),
        _never_null("message_id", pa.string()),
        _never_null("lane", pa.int16()),
        pa.field("deliver_at", TIMESTAMP),
        pa.field("tenant", pa.string()),
        pa.field("producer", pa.string()),
    ]
)
"""``lane`` is its number; ``deliver_at`` is null for messages never delayed; ``producer`` is the
producer's id in hexadecimal, null if the batch had none."""

EVENTS = pa.schema(
    [
        _never_null("message_id", pa.string()),
        _never_null("event", pa.string()),
        _never_null("time", TIMESTAMP),
        pa.field("group", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("lease", pa.int64()),
        pa.field("due", TIMESTAMP),
        _never_null("topic", pa.string()),
        _never_null("partition", pa.int32()),
        _never_null("offset", pa.int64()),
        _never_null("sequence", pa.int64()),
    ]
)
"""A row for each message and each event about it. ``lease`` is the same in the row of a delivery
and in those that settle it; only the row of the delivery names the consumer. ``due`` is a lease's
end, or the time of the next delivery. ``sequence`` is the event's position in its log."""

GROUPS = pa.schema(
    [
        _never_null("time", TIMESTAMP),
        _never_null("topic", pa.string()),
        _never_null("group", pa.string()),
        _never_null("partition", pa.int32()),
        _never_null("start_offset", pa.int64()),
        _never_null("end_offset", pa.int64()),
        _never_null("cursor", pa.int64()),
        _never_null("lag", pa.int64()),
        _never_null("ready", pa.int64()),
        _never_null("leased", pa.int64()),
        _never_null("retry", pa.int64()),
        _never_null("blocked", pa.int64()),
        _never_null("scheduled", pa.int64()),
    ]
)
"""The position of each group at the time of an export. All messages before ``cursor`` were
delivered to the group: they are done, leased or in retry."""

EXPORTED = {
    "messages": (MESSAGES, "timestamp"),
    "events": (EVENTS, "time"),
    "groups": (GROUPS, "time"),
}
"""The tables of an export: their columns, and the one whose date has a folder."""

FOLDERS = {"topic_folder": pa.string(), "date": pa.date32()}
"""The columns that readers of an export add from the names of its folders."""

_SPARK_TYPES = {
    pa.binary(): "BINARY",
    pa.string(): "STRING",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    TIMESTAMP: "TIMESTAMP",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def ddl_of(schema: pa.Schema) -> str:
    """Return a schema as Spark writes it."""
    return ", ".join(
        f"`{f.name}` {_SPARK_TYPES[f.type]}{'' if f.nullable else ' NOT NULL'}" for f in schema
    )
