"""Messages of the protocol as goq messages, and back.

A message attribute is a header of the same name. Its type is in the header ``AWS.types``, unless
it is ``String``: so attributes are headers to other clients of goq, and headers are attributes
here. Names that begin with ``AWS.`` are not allowed for attributes of users.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from goq import limits
from goq.model import MessageId
from goq.sqs.protocol.bounds import (
    ATTRIBUTE_NAME_CHARS_MAX,
    ATTRIBUTE_TYPE_CHARS_MAX,
    ATTRIBUTES_MAX,
)
from goq.sqs.protocol.digest import AttributeContent
from goq.sqs.protocol.errors import SqsError, invalid_parameter
from goq.sqs.protocol.query_protocol import UNFIT
from goq.sqs.protocol.shapes import AttributeValue

TYPES_HEADER: Final = "AWS.types"
DEDUP_HEADER: Final = "AWS.dedup-id"
TRACE_HEADER: Final = "AWS.trace"
HIDDEN_HEADERS: Final = ("AWS.", "goq-dead-", "goq-redrive")
TRACE_ATTRIBUTE: Final = "AWSTraceHeader"
_STRING: Final = "String"
_NAME: Final = re.compile(r"(?!\.)[A-Za-z0-9_.-]+(?<!\.)", re.ASCII)
_RESERVED: Final = ("aws.", "amazon.", "goq-dead-", "goq-redrive")
_TYPE: Final = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]+)?")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)


class PublishedContent(msgspec.Struct, omit_defaults=True):
    """A message in the body of the node's publish."""

    value: str
    key: str | None = None
    headers: dict[str, str] | list[dict[str, str]] | None = None
    delay: str | None = None
    tenant: str | None = None
    dedup_id: str | None = None


class LeasedContent(msgspec.Struct):
    """A message in the answer of the node's receive."""

    id: str
    offset: int
    timestamp: str
    receipt: str
    attempt: int = 1
    value: str | UnsetType | None = UNSET
    value_base64: str = ""
    key: str | None = None
    tenant: str | None = None
    headers: dict[str, str] | list[dict[str, str]] = {}
    origin: str = ""
    redriven_from: str = ""

    @property
    def last_death(self) -> MessageId | None:
        """The id of a message when it was given up last, also if it was redriven since then."""
        return MessageId.parse(self.origin) if self.origin else None

    @property
    def former_id(self) -> MessageId | None:
        """The id of a dead letter before it was one. A redriven message is a new one."""
        return None if self.redriven_from else self.last_death

    @property
    def body(self) -> str:
        """The body: bytes that are not UTF-8 are in base64, a tombstone is empty."""
        return self.value_base64 if self.value is UNSET else self.value or ""


def check_body(body: str) -> None:
    """Raise ``SqsError`` for a character that XML 1.0 does not have."""
    if UNFIT.search(body):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to"
            " #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.",
        )


def attribute_contents(
    given: Mapping[str, AttributeValue] | None,
) -> dict[str, AttributeContent]:
    """Return checked attributes of a message to send. Raises ``SqsError``."""
    if not given:
        return {}
    if len(given) > ATTRIBUTES_MAX:
        raise invalid_parameter(
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum"
            f" [{ATTRIBUTES_MAX}]."
        )
    for name in given:
        is_long = len(name) > ATTRIBUTE_NAME_CHARS_MAX
        if is_long or not _NAME.fullmatch(name) or ".." in name:
            raise invalid_parameter(
                f"Message (user) attribute name {name[:300]!r} is invalid: it has 1 to"
                f" {ATTRIBUTE_NAME_CHARS_MAX} of A-Z a-z 0-9 _ - and single periods inside."
            )
        if name.lower().startswith(_RESERVED):
            raise invalid_parameter(
                f"Message (user) attribute name {name!r} is invalid: such a beginning is reserved."
            )
    return {name: _content(name, value) for name, value in given.items()}


def system_contents(given: Mapping[str, AttributeValue] | None) -> dict[str, AttributeContent]:
    """Return checked system attributes of a message to send. Raises ``SqsError``."""
    found = {name: _content(name, value) for name, value in (given or {}).items()}
    for name, content in found.items():
        if name != TRACE_ATTRIBUTE or content.data_type != _STRING:
            raise invalid_parameter(
                f"Message system attribute {name[:100]!r} is invalid: there is {TRACE_ATTRIBUTE},"
                f" a {_STRING}."
            )
    return found


