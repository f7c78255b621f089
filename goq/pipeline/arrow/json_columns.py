"""JSON values as typed columns beside the value column.

A nested object is flattened: ``{"customer": {"id": 7}}`` is the column ``customer_id``. A column
whose name the table or one of its folders has gets the prefix ``value_``: readers take the value of
a folder's name for all rows. No two columns have names that differ only in case: Spark treats them
as one.

The type of a column never changes, so files of all runs are one table, united by name. A field
that outgrows its column gets a wider one beside it: ``total`` bigint, then ``total_double``, then
``total_string``. The widest column has every value from then on; ``total`` keeps what fits.

A field that fits none of its columns is null in them, and the row has the whole value in
``_corrupt``. So is a field that a value has twice, as ``{"a_b": 1, "a": {"b": 2}}`` has ``a_b``. So
has a value that is no JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from goq.errors import InvalidInput
from goq.pipeline.arrow.schema import FOLDERS, MESSAGES, TIMESTAMP

Columns = Mapping[str, str]
"""The types of each field by its flattened name, in order: ``bigint``, or ``bigint double``."""

FieldCounts = dict[str, dict[str, int]]
"""How many values of each type a field had."""

CORRUPT = "_corrupt"
TYPES: Mapping[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
}
COLUMNS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
DEPTH_MAX = 16
_TABLES_OWN = {name.lower() for name in (*MESSAGES.names, *FOLDERS, CORRUPT)}
_AMBIGUOUS = object()
"""The item of a field that a value has twice once it is flattened: it fits no type."""

_INT64 = range(-(2**63), 2**63)
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?")


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
        if column_name(words[0]).lower() in taken:
            raise InvalidInput(f"the column {words[0]!r} is there twice", field="schema")
        taken.add(column_name(words[0]).lower())
        columns[words[0]] = words[1].lower()
    if len(columns) > COLUMNS_MAX:
        raise InvalidInput(f"a table has at most {COLUMNS_MAX} columns of JSON", field="schema")
    return columns


def decoded_schema(schema: pa.Schema, columns: Columns) -> pa.Schema:
    """Return a table's schema with the decoded columns after its own."""
    fields = [pa.field(name, TYPES[kind]) for _, name, kind in _slots(columns)]
    return pa.schema([*schema, *fields, pa.field(CORRUPT, pa.string())])


def column_names(columns: Columns) -> set[str]:
    """Return the names of the decoded columns, in lower case."""
    return {name.lower() for _, name, _ in _slots(columns)}


def column_name(field: str, wider: str | None = None) -> str:
    """Return the name of a field's first column, or of its ``wider`` one."""
    name = f"value_{field}" if field.lower() in _TABLES_OWN else field
    return name if wider is None else f"{name}_{wider}"


def _slots(columns: Columns) -> Iterator[tuple[str, str, str]]:
    """Yield field, name and type of each column."""
    for field, kinds in columns.items():
        for place, kind in enumerate(kinds.split()):
            yield field, column_name(field, kind if place else None), kind


