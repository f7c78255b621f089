"""Values of JSON bodies and parameters, as OpenAPI describes them.

The decoder does not check these bounds: :mod:`goq.api.codec` does, with errors that say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta

from goq import limits
from goq.model import DEAD_LETTERS_SUFFIX

Schema = Mapping[str, Any]

_NAME = r"(?!\.|__)[A-Za-z0-9._-]{%d,%d}"
_NUMBER = r"\d{1,15}(\.\d{1,15})?"
_OFFSET_MAX: Final = 2**63 - 1
PRODUCER_ID_MAX: Final = 2**64 - 1
_QUANTITY_CHARS_MAX: Final = 64
_SUFFIX_CHARS: Final = len(DEAD_LETTERS_SUFFIX)


def integer(minimum: int = 0, maximum: int = _OFFSET_MAX, default: int | None = None) -> Schema:
    """Return the schema of a whole number within bounds."""
    found: dict[str, Any] = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return found if default is None else {**found, "default": default}


TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean", "default": False}
TOPIC: Final[Schema] = {
    "type": "string",
    "pattern": f"^{_NAME % (1, limits.NAME_CHARS_MAX + _SUFFIX_CHARS)}$",
}
GROUP: Final[Schema] = {"type": "string", "pattern": f"^{_NAME % (1, limits.NAME_CHARS_MAX)}$"}
MESSAGE_ID: Final[Schema] = {
    "type": "string",
    "pattern": rf"^{_NAME % (1, limits.NAME_CHARS_MAX + _SUFFIX_CHARS)}:\d{{1,9}}:\d{{1,18}}$",
    "examples": ["orders:0:4711"],
}
DURATION: Final[Schema] = {
    "type": "string",
    "pattern": rf"^({_NUMBER}|({_NUMBER}(ms|s|m|h|d)){{1,8}})$",
    "maxLength": _QUANTITY_CHARS_MAX,
    "description": "a duration; a bare number is seconds",
    "examples": ["30s", "1h30m"],
}
SIZE: Final[Schema] = {
    "type": "string",
    "pattern": rf"^{_NUMBER}([KMGT]i?B)?$",
    "maxLength": _QUANTITY_CHARS_MAX,
    "description": "a size; a bare number is bytes",
    "examples": ["64KiB", "8MiB"],
}
TIME: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": _QUANTITY_CHARS_MAX,
    "examples": ["2026-01-31T12:00:00Z", "2026-01-31", "now", "-15m"],
}


def one_of(values: Iterable[str]) -> Schema:
    """Return the schema of a text that is one of some values."""
    return {"type": "string", "enum": [str(value) for value in values]}


def some_of(values: Sequence[str]) -> Schema:
    """Return the schema of a text that lists some values, with commas between them."""
    one = "|".join(values)
    return {"type": "string", "pattern": f"^({one})(,({one}))*$", "examples": [",".join(values)]}


DateTime = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in an answer: RFC 3339 in UTC."""

_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_MILLISECONDS: Final[Schema] = {"type": "number", "minimum": 0}
Duration = Annotated[str | float, Meta(extra_json_schema={"anyOf": [DURATION, _SECONDS]})]
"""A duration in a body: with units, or in seconds."""

Time = Annotated[str | float, Meta(extra_json_schema={"anyOf": [TIME, _MILLISECONDS]})]
"""A time in a body: as text, or in milliseconds since 1970."""

TopicName = Annotated[str, Meta(extra_json_schema=dict(TOPIC))]
GroupName = Annotated[str, Meta(extra_json_schema=dict(GROUP))]
Index = Annotated[int, Meta(extra_json_schema=dict(integer()))]
"""A partition, an offset, a count."""

Taken = Annotated[int, Meta(extra_json_schema=dict(integer(1, limits.RECEIVE_MESSAGES_MAX)))]
"""The maximum of messages of a receive, or in flight of a stream."""

Redriven = Annotated[int, Meta(extra_json_schema=dict(integer(1, limits.REDRIVE_MESSAGES_MAX)))]
Partitions = Annotated[
    int, Meta(extra_json_schema=dict(integer(1, limits.PARTITIONS_PER_TOPIC_MAX)))
]
Replicas = Annotated[int, Meta(extra_json_schema=dict(integer(1, limits.REPLICAS_MAX)))]
Consumer = Annotated[str, Meta(extra_json_schema={"maxLength": limits.CONSUMER_NAME_CHARS_MAX})]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
Acknowledgement = Annotated[str, Meta(extra_json_schema=dict(one_of(("quorum", "leader"))))]