def _content(name: str, given: AttributeValue) -> AttributeContent:
    data_type = given.data_type or ""
    if len(data_type) > ATTRIBUTE_TYPE_CHARS_MAX or not _TYPE.fullmatch(data_type):
        raise invalid_parameter(
            f"The message attribute {name[:256]!r} has an invalid message attribute type: it is"
            " String, Number or Binary, perhaps with a suffix as in String.json, of at most"
            f" {ATTRIBUTE_TYPE_CHARS_MAX} characters."
        )
    value = given.binary if data_type.startswith("Binary") else given.text
    if not value:
        raise invalid_parameter(
            f"The message attribute {name[:256]!r} must contain a non-empty value of its type."
        )
    if isinstance(value, str):
        check_body(value)
        if data_type.startswith("Number") and not _NUMBER.fullmatch(value):
            raise invalid_parameter(
                f"Can't cast the value of message (user) attribute {name[:256]!r} to a number."
            )
    return AttributeContent(data_type, value)


def content_bytes(body: str, attributes: Mapping[str, AttributeContent]) -> int:
    """Return the size of a message as AWS counts it: with names, types and values."""
    size_bytes = len(body.encode())
    for name, (data_type, value) in attributes.items():
        size_bytes += len(name) + len(data_type.encode())
        size_bytes += len(value.encode() if isinstance(value, str) else value)
    return size_bytes


def headers_of(
    attributes: Mapping[str, AttributeContent], system: Mapping[str, str]
) -> dict[str, str] | list[dict[str, str]] | None:
    """Return the headers of a message to publish."""
    texts = dict(system)
    types = {name: each.data_type for name, each in attributes.items() if each[0] != _STRING}
    if types:
        texts[TYPES_HEADER] = msgspec.json.encode(types).decode()
    binary: list[dict[str, str]] = []
    for name, (_, value) in attributes.items():
        if isinstance(value, str):
            texts[name] = value
        else:
            binary.append({"name": name, "value_base64": base64.b64encode(value).decode()})
    if not binary:
        return texts or None
    return [*binary, *({"name": name, "value": value} for name, value in texts.items())]


def check_headers(headers: dict[str, str] | list[dict[str, str]] | None) -> None:
    """Raise ``SqsError`` for headers that are too large for a message.

    The node would refuse them too, and the whole batch with them.
    """
    pairs = headers.items() if isinstance(headers, dict) else map(_name_and_value, headers or ())
    size_bytes = sum(
        len(name.encode()) + len(value.encode() if isinstance(value, str) else value)
        for name, value in pairs
    )
    if size_bytes > limits.HEADERS_BYTES_MAX:
        raise invalid_parameter(
            "One or more parameters are invalid. Reason: The attributes of a message must be"
            f" shorter than {limits.HEADERS_BYTES_MAX} bytes; with their types they have"
            f" {size_bytes}."
        )


class ReceivedHeaders:
    """The headers of a received message, as attributes."""

    def __init__(self, message: LeasedContent) -> None:
        listed = message.headers
        if isinstance(listed, dict):
            self._values: dict[str, str | bytes] = dict(listed)
        else:
            self._values = dict(map(_name_and_value, listed))

    def text(self, name: str) -> str | None:
        """Return a header's value if it is a text."""
        value = self._values.get(name)
        return value if isinstance(value, str) else None

    def attributes(
        self, asked: Collection[str], readable: Callable[[str], str]
    ) -> dict[str, AttributeContent]:
        """Return the attributes that match one of the names asked for, of ``readable`` texts."""
        types = self._types()
        found = {}
        for name, value in self._values.items():
            if name.startswith(HIDDEN_HEADERS) or not value or not _is_asked(name, asked):
                continue
            default = _STRING if isinstance(value, str) else "Binary"
            data_type = types.get(name, default)
            if data_type.startswith("Binary") is isinstance(value, str):
                value = _other_kind(value)
            content = readable(value) if isinstance(value, str) else value
            found[readable(name)] = AttributeContent(readable(data_type), content)
        return found

    def _types(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self.text(TYPES_HEADER) or "{}", type=dict[str, str])
        except msgspec.DecodeError:
            return {}


def _name_and_value(header: Mapping[str, str]) -> tuple[str, str | bytes]:
    text = header.get("value")
    value = base64.b64decode(header.get("value_base64", "")) if text is None else text
    return header["name"], value


def _other_kind(value: str | bytes) -> str | bytes:
    """Return bytes that happen to be UTF-8 as bytes, and others as text."""
    return value.encode() if isinstance(value, str) else base64.b64encode(value).decode()


def _is_asked(name: str, asked: Collection[str]) -> bool:
    for pattern in asked:
        if pattern in ("All", ".*", name):
            return True
        if pattern.endswith(".*") and name.startswith(pattern[:-2]):
            return True
    return False


def attribute_json(content: AttributeContent) -> dict[str, Any]:
    """Return an attribute as an answer has it; bytes become base64 in JSON."""
    kind = "StringValue" if isinstance(content.value, str) else "BinaryValue"
    return {kind: content.value, "DataType": content.data_type}
