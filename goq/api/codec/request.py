"""Decoder of requests: JSON bodies, headers, query parameters, durations, times.

Every error names the field at fault.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec

from goq import limits
from goq.api.route import JSON
from goq.errors import InvalidInput, TooLarge, UnsupportedMedia
from goq.http.message import Request
from goq.model import Receipt, check_client_id
from goq.model import parse_receipts as parse_receipt_texts
from goq.units import (
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
    parse_time_us,
)

T = TypeVar("T")

JSON_BODY_BYTES_MAX = 2 * limits.MIB
"""Maximum of any JSON body except a publish: enough for all receipts of one request."""
SETTINGS_BODY_BYTES_MAX = 256 * limits.KIB
"""Maximum of a body with settings."""
KEYS_BYTES_MAX = 512
"""Larger publishes and settlements are not checked for doubled keys: that would slow batches."""
CLIENT_ID = "Goq-Client-Id"
"""The header with the id that a client gives itself."""
_CLIENT_ID = CLIENT_ID.lower()
LANES = "Goq-Lanes"
"""The header with the lanes by which the sender of frames has numbered them."""
_SETTING_CHARS_MAX = 100
_LONG_SETTINGS = ("priority.lanes", "priority.weights", "sqs", "tenants.weights")
"""Settings whose kinds bound them."""
_SETTINGS_DEPTH_MAX = 4
_SETTINGS_MAX = 100  # more than there are
_QUANTITY_CHARS_MAX = 64  # of a duration or a time
_RECEIPTS_AT_ONCE = 1_000
_NUMBER_MAX = 10**15  # of seconds or milliseconds: thousands of years

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNTYPED = ("", "application/x-www-form-urlencoded")  # none, and curl's default
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def json_body(
    request: Request,
    shape: type[T],
    *,
    bytes_max: int = JSON_BODY_BYTES_MAX,
    keys_bytes_max: int = JSON_BODY_BYTES_MAX,
) -> T:
    """Return the body as ``shape``; an empty body counts as ``{}``.

    A key that is twice in one object is refused, in bodies up to ``keys_bytes_max``.

    Raises ``InvalidInput`` with the path of the field at fault, and as :func:`check_json` does.
    """
    check_json(request, bytes_max)
    decoded = decode_json(request.body or b"{}", shape)
    body = request.body
    if len(body) <= keys_bytes_max and body.count(b":") > 1:  # one for each key, at least
        _check_keys(body)
    return decoded


def check_json(request: Request, bytes_max: int) -> None:
    """Check the type and the size of a JSON body.

    Raises ``TooLarge``, and ``UnsupportedMedia`` for a body of another content type. A body without
    a content type is taken for JSON, except from a web page: a page may send such a body anywhere
    without asking, so any site could write to a node on its reader's machine.
    """
    content_type = media_type(request)
    if content_type != JSON and (content_type not in _UNTYPED or "origin" in request.headers):
        raise UnsupportedMedia(
            f"send {JSON}, not {content_type[:100] or 'a body of no type'}", field="Content-Type"
        )
    if len(request.body) > bytes_max:
        raise TooLarge(
            f"a body of {len(request.body)} bytes is over the limit of {bytes_max} here",
            field="body",
        )


def _check_keys(body: bytes) -> None:
    """Raise ``InvalidInput`` for a key that is twice in one object of sound JSON.

    Which of two values counts differs between parsers. What was checked before the node by the one
    must not be read by the other here.
    """
    try:
        _KEYS.decode(body.decode())
    except RecursionError:
        raise InvalidInput("the body is nested too deep", field="body") from None


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise InvalidInput(f"{twice[:50]!r} is twice in one object", field=twice[:50])


def _ignored(_number: str) -> None:
    """Stand for a number, which may have any length."""


_KEYS = json.JSONDecoder(
    object_pairs_hook=_check_pairs,
    parse_int=_ignored,
    parse_float=_ignored,
    parse_constant=_ignored,
)


def decode_json(data: bytes | msgspec.Raw, shape: type[T], *, field: str = "") -> T:
    """Return JSON as ``shape``; errors name the place in it, within ``field``."""
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape)
    try:
        decoded: T = decoder.decode(data)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        detail = _PATH.sub("", text) + _known_fields(text, found[1] if found else "", shape)
        raise InvalidInput(
            detail, field=_joined(field, found[1] if found else "") or "body"
        ) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}", field=field or "body") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deep", field=field or "body") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the body is not UTF-8: byte {error.start} is {error.object[error.start]:#04x};"
            " send bytes as value_base64",
            field=field or "body",
        ) from None
    return decoded


def _joined(outer: str, inner: str) -> str:
    between = "." if outer and inner and not inner.startswith("[") else ""
    return f"{outer}{between}{inner}"


def _known_fields(text: str, path: str, shape: Any) -> str:
    """Return the known fields, for the error about an unknown one."""
    if not text.startswith("Object contains unknown field"):
        return ""
    place: Any = _type_info(shape)
    for step in path.replace("[", ".[").split("."):
        place = _step(place, step) if step else place
    found = _struct_in(place)
    if found is None:
        return ""
    return f"; there are {', '.join(f.encode_name for f in found.fields)}"


@cache  # each call leaves cycles of references
def _type_info(shape: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(shape)


def _step(place: Any, step: str) -> Any:
    if step.startswith("["):
        kinds = place.types if isinstance(place, msgspec.inspect.UnionType) else (place,)
        lists = [kind for kind in kinds if isinstance(kind, msgspec.inspect.ListType)]
        return lists[0].item_type if lists else None
    found = _struct_in(place)
    fields = {f.encode_name: f.type for f in found.fields} if found else {}
    return fields.get(step)


def _struct_in(place: Any) -> msgspec.inspect.StructType | None:
    kinds = place.types if isinstance(place, msgspec.inspect.UnionType) else (place,)
    return next((k for k in kinds if isinstance(k, msgspec.inspect.StructType)), None)


def media_type(request: Request) -> str:
    """Return the content type without its parameters, lower-case."""
    return _media_type(request.headers.get("content-type", ""))


@lru_cache(maxsize=256)
def _media_type(written: str) -> str:
    return written.partition(";")[0].strip().lower()


def parse_client_id(request: Request) -> str | None:
    """Return the client's id from its header, ``None`` without one."""
    written = request.headers.get(_CLIENT_ID)
    return None if written is None else _client_id(written)


