"""Single messages as a node describes them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from goq.client.results.result import Json, Result, as_object, decode, items_of
from goq.errors import GoqError
from goq.model import Header, MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGroupState:
    """The state of a message for one group.

    ``attempt`` counts its deliveries from 1. A leased message is with ``consumer`` until
    ``lease_until``; one that waits for a retry comes again at ``due``.
    """

    group: str
    state: str
    attempt: int | None = None
    consumer: str | None = None
    lease_until: datetime | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDescription(Result):
    """A message with what is known of it. Looking at it leases nothing.

    ``timestamp`` is its append time. ``value`` is None for a tombstone. ``priority``,
    ``deliver_at`` and ``expires_at`` are those in force, None where the message has none.

    From :meth:`~goq.client.Client.get_message`, ``state`` is ``scheduled``, ``cancelled`` or
    ``available``, and ``groups`` has the state for each group. From
    :meth:`~goq.client.Client.peek`, ``state``, ``attempt``, ``lease_until`` and ``due`` are those
    for the group.
    """

    id: MessageId
    partition: int
    offset: int
    timestamp: datetime | None = None
    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    priority: str | None = None
    tenant: str | None = None
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    state: str | None = None
    attempt: int | None = None
    lease_until: datetime | None = None
    due: datetime | None = None
    groups: tuple[MessageGroupState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(Result):
    """A page of messages. ``next`` goes into ``after`` of the next call; None on the last page."""

    messages: tuple[MessageDescription, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessagePage(Result):
    """A page of found messages. ``next`` goes into ``cursor`` of the next call; None at the end.

    ``searched`` counts the messages that were looked at for it.
    """

    messages: tuple[MessageDescription, ...]
    next: str | None = None
    searched: int = 0


def decode_message(answer: object) -> MessageDescription:
    """Return a message from an answer."""
    return decode(MessageDescription, answer, message_fields(as_object(answer)))


def decode_message_page(answer: object) -> MessagePage:
    """Return a page of messages from an answer."""
    fields = {"messages": tuple(map(decode_message, items_of(answer, "messages")))}
    return decode(MessagePage, answer, fields)


def decode_found_page(answer: object) -> FoundMessagePage:
    """Return a page of found messages from an answer."""
    fields = {"messages": tuple(map(decode_message, items_of(answer, "messages")))}
    return decode(FoundMessagePage, answer, fields)


def message_fields(answer: Json) -> dict[str, Any]:
    """Return the fields of a message whose JSON form is not that of the value.

    The API writes bytes as text where they are UTF-8, else as ``<name>_base64``. Headers are an
    object where their names differ and their values are text, else a list.
    """
    try:
        return {
            "id": MessageId.parse(str(answer["id"])),
            "value": _bytes_of(answer, "value"),
            "key": _bytes_of(answer, "key"),
            "headers": tuple(_headers_of(answer.get("headers") or ())),
        }
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise GoqError(f"the answer is not goq's: no message: {error}; is it a goq node?") from None


def _bytes_of(fields: Json, name: str) -> bytes | None:
    if (encoded := fields.get(f"{name}_base64")) is not None:
        return base64.b64decode(encoded)
    text = fields.get(name)
    return None if text is None else text.encode()


def _headers_of(headers: Json | Sequence[Json]) -> list[Header]:
    if isinstance(headers, Mapping):
        return [(name, value.encode()) for name, value in headers.items()]
    return [(header["name"], _bytes_of(header, "value") or b"") for header in headers]