class JsonDecoder:
    """Decodes values into columns, and counts the fields of those values by their types.

    ``seen`` has the fields without a column, too, up to a bound.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._slots = [(field, kind) for field, _, kind in _slots(columns)]
        self._cells = [
            (field, kind, as_kind if columns[field].split()[-1] == kind else fitting)
            for field, kind in self._slots
        ]
        self.seen: FieldCounts = {}

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with its column ``value`` decoded beside it."""
        found: list[list[Any]] = [[] for _ in self._slots]
        corrupt: list[str | None] = []
        for value in batch.column("value").to_pylist():
            row = self._row(value)
            corrupt.append(None if row is not None or value is None else _text(value))
            if row is None:
                row = self._fitting(value)
            for column, item in zip(found, row, strict=True):
                column.append(item)
        arrays = [
            pa.array(column, TYPES[kind])
            for column, (_, kind) in zip(found, self._slots, strict=True)
        ]
        for (field, kind), array in zip(self._slots, arrays, strict=True):
            if kind == self._columns[field].split()[-1]:
                count_kind(self.seen, field, kind, len(array) - array.null_count)
        schema = decoded_schema(batch.schema, self._columns)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *arrays, pa.array(corrupt, pa.string())], schema=schema
        )

    def _row(self, value: bytes | None) -> list[Any] | None:
        """Return a value's cell for each column; None if a field does not fit its widest one."""
        read = json_object(value, self._columns)
        if read is None:
            return None
        try:
            row = [convert(read.get(field), kind) for field, kind, convert in self._cells]
        except (TypeError, ValueError, OverflowError):
            return None
        if not read.keys() <= self._columns.keys():
            for field in read.keys() - self._columns.keys():
                count_kind(self.seen, field, kind_of(read[field]))
        return row

    def _fitting(self, value: bytes | None) -> list[Any]:
        """Return the cells of a value that fit, None for the others."""
        read = json_object(value, self._columns) or {}
        row = [fitting(read.get(field), kind) for field, kind in self._slots]
        has = {field for (field, _), cell in zip(self._slots, row, strict=True) if cell is not None}
        for field in read.keys() - has:
            count_kind(self.seen, field, kind_of(read[field]))
        return row


def count_kind(counts: FieldCounts, field: str, kind: str | None, count: int = 1) -> None:
    """Count values of a field; not those without a type, nor fields beyond twice the bound."""
    if kind is None or not count or (field not in counts and len(counts) >= 2 * COLUMNS_MAX):
        return
    kinds = counts.setdefault(field, {})
    kinds[kind] = kinds.get(kind, 0) + count


def json_object(value: bytes | None, whole: Container[str] = ()) -> dict[str, Any] | None:
    """Return a JSON object flattened; None for anything else.

    Objects at the places in ``whole`` stay as they are.
    """
    try:
        read = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return _flat(read, "", DEPTH_MAX, whole) if isinstance(read, dict) else None


def _flat(
    read: Mapping[str, Any], prefix: str, depth_left: int, whole: Container[str]
) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in read.items():
        place = f"{prefix}{name}"
        if isinstance(item, dict) and depth_left and place not in whole:
            inner = _flat(item, f"{place}_", depth_left - 1, whole)
            for field in inner.keys() & flat.keys():
                inner[field] = _either(flat[field], inner[field])
            flat.update(inner)
        elif place in flat:
            flat[place] = _either(flat[place], item)
        else:
            flat[place] = item
    return flat


def _either(one: Any, other: Any) -> Any:
    """Return the item that is not null of two that have one field."""
    if one is None or other is None:
        return other if one is None else one
    return _AMBIGUOUS


def kind_of(item: Any) -> str | None:
    """Return the narrowest type of an item; None for null."""
    if item is None:
        return None
    if isinstance(item, bool):
        return "boolean"
    if isinstance(item, int):
        return "bigint" if item in _INT64 else "string"
    if isinstance(item, float):
        return "double"
    is_time = isinstance(item, str) and _ISO_TIME.fullmatch(item) is not None
    return "timestamp" if is_time and fitting(item, "timestamp") is not None else "string"


def fitting(item: Any, kind: str) -> Any:
    """Return an item converted to a column's type, None if it does not fit."""
    try:
        return as_kind(item, kind)
    except (TypeError, ValueError, OverflowError):
        return None


def as_kind(item: Any, kind: str) -> Any:
    """Return an item converted to a column's type; raise ``TypeError`` or ``ValueError``."""
    if item is None:
        return None
    if kind == "string":
        return item if isinstance(item, str) else msgspec.json.encode(item).decode()
    if kind == "timestamp":
        moment = datetime.fromisoformat(item)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    if isinstance(item, bool) == (kind == "boolean"):
        if kind == "double" and isinstance(item, int | float):
            return float(item)
        if kind == "boolean" or (isinstance(item, int) and item in _INT64):
            return item
    raise TypeError(f"{item!r} is no {kind}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