@lru_cache(maxsize=1024)
def _client_id(written: str) -> str:
    """Return a client id from its header, which was decoded as latin-1 and encoded as UTF-8."""
    try:
        name = written.encode("latin-1").decode()
    except UnicodeError:
        raise InvalidInput("a client id is UTF-8", field=CLIENT_ID) from None
    return check_client_id(name, field=CLIENT_ID)


def duration_ms(value: str | float, field: str, maximum_ms: int) -> int:
    """Return a duration that may be at most ``maximum_ms``."""
    if value == 0:
        return 0
    _check_quantity(value, "a duration", field)
    parsed_ms = parse_duration_ms(value, field=field)
    if parsed_ms > maximum_ms:
        raise InvalidInput(
            f"{value!r} is over the limit of {format_duration_ms(maximum_ms)}", field=field
        )
    return parsed_ms


def time_us(value: str | float, field: str, now_us: int) -> int:
    """Return a time in microseconds since 1970."""
    _check_quantity(value, "a time", field)
    return parse_time_us(value, now_us=now_us, field=field)


def _check_quantity(value: str | float, what: str, field: str) -> None:
    if len(value) > _QUANTITY_CHARS_MAX if isinstance(value, str) else abs(value) > _NUMBER_MAX:
        raise InvalidInput(f"{str(value)[:50]!r} is too much for {what}", field=field)


def flatten_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic's settings by dotted name; each value is a text, a number or ``None``."""
    return _flat(written, "", _SETTINGS_DEPTH_MAX)


def _flat(written: Mapping[str, Any], prefix: str, depth_left: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in written.items():
        key = prefix + name
        if len(flat) > _SETTINGS_MAX:
            raise InvalidInput(f"there are more than {_SETTINGS_MAX} settings", field="settings")
        if isinstance(value, Mapping) and depth_left:
            flat.update(_flat(value, f"{key}.", depth_left - 1))
        elif isinstance(value, Mapping | list):
            raise InvalidInput("a setting is a text or a number", field=f"settings.{key}")
        elif (
            isinstance(value, str) and len(value) > _SETTING_CHARS_MAX and key not in _LONG_SETTINGS
        ):
            raise InvalidInput(
                f"a setting has at most {_SETTING_CHARS_MAX} characters", field=f"settings.{key}"
            )
        elif isinstance(value, int | float) and abs(value) > 2**63:
            raise InvalidInput(f"{value!r} is out of bounds", field=f"settings.{key}")
        else:
            flat[key] = value
    return flat


def query_int(
    request: Request, name: str, default: int, *, minimum: int = 0, maximum: int = 2**63 - 1
) -> int:
    """Return a query parameter as a number from ``minimum`` to ``maximum``."""
    text = request.query.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not minimum <= number <= maximum:
        raise InvalidInput(f"{text[:50]!r} is not a number from {minimum} to {maximum}", field=name)
    return number


def size_bytes(text: str, name: str, maximum_bytes: int) -> int:
    """Return a size of at least a byte, with a unit or in bytes."""
    if len(text) > _QUANTITY_CHARS_MAX:
        raise InvalidInput(f"{text[:50]!r} is no size", field=name)
    found_bytes = parse_size_bytes(text, field=name)
    if not 1 <= found_bytes <= maximum_bytes:
        most = format_size_bytes(maximum_bytes)
        raise InvalidInput(f"{text!r} is not a size from 1 byte to {most}", field=name)
    return found_bytes


def query_flag(request: Request, name: str) -> bool:
    """Return a boolean query parameter; ``False`` if it is missing."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(f"{text[:50]!r} is neither true nor false", field=name)
    return text == "true"


async def parse_receipts(texts: list[str], maximum: int) -> list[Receipt]:
    """Return parsed receipts, at most ``maximum``; there may be none. Many are parsed in slices."""
    if len(texts) > maximum:
        raise TooLarge(
            f"{len(texts)} receipts are over the limit of {maximum} a request", field="receipts"
        )
    receipts: list[Receipt] = []
    try:
        for start in range(0, len(texts), _RECEIPTS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            receipts += parse_receipt_texts(texts[start : start + _RECEIPTS_AT_ONCE])
        return receipts
    except InvalidInput as error:
        error.field = f"receipts[{_first_bad(texts)}]"
        raise


def _first_bad(texts: list[str]) -> int:
    for number, text in enumerate(texts):
        try:
            Receipt.parse(text)
        except InvalidInput:
            return number
    raise AssertionError("one of them is bad")


def number_of(text: str, field: str) -> int:
    """Return the number in a path or a query. Raises ``InvalidInput``."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise InvalidInput(f"{field} is a number, not {text[:50]!r}", field=field)
    return int(text)
