"""Text of messages for people: one line, no control characters, binary data as hex."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

BINARY_MARK: Final = "hex:"
"""Begins what is shown of bytes that are not UTF-8."""
_ELLIPSIS: Final = "…"


def escaped(value: object) -> str:
    """Return a text on one line, with control characters escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped_json(text: str) -> str:
    """Return the same JSON with control characters escaped, also those that JSON may have raw."""
    if text.isprintable():
        return text
    import json

    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def shown_bytes(data: bytes) -> str:
    """Return UTF-8 as escaped text, other bytes as hex with a mark."""
    try:
        return escaped(data.decode())
    except UnicodeDecodeError:
        return BINARY_MARK + data.hex()


def shown_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field of a JSON message on one line, which may be there as ``NAME_base64``."""
    if (encoded := fields.get(f"{name}_base64")) is not None:
        return shown_bytes(base64.b64decode(encoded))
    value = fields.get(name)
    if isinstance(value, Mapping):
        return ", ".join(f"{escaped(key)}={escaped(text)}" for key, text in value.items())
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return ", ".join(f"{escaped(h['name'])}={shown_field(h, 'value')}" for h in value)
    return "" if value is None else escaped(value)


def width_of(text: str) -> int:
    """Return how many columns a terminal needs for a text without control characters."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, columns: int) -> str:
    """Return a text that needs at most so many columns; a cut one ends with an ellipsis."""
    if width_of(text) <= columns:
        return text
    return text[: fitting(text, columns - 1)] + _ELLIPSIS


def fitting(text: str, columns: int) -> int:
    """Return how many first characters of a text need at most so many columns."""
    for count, character in enumerate(text):
        columns -= _character_width(character)
        if columns < 0:
            return count
    return len(text)


def shown_age(age_ms: int) -> str:
    """Return a duration for people, with at most two units."""
    seconds = age_ms / 1000
    if seconds < 60:
        return f"{age_ms} ms" if seconds < 1 else f"{seconds:.1f} s"
    minutes, second = divmod(age_ms // 1000, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    return f"{hours} h {minute} min" if hours else f"{minutes} min {second} s"
