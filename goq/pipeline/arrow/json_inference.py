"""The columns of JSON values, inferred from counted fields and widened as the fields change.

A field gets the type of most of its values. Numbers count together: one fraction among them makes
the type ``double``. A field that is an object as often as not is flattened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from goq.errors import Conflict
from goq.pipeline.arrow.json_columns import (
    COLUMNS_MAX,
    DEPTH_MAX,
    Columns,
    FieldCounts,
    column_name,
    column_names,
    count_kind,
    json_object,
    kind_of,
)

_NUMBERS = ("bigint", "double")


def counted(values: Iterable[bytes | None], columns: Columns) -> FieldCounts:
    """Return how many values of each type the fields of a sample have."""
    sample = [value for value in values if value]
    shapes: dict[str, int] = {}
    for value in sample:
        for place, is_object in _places(json_object(value, _EVERYTHING) or {}, "", DEPTH_MAX):
            shapes[place] = shapes.get(place, 0) + (1 if not is_object else -1)
    whole = columns.keys() | {place for place, balance in shapes.items() if balance > 0}
    counts: FieldCounts = {}
    for value in sample:
        for field, item in (json_object(value, whole) or {}).items():
            count_kind(counts, field, kind_of(item))
    return counts


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _places(read: Mapping[str, Any], prefix: str, depth_left: int) -> Iterable[tuple[str, bool]]:
    """Yield each place of a value that is not null, and whether it is an object."""
    for name, item in read.items():
        if item is None:
            continue
        yield f"{prefix}{name}", isinstance(item, dict)
        if isinstance(item, dict) and depth_left:
            yield from _places(item, f"{prefix}{name}_", depth_left - 1)


def merged(*several: FieldCounts) -> FieldCounts:
    """Return the sum of counts."""
    total: FieldCounts = {}
    for counts in several:
        for field, kinds in counts.items():
            for kind, count in kinds.items():
                count_kind(total, field, kind, count)
    return total


def evolved(columns: Columns, counts: FieldCounts) -> dict[str, str]:
    """Return the columns with new fields added, and those widened whose type most values outgrew.

    A field is left out while its column's name is in use, and beyond ``COLUMNS_MAX`` columns.
    """
    found = dict(columns)
    taken = column_names(columns)
    for field, kinds in counts.items():
        kind = _majority(kinds)
        known = found.get(field, "").split()
        if known and not _holds(known[-1], kind):
            kind = _joined(known[-1], kind)
        elif known:
            continue
        name = column_name(field, kind if known else None)
        if field and len(taken) < COLUMNS_MAX and name.lower() not in taken:
            taken.add(name.lower())
            found[field] = " ".join([*known, kind])
    return found


def stated(columns: Columns, schema: Columns) -> dict[str, str]:
    """Return the columns with those of a schema added; raise ``Conflict`` for a narrower one."""
    found = dict(columns)
    taken = column_names(columns)
    for field, kind in schema.items():
        known = found.get(field, "").split()
        if kind in known:
            continue
        name = column_name(field, kind if known else None)
        if (known and not _holds(kind, known[-1])) or name.lower() in taken:
            listed = ", ".join(f"{field} {kinds}" for field, kinds in columns.items())
            raise Conflict(
                f"{field} {kind} does not go with the columns exported there ({listed}): a type"
                " may widen from bigint to double, and from any to string; or use another folder",
                field="schema",
            )
        taken.add(name.lower())
        found[field] = " ".join([*known, kind])
    return found


def left_out(columns: Columns, seen: FieldCounts) -> list[str]:
    """Return the fields that values had, and that have no column."""
    return sorted(seen.keys() - columns.keys())


def _majority(kinds: Mapping[str, int]) -> str:
    """Return the type that more than half of the values have; text without one."""
    numbers = sum(kinds.get(kind, 0) for kind in _NUMBERS)
    half = sum(kinds.values()) / 2
    if numbers > half:
        return "double" if kinds.get("double") else "bigint"
    return next((kind for kind, count in kinds.items() if count > half), "string")


def _holds(wide: str, kind: str) -> bool:
    """Whether a column of type ``wide`` has all values of ``kind``."""
    return wide in (kind, "string") or (wide == "double" and kind == "bigint")


def _joined(known: str, kind: str) -> str:
    return "double" if {known, kind} == set(_NUMBERS) else "string"
