"""Changes of the fields of JSON values between the runs of an export, and the rows wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from goq.model import Message
from goq.pipeline.arrow.json_columns import parse_columns
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Decoding, Export
from tests.support.pipeline.logged_frames import LoggedFrames


class Change(NamedTuple):
    """The values that each run finds, the schema of the runs after the first, the rows' cells."""

    runs: list[list[Any]]
    schema: str
    wanted: list[dict[str, Any]]


CHANGES: dict[str, Change] = {
    "the same": Change([[{"a": 1}], [{"a": 2}]], "", [{"a": 1}, {"a": 2}]),
    "a new field": Change([[{"a": 1}], [{"a": 2, "b": True}]], "", [{"a": 1}, {"a": 2, "b": True}]),
    "a field that is gone": Change(
        [[{"a": 1, "b": 2}], [{"a": 3}]], "", [{"a": 1, "b": 2}, {"a": 3}]
    ),
    "an empty beginning": Change([[], [{"a": 1}]], "", [{"a": 1}]),
    "values that are no JSON": Change([["x"], [{"a": 1}]], "", [{"_corrupt": '"x"'}, {"a": 1}]),
    "a fraction": Change(
        [[{"a": 1}], [{"a": 2.5}, {"a": 3}]],
        "",
        [{"a": 1}, {"a_double": 2.5}, {"a": 3, "a_double": 3.0}],
    ),
    "text for a number": Change([[{"a": 1}], [{"a": "x"}]], "", [{"a": 1}, {"a_string": "x"}]),
    "text for a fraction": Change(
        [[{"a": 1.5}], [{"a": "x"}]], "", [{"a": 1.5}, {"a_string": "x"}]
    ),
    "all of them, one after another": Change(
        [[{"a": 1}], [{"a": 1.5}], [{"a": "x"}], [{"a": 2}]],
        "",
        [
            {"a": 1},
            {"a_double": 1.5},
            {"a_string": "x"},
            {"a": 2, "a_double": 2.0, "a_string": "2"},
        ],
    ),
    "an object for a number": Change(
        [[{"a": 1}], [{"a": {"x": 1}}]],
        "",
        [{"a": 1}, {"a_string": '{"x":1}'}],
    ),
    "a number for an object": Change([[{"a": {"x": 1}}], [{"a": 2}]], "", [{"a_x": 1}, {"a": 2}]),
    "text for a time": Change(
        [[{"a": "2025-01-15T10:30:00Z"}], [{"a": "soon"}]],
        "",
        [{"a": "time"}, {"a_string": "soon"}],
    ),
    "one field that does not fit": Change(
        [[{"a": 1, "b": 1}] * 2, [{"a": 2, "b": 2}, {"a": 3, "b": 3}, {"a": "x", "b": 4}]],
        "",
        [
            *({"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 3, "b": 3}),
            {"b": 4, "_corrupt": '{"a": "x", "b": 4}'},
        ],
    ),
    "fields with the names of folders": Change(
        [[{"date": "1999-01-01"}], [{"Date": 2, "topic_folder": "x"}]],
        "",
        [{"value_date": "1999-01-01"}, {"value_topic_folder": "x"}],
    ),
    "a schema that adds and widens": Change(
        [[{"a": 1}], [{"a": 2, "b": 3, "c": 4}]],
        "a double, c string",
        [{"a": 1}, {"a": 2, "a_double": 2.0, "c": "4"}],
    ),
}


_NAMES = (
    "a",
    "a_x",
    "a_double",
    "a_string",
    "b",
    "c",
    "value_date",
    "value_topic_folder",
    "_corrupt",
)


def export_change(change: str, root: Path, topic: str = "orders") -> LocalDestination:
    """Export the runs of a change to a folder."""
    runs, schema, _ = CHANGES[change]
    log, target = LoggedFrames(1), LocalDestination(root)
    for number, values in enumerate(runs):
        if values:
            log.publish(0, [Message(json.dumps(value).encode(), b"k") for value in values], 1)
        columns = parse_columns(schema) if schema and number else None
        Export(log, target, MESSAGES_TABLE, topic, decoding=Decoding(columns)).run()
    return target


def cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the decoded cells of rows, by offset, without nulls; of a time that it is one."""
    found = []
    for row in sorted(rows, key=lambda row: row["offset"]):
        of_row = {name: row.get(name) for name in _NAMES}
        found.append(
            {
                name: "time" if hasattr(cell, "year") else cell
                for name, cell in of_row.items()
                if cell is not None and cell == cell
            }
        )
    return found
