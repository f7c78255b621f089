"""Values of reports as people read them. Programs get them as they are, in the units of the names.

A column's name ends with its unit: ``p50_ms`` is shown as ``p50`` with ``1.25 s`` below it.
"""

from __future__ import annotations

from typing import Any

from goq.units import format_size_bytes

TEXT_MAX = 40
_MINUTES = slice(5, 16)  # of a time in full: the year is told above the tables
_NAMES = {
    "to_mean": "to mean",
    "percent": "share",
    "again_percent": "again",
    "dead_percent": "dead",
}
_NUMBERED = ("lane", "partition")


def headings(columns: tuple[str, ...] | list[str]) -> list[str]:
    """Return what stands above the columns of a table; what two would share has its unit."""
    found = [_NAMES.get(name, name.removesuffix("_ms").replace("_", " ")) for name in columns]
    return [
        f"{shown} %" if found.count(shown) > 1 and name.endswith("_percent") else shown
        for name, shown in zip(columns, found, strict=True)
    ]


def is_number(column: str, value: Any) -> bool:
    """Whether a value stands at the right of its column."""
    return isinstance(value, int | float) and not isinstance(value, bool) and column != "lane"


def shown(column: str, value: Any, text_max: int = TEXT_MAX) -> str:
    """Return a value of a column, texts with no more than so many characters."""
    if value is None or value == "":
        return "-"
    if column == "time":
        return str(value)[_MINUTES].replace("T", " ")
    if isinstance(value, str):
        return shortened(value, text_max)
    if column.endswith("_ms"):
        return duration(value)
    if column.endswith("percent"):
        return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"
    if column == "bytes":
        return format_size_bytes(value)
    if column == "to_mean":
        return f"{value:.2f}"
    return f"{value:,.12g}"


def label(column: str, value: Any) -> str:
    """Return a value as it stands beside a bar, where no heading says what it is."""
    if column in _NUMBERED:
        return f"{column} {value}"
    if column == "tenant" and value is None:
        return "no tenant"
    return str(value) if isinstance(value, str) and value else shown(column, value)


def shortened(text: str, characters_max: int) -> str:
    """Return a text without control characters, and without its middle where it is too long."""
    text = "".join(c if c.isprintable() else "·" for c in text)
    if len(text) <= characters_max:
        return text
    tail = (characters_max - 1) // 2
    return f"{text[: characters_max - 1 - tail]}…{text[len(text) - tail :]}"


def duration(value_ms: float) -> str:
    """Return milliseconds in the unit that suits them, to three digits or two units."""
    if value_ms < 0:
        return f"-{duration(-value_ms)}"
    if value_ms < 999.5:
        return f"{value_ms:.3g} ms"
    if value_ms < 59_950:
        return f"{value_ms / 1000:.3g} s"
    for name, size_ms, small, small_ms in (
        ("m", 60_000, "s", 1000),
        ("h", 3_600_000, "m", 60_000),
        ("d", 86_400_000, "h", 3_600_000),
    ):
        smalls = round(value_ms / small_ms)
        whole, rest = divmod(smalls, size_ms // small_ms)
        if whole < {"m": 60, "h": 24}.get(name, smalls + 1):
            return f"{whole:,}{name}{rest}{small}" if rest else f"{whole:,}{name}"
    raise AssertionError(value_ms)


def span(first: str, last: str) -> str:
    """Return from when to when, both as RFC 3339 in UTC."""
    begin, end = (text[:19].replace("T", " ") for text in (first, last))
    if begin == end:
        return f"{begin} UTC"
    return f"{begin} to {end[11:] if begin[:10] == end[:10] else end} UTC"
