"""JSON values become typed columns, and nothing that does not fit is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from goq.errors import InvalidInput
from goq.pipeline.arrow.json_columns import TYPES, JsonDecoder, decoded_schema, parse_columns
from goq.pipeline.arrow.json_inference import counted, evolved
from goq.pipeline.arrow.schema import MESSAGES


def decoded(columns: str, *values: bytes | None) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    found = JsonDecoder(parse_columns(columns)).decode(batch)
    found.validate(full=True)
    return found.drop_columns(["value"]).to_pylist()


def test_each_column_has_its_type() -> None:
    columns = "id bigint, total double, paid boolean, note string, at timestamp"
    value = b'{"id": 7, "total": 3, "paid": true, "note": "n", "at": "2025-01-15T10:30:00Z"}'
    (row,) = decoded(columns, value)
    at = datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
    wanted = {"id": 7, "total": 3.0, "paid": True, "note": "n", "at": at, "_corrupt": None}
    assert row == wanted


def test_nested_objects_are_flattened_and_lists_kept_as_text() -> None:
    value = b'{"customer": {"id": 7, "name": {"first": "Ada"}}, "items": [1, 2]}'
    (row,) = decoded("customer_id bigint, customer_name_first string, items string", value)
    assert (row["customer_id"], row["customer_name_first"], row["items"]) == (7, "Ada", "[1,2]")


@pytest.mark.parametrize(
    "value",
    [
        b"not json",
        b"[1]",
        b'{"id": "seven"}',
        b'{"id": 1.5}',
        b'{"id": true}',
        b'{"id": 9223372036854775808}',
        b"\xff\xfe",
        b"",
        b"[" * 10_000,
    ],
)
def test_what_does_not_fit_is_kept_whole(value: bytes) -> None:
    (row,) = decoded("id bigint", value)
    assert row == {"id": None, "_corrupt": value.decode("utf-8", "backslashreplace")}


TWICE = (b'{"id": 7, "a_b": 1, "a": {"b": 2}}', b'{"a": {"b": 2}, "id": 7, "a_b": 1}')


@pytest.mark.parametrize("kind", TYPES)
def test_a_field_that_a_value_has_twice_is_null_and_the_value_kept_whole(kind: str) -> None:
    for value, row in zip(TWICE, decoded(f"id bigint, a_b {kind}", *TWICE), strict=True):
        assert row == {"id": 7, "a_b": None, "_corrupt": value.decode()}


def test_a_field_that_a_value_has_twice_gets_a_column() -> None:
    assert evolved({}, counted(TWICE, {})) == {"id": "bigint", "a_b": "string"}


@pytest.mark.parametrize(
    "value", [b'{"a_b": null, "a": {"b": 2}}', b'{"a_b": 2, "a": {"b": null}}']
)
def test_a_field_that_is_there_twice_and_null_once_has_the_other_value(value: bytes) -> None:
    assert decoded("a_b bigint", value) == [{"a_b": 2, "_corrupt": None}]


def test_a_tombstone_and_a_missing_field_are_null_and_not_corrupt() -> None:
    assert decoded("id bigint", None, b"{}") == [{"id": None, "_corrupt": None}] * 2


def test_the_largest_and_the_smallest_number_fit() -> None:
    rows = decoded("id bigint", b'{"id": 9223372036854775807}', b'{"id": -9223372036854775808}')
    assert [row["id"] for row in rows] == [2**63 - 1, -(2**63)]


def test_a_column_does_not_take_the_name_of_the_tables_own() -> None:
    schema = decoded_schema(
        pa.schema([("offset", pa.int64())]), {"offset": "string", "x": "bigint"}
    )
    assert schema.names == ["offset", "value_offset", "x", "_corrupt"]


@pytest.mark.parametrize(
    "text", ["", "id", "id number", "1d bigint", "id bigint, id bigint", "a b c"]
)
def test_a_schema_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_columns(text)


def test_no_two_columns_have_the_same_name_not_even_in_another_case() -> None:
    value = b'{"key": 1, "value_key": 2, "": 3, "Id": 4, "id": 5, "_corrupt": 6, "Topic": 7}'
    columns = evolved({}, counted([value, b'{"ID": 1, "value_topic": 2, "new": 3}'], {}))
    assert list(columns) == ["key", "Id", "_corrupt", "Topic", "new"]
    names = decoded_schema(MESSAGES, columns).names
    assert names[-6:] == ["value_key", "Id", "value__corrupt", "value_Topic", "new", "_corrupt"]
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.parametrize("text", ["id bigint, ID string", "key string, value_key string"])
def test_columns_that_would_have_the_same_name_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is there twice"):
        parse_columns(text)
