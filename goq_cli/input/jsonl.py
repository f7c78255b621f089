"""Messages as JSON objects, one a line: ``{"value": …, "key": …, "delay": …}``.

Also what ``goq … --json`` prints: a message a line, or one document with all. What the node sets
anew is ignored: id, offset, times of the log, attempts.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from goq.client.delivery_options import DeliveryOptions
from goq.errors import InvalidInput
from goq.model import Header, Message

Ignored = Any


class JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """One header of a list of headers."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message; the last fields are those of messages that were read, and are ignored."""

    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] | list[JsonHeader] = msgspec.field(default_factory=dict)
    priority: str | int | None = None
    delay: str | float | None = None
    deliver_at: str | float | None = None
    ttl: str | float | None = None
    tenant: str | None = None
    dedup_id: str | None = None
    id: Ignored = None
    topic: Ignored = None
    partition: Ignored = None
    offset: Ignored = None
    timestamp: Ignored = None
    attempt: Ignored = None
    receipt: Ignored = None
    consumer: Ignored = None
    lease_until: Ignored = None
    due: Ignored = None
    expires_at: Ignored = None
    state: Ignored = None
    origin: Ignored = None
    group: Ignored = None
    attempts: Ignored = None
    cause: Ignored = None
    reason: Ignored = None
    died_at: Ignored = None
    published_at: Ignored = None
    redrives: Ignored = None
    failures: Ignored = None
    earlier: Ignored = None
    groups: Ignored = None


class MessageDocument(msgspec.Struct):
    """A document of messages."""

    messages: list[JsonMessage]


_decoder = msgspec.json.Decoder(JsonMessage)
_document_decoder = msgspec.json.Decoder(MessageDocument)
_DOCUMENT = re.compile(rb'\s*{\s*"messages"\s*:')


def parse_messages(line: bytes, where: str) -> list[tuple[Message, DeliveryOptions]]:
    """Return the messages in ``line``, one or a document of them, and their delivery options.

    Raises ``InvalidInput`` naming the place ``where``.
    """
    try:
        if _DOCUMENT.match(line):
            return [_message_of(m, where) for m in _document_decoder.decode(line).messages]
        return [_message_of(_decoder.decode(line), where)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}: {error}") from None


def _message_of(parsed: JsonMessage, where: str) -> tuple[Message, DeliveryOptions]:
    try:
        value = _value(parsed)
        key = _key(parsed)
        headers = _headers(parsed.headers)
    except (UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise InvalidInput(f"{where}: {error}") from None
    options = DeliveryOptions(
        parsed.priority,
        parsed.delay,
        parsed.deliver_at,
        parsed.ttl,
        parsed.tenant,
        parsed.dedup_id,
    )
    return Message(value, key, headers), options


def _value(parsed: JsonMessage) -> bytes | None:
    if isinstance(parsed.value_base64, str):
        if parsed.value is not UNSET:
            raise ValueError("give value or value_base64, not both")
        return base64.b64decode(parsed.value_base64, validate=True)
    if isinstance(parsed.value, str):
        return parsed.value.encode()
    if parsed.value is None:
        return None
    raise ValueError("a message has a value or a value_base64")


def _key(parsed: JsonMessage) -> bytes | None:
    if parsed.key is not None and parsed.key_base64 is not None:
        raise ValueError("give key or key_base64, not both")
    if parsed.key_base64 is not None:
        return base64.b64decode(parsed.key_base64, validate=True)
    return None if parsed.key is None else parsed.key.encode()


def _headers(headers: dict[str, str] | list[JsonHeader]) -> tuple[Header, ...]:
    if isinstance(headers, dict):
        return tuple((name, text.encode()) for name, text in headers.items())
    return tuple((header.name, _header_value(header)) for header in headers)


def _header_value(header: JsonHeader) -> bytes:
    if header.value_base64 is None:
        return (header.value or "").encode()
    if header.value is not None:
        raise ValueError(f"give value or value_base64 of the header {header.name}, not both")
    return base64.b64decode(header.value_base64, validate=True)
