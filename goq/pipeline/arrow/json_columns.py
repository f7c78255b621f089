"""JSON values as typed columns beside the value column.

A nested object is flattened: ``{"customer": {"id": 7}}`` is the column ``customer_id``. A column
whose name the table already has gets the prefix ``value_``. A value that is no JSON object, or that
does not fit a column, is kept whole in ``_corrupt``, and all its columns are null. No two columns
have names that differ only in case: Spark treats them as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from goq.errors import InvalidInput
from goq.pipeline.arrow.schema import MESSAGES, TIMESTAMP

Columns = Mapping[str, str]
"""The type of each column by its name, in order."""

CORRUPT = "_corrupt"
TYPES: Mapping[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_COLUMNS_MAX = 1_000
_DEPTH_MAX = 16
_TABLES_OWN = {name.lower() for name in (*MESSAGES.names, CORRUPT)}
_INT64 = range(-(2**63), 2**63)


def parse_columns(text: str) -> dict[str, str]:
    """Return the columns of ``id bigint, total double``; raises ``InvalidInput``."""
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for part in text.split(","):
        words = part.split()
        if len(words) != 2 or not _NAME.fullmatch(words[0]) or words[1].lower() not in TYPES:
            raise InvalidInput(
                f"{part.strip()[:100]!r} is not a column; one reads NAME TYPE, the type being one"
                f" of {', '.join(TYPES)}",
                field="schema",
            )
        if _free(words[0]).lower() in taken:
            raise InvalidInput(f"the column {words[0]!r} is there twice", field="schema")
        taken.add(_free(words[0]).lower())
        columns[words[0]] = words[1].lower()
    if len(columns) > _COLUMNS_MAX:
        raise InvalidInput(f"a table has at most {_COLUMNS_MAX} columns of JSON", field="schema")
    return columns


def columns_in(values: Iterable[bytes | None]) -> dict[str, str]:
    """Return the columns of sample values; text where their types differ.

    Of columns with the same name the first is used; the others stay in the value only.
    """
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for value in values:
        for name, item in (_object(value) or {}).items():
            kind = _kind_of(item)
            known = columns.get(name, kind)
            if kind is None or (name not in columns and len(columns) >= _COLUMNS_MAX):
                continue
            if name not in columns:
                if not name or _free(name).lower() in taken:
                    continue
                taken.add(_free(name).lower())
            if known != kind:
                kind = "double" if {known, kind} == {"bigint", "double"} else "string"
            columns[name] = kind
    return columns


def decoded_schema(schema: pa.Schema, columns: Columns) -> pa.Schema:
    """Return a table's schema with the decoded columns after its own."""
    fields = [pa.field(_free(name), TYPES[kind]) for name, kind in columns.items()]
    return pa.schema([*schema, *fields, pa.field(CORRUPT, pa.string())])


def decode(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """Return a batch with its column ``value`` decoded beside it."""
    found: list[list[Any]] = [[] for _ in columns]
    corrupt: list[str | None] = []
    for value in batch.column("value").to_pylist():
        row = _row(value, columns)
        corrupt.append(None if row is not None or value is None else _text(value))
        for column, item in zip(found, row or [None] * len(columns), strict=True):
            column.append(item)
    arrays = [
        pa.array(column, TYPES[kind]) for column, kind in zip(found, columns.values(), strict=True)
    ]
    schema = decoded_schema(batch.schema, columns)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *arrays, pa.array(corrupt, pa.string())], schema=schema
    )


def _row(value: bytes | None, columns: Columns) -> list[Any] | None:
    """Return a value's cell for each column; None if one does not fit."""
    read = _object(value)
    if read is None:
        return None
    try:
        return [_as(read.get(name), kind) for name, kind in columns.items()]
    except (TypeError, ValueError, OverflowError):
        return None


def _object(value: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object flattened; None for anything else."""
    try:
        read = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return _flat(read, "", _DEPTH_MAX) if isinstance(read, dict) else None


def _flat(read: Mapping[str, Any], prefix: str, depth_left: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in read.items():
        place = f"{prefix}{name}"
        if isinstance(item, dict) and depth_left:
            flat.update(_flat(item, f"{place}_", depth_left - 1))
        else:
            flat[place] = item
    return flat


def _kind_of(item: Any) -> str | None:
    if item is None:
        return None
    if isinstance(item, bool):
        return "boolean"
    if isinstance(item, int):
        return "bigint" if item in _INT64 else "string"
    return "double" if isinstance(item, float) else "string"


def _as(item: Any, kind: str) -> Any:
    """Return an item converted to a column's type; raise ``TypeError`` or ``ValueError``."""
    if item is None:
        return None
    if kind == "string":
        return item if isinstance(item, str) else msgspec.json.encode(item).decode()
    if kind == "timestamp":
        moment = datetime.fromisoformat(item)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if isinstance(item, bool) == (kind == "boolean"):
        if kind == "double" and isinstance(item, int | float):
            return float(item)
        if kind == "boolean" or (isinstance(item, int) and item in _INT64):
            return item
    raise TypeError(f"{item!r} is no {kind}")


def _free(name: str) -> str:
    return f"value_{name}" if name.lower() in _TABLES_OWN else name


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
