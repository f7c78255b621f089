"""Arguments of the public calls, checked and converted for the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Final

import msgspec

from goq import limits
from goq.client.retry import BackoffPolicy, OnRetry
from goq.errors import InvalidInput, TooLarge
from goq.model import Header, Message, check_message, check_text, has_delivery_options
from goq.units import format_duration_ms, parse_duration_ms

Duration = str | float | timedelta
FOREVER: Final = "forever"
_PARTITION_MAX: Final = 2**32 - 1  # the largest that the binary form of a publish can name
Time = str | float | datetime
_DELIVERY_BYTES = 48  # times, dedup id, lane, number and offset of a tenant
HeadersLike = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
MessageLike = Message | bytes | str


def retry_policy(
    retries: Duration, connect_retries: Duration, on_retry: OnRetry | None
) -> BackoffPolicy:
    """Return the policy of a client; ``forever`` is a duration, too."""

    check_callable(on_retry, "on_retry")

    def retry_ms(duration: Duration, field: str) -> float:
        return inf if duration in (FOREVER, inf) else parse_duration_ms(duration, field=field)

    total_ms = retry_ms(retries, "retries")
    refused_ms = retry_ms(connect_retries, "connect_retries")
    return BackoffPolicy(total_ms, refused_ms=refused_ms, on_retry=on_retry)


def check_int(value: int | None, field: str) -> None:
    """Raise ``InvalidInput`` unless ``value`` is a whole number or None."""
    if value is not None and type(value) is not int:
        raise InvalidInput(f"{field} is a whole number, not {value!r:.100}", field=field)


def check_list(values: object, field: str) -> None:
    """Raise ``InvalidInput`` for what is no list, or is one only of letters or bytes."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"{field} is a list, not {type(values).__name__}", field=field)


def check_callable(value: object, field: str) -> None:
    """Raise ``InvalidInput`` for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{field} is a function, not {type(value).__name__}", field=field)


def as_dict(values: Mapping[str, object], field: str) -> dict[str, object]:
    """Return a mapping as a dict; raise ``InvalidInput`` for what is none."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{field} is a mapping, not {type(values).__name__}", field=field)
    return dict(values)


def check_json(value: object, field: str) -> None:
    """Raise ``InvalidInput`` for what a JSON body cannot hold; it names the place.

    The encoder would write bytes as base64, and a duration in a form that the node does not read.
    """
    match value:
        case str():
            check_text(value, field)
        case dict():
            for name, each in value.items():
                check_json(each, f"{field}.{name}" if field else str(name))
        case list() | tuple():
            for number, each in enumerate(value):
                check_json(each, f"{field}[{number}]")
        case None | bool() | int() | float():
            pass
        case _:
            raise InvalidInput(
                f"{field} is a text or a number, not {type(value).__name__}", field=field
            )


def as_texts(values: str | Iterable[str], field: str) -> list[str]:
    """Return one text or several as a list."""
    if isinstance(values, str):
        return [check_text(values, field)]
    check_list(values, field)
    return [check_text(value, field) for value in values]


def as_bytes(value: bytes | str, field: str) -> bytes:
    """Return ``value`` as bytes: text is UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return check_text(value, field).encode()
    raise InvalidInput(f"{field} is bytes or str, not {type(value).__name__}", field=field)


def check_partition(partition: int | None) -> int | None:
    """Return ``partition`` if it can be one, or is None; else raise ``InvalidInput``."""
    if partition is None or (type(partition) is int and 0 <= partition <= _PARTITION_MAX):
        return partition
    raise InvalidInput(
        f"a partition is 0 to {_PARTITION_MAX}, not {partition!r:.100}",
        field="partition",
    )


def as_message(
    value: bytes | str | None, key: bytes | str | None, headers: HeadersLike | None
) -> Message:
    """Return a message within the limits, or raise ``TooLarge`` or ``InvalidInput``."""
    message = Message(
        None if value is None else as_bytes(value, "value"),
        None if key is None else as_bytes(key, "key"),
        () if headers is None else _as_headers(headers),
    )
    check_message(message, field="message")
    return message


def as_messages(messages: Iterable[MessageLike]) -> list[Message]:
    """Return messages within the limits; a value alone is a message without key and headers."""
    check_list(messages, "messages")
    return [
        _checked(item) if isinstance(item, Message) else as_message(item, None, None)
        for item in messages
    ]


def check_values(values: Sequence[bytes]) -> None:
    """Raise ``InvalidInput`` for what is not bytes, ``TooLarge`` over the limit; at C speed."""
    check_list(values, "values")
    if not isinstance(values, Sequence):
        raise InvalidInput("values have a length: pass a list", field="values")
    if not {bytes}.issuperset(map(type, values)):
        wrong = [type(value).__name__ for value in values if not isinstance(value, bytes)]
        if wrong:
            raise InvalidInput(f"each of values is bytes, not {wrong[0]}", field="values")
    if values and max(map(len, values)) > limits.VALUE_BYTES_MAX:
        raise TooLarge(
            f"a value of {max(map(len, values))} bytes is over the limit of"
            f" {limits.VALUE_BYTES_MAX}"
        )


def value_bytes(value: bytes) -> int:
    """Return how many bytes a message that has only a value takes in a frame."""
    return 8 + len(value)


def message_bytes(message: Message) -> int:
    """Return roughly how many bytes a message takes in a frame."""
    size_bytes = 8 + len(message.value or b"")
    if message.key is not None:
        size_bytes += 16 + len(message.key)
    for name, value in message.headers:
        size_bytes += 8 + len(name) + len(value)
    if has_delivery_options(message):
        size_bytes += _DELIVERY_BYTES + 4 * len(message.tenant or "")
    return size_bytes


def wire_duration(duration: Duration, field: str) -> str:
    """Return a duration as the API reads it."""
    return format_duration_ms(parse_duration_ms(duration, field=field))


def as_time(time: Time, field: str) -> str | float:
    """Return a time as :func:`~goq.units.parse_time_us` and the API read it."""
    if not isinstance(time, datetime):
        if isinstance(time, str | int | float):
            return time
        raise InvalidInput(f"{field} is {time!r:.100}, which is not a time", field=field)
    if time.tzinfo is None:
        raise InvalidInput(
            f"{field} {time!r} has no zone; give it one, as datetime.now(UTC)", field=field
        )
    return time.isoformat()


def wait_ms(wait: Duration | None) -> int:
    """Return for how many milliseconds the node may hold a long poll; 0 for None."""
    return 0 if wait is None else min(parse_duration_ms(wait, field="wait"), limits.WAIT_MS_MAX)


def check_acks(acks: str | None) -> str | None:
    """Return ``acks`` if it is ``quorum``, ``leader`` or None; else raise ``InvalidInput``."""
    if acks not in (None, "quorum", "leader"):
        raise InvalidInput(f"acks is quorum or leader, not {acks!r:.100}", field="acks")
    return acks


def _checked(message: Message) -> Message:
    if type(message.value) is bytes and type(message.key) is bytes and not message.headers:
        check_message(message, field="message")
        return message
    plain = as_message(message.value, message.key, message.headers)
    if not has_delivery_options(message):
        return plain
    whole = msgspec.structs.replace(
        message, value=plain.value, key=plain.key, headers=plain.headers
    )
    check_message(whole, field="message")
    return whole


def _as_headers(headers: HeadersLike) -> tuple[Header, ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple(
            (check_text(name, "headers"), as_bytes(value, "headers")) for name, value in pairs
        )
    except (TypeError, ValueError):
        raise InvalidInput(
            "headers are a mapping of names to values, or pairs of both", field="headers"
        ) from None
