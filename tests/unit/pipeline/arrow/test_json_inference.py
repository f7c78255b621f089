"""Columns of JSON values grow with the values: by majority, and without changing a type."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow")

from goq.errors import Conflict
from goq.pipeline.arrow.json_columns import COLUMNS_MAX
from goq.pipeline.arrow.json_inference import counted, evolved, stated


def inferred(*values: object, known: dict[str, str] | None = None) -> dict[str, str]:
    columns = known or {}
    return evolved(columns, counted([json.dumps(value).encode() for value in values], columns))


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([1, 2, 3], "bigint"),
        ([1, 2, "x"], "bigint"),
        ([1, 2.5, 3], "double"),
        ([1, 2.5, 3, "x"], "double"),
        ([True, True, 1], "boolean"),
        (["x", 1], "string"),
        ([1, True], "string"),
        (["2025-01-15T10:30:00Z", "2025-01-15 10:30:00.5+01:00", "soon"], "timestamp"),
        (["2025-01-15T10:30:00Z", "soon"], "string"),
        (["2025-01-15"], "string"),
        (["2025-13-15T10:30:00Z"], "string"),
        ([[1, 2]], "string"),
        ([2**63], "string"),
        ([1, 2, {"x": 1}], "bigint"),
    ],
)
def test_a_column_has_the_type_of_most_of_its_values(items: list[object], kind: str) -> None:
    assert inferred(*({"a": item} for item in items)) == {"a": kind}


def test_nulls_and_values_that_are_no_objects_tell_nothing() -> None:
    assert inferred({"a": None}, None, [1], "x", {}) == {}
    assert inferred() == {}


def test_a_field_that_is_mostly_an_object_is_flattened() -> None:
    assert inferred({"a": {"x": 1, "y": {"z": "t"}}}, {"a": 1}) == {
        "a": "bigint",
        "a_x": "bigint",
        "a_y_z": "string",
    }


@pytest.mark.parametrize(
    ("known", "items", "kinds"),
    [
        ("bigint", [1], "bigint"),
        ("bigint", [1.5, 2], "bigint double"),
        ("bigint", ["x"], "bigint string"),
        ("bigint", [{"x": 1}], "bigint string"),
        ("bigint double", ["x"], "bigint double string"),
        ("bigint double string", [True], "bigint double string"),
        ("double", [1], "double"),
        ("timestamp", ["soon"], "timestamp string"),
        ("boolean", [1], "boolean string"),
        ("string", [1.5], "string"),
    ],
)
def test_a_known_column_gets_a_wider_one_when_most_values_need_it(
    known: str, items: list[object], kinds: str
) -> None:
    assert inferred(*({"a": item} for item in items), known={"a": known}) == {"a": kinds}


def test_a_name_in_use_is_not_taken_by_a_wider_column_or_a_new_field() -> None:
    known = {"a": "bigint", "A_string": "bigint"}
    assert inferred({"a": "x"}, known=known) == known
    assert inferred({"b_double": 1}, known={"b": "bigint double"}) == {"b": "bigint double"}


def test_a_table_gets_so_many_columns_and_no_more() -> None:
    found = inferred({f"f{number}": 1 for number in range(COLUMNS_MAX + 5)})
    assert len(found) == COLUMNS_MAX
    assert inferred({"more": 1}, known=found) == found
    assert inferred({"f0": "x"}, known=found) == found, "nor a wider one"


def test_a_schema_adds_columns_and_widens_them_and_narrows_none() -> None:
    known = {"id": "bigint", "total": "double"}
    found = stated(known, {"id": "string", "total": "double", "new": "boolean"})
    assert found == {"id": "bigint string", "total": "double", "new": "boolean"}
    assert stated(found, {"id": "bigint"}) == found
    for schema in ({"total": "bigint"}, {"id": "boolean"}, {"TOTAL": "string"}):
        with pytest.raises(Conflict, match="id bigint, total double"):
            stated(known, schema)
