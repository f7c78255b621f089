"""Messages as JSON objects, one a line: ``{"value": …, "key": …, "delay": …}``."""

from __future__ import annotations

import base64
import binascii

import msgspec
from msgspec import UNSET, UnsetType

from goq.client.delivery_options import DeliveryOptions
from goq.errors import InvalidInput
from goq.model import Header, Message


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One line of input."""

    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    priority: str | int | None = None
    delay: str | float | None = None
    deliver_at: str | float | None = None
    ttl: str | float | None = None
    tenant: str | None = None
    dedup_id: str | None = None


_decoder = msgspec.json.Decoder(JsonMessage)


def parse_message(line: bytes, where: str) -> tuple[Message, DeliveryOptions]:
    """Return the message in ``line`` and its delivery options.

    Raises ``InvalidInput`` naming the place ``where``.
    """
    try:
        parsed = _decoder.decode(line)
        value = _value(parsed)
        key = base64.b64decode(parsed.key_base64, validate=True) if parsed.key_base64 else None
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise InvalidInput(f"{where}: {error}") from None
    if parsed.key is not None:
        key = parsed.key.encode()
    headers: list[Header] = [(name, text.encode()) for name, text in parsed.headers.items()]
    options = DeliveryOptions(
        parsed.priority,
        parsed.delay,
        parsed.deliver_at,
        parsed.ttl,
        parsed.tenant,
        parsed.dedup_id,
    )
    return Message(value, key, tuple(headers)), options


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
