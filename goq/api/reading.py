"""Taking requests apart: bodies, parameters, durations. All errors name the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

import msgspec

from goq.api.route import FRAMES, JSON
from goq.errors import InvalidInput, TooLarge, UnsupportedMedia
from goq.http.message import Request
from goq.model import Receipt
from goq.units import format_duration_ms, parse_duration_ms

T = TypeVar("T")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def json_body(request: Request, shape: type[T]) -> T:
    """Return the body as ``shape``; an empty one counts as ``{}``.

    Raises ``InvalidInput`` with the path of the field at fault, ``UnsupportedMedia`` for a body
    that says it is something else.
    """
    content_type = media_type(request)
    if content_type not in (JSON, "", "application/x-www-form-urlencoded"):  # curl's default
        raise UnsupportedMedia(f"send {JSON}, not {content_type[:100]}", field="Content-Type")
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape)
    try:
        return cast(T, decoder.decode(request.body or b"{}"))
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        raise InvalidInput(_PATH.sub("", text), field=found[1] if found else None) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}", field="body") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the body is not UTF-8: byte {error.start} is {error.object[error.start]:#04x};"
            " send bytes as value_base64",
            field="body",
        ) from None


def media_type(request: Request) -> str:
    """Return the content type without its parameters, lower-case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wants_frames(request: Request) -> bool:
    """Whether the client accepts the fast form."""
    return FRAMES in request.headers.get("accept", "")


def duration_ms(value: str | float, field: str, maximum_ms: int) -> int:
    """Return a duration that may be at most ``maximum_ms``."""
    parsed_ms = parse_duration_ms(value, field=field)
    if parsed_ms > maximum_ms:
        raise InvalidInput(
            f"{value!r} is over the limit of {format_duration_ms(maximum_ms)}", field=field
        )
    return parsed_ms


def query_int(
    request: Request, name: str, default: int | None = None, *, maximum: int = 2**63 - 1
) -> int | None:
    """Return a query parameter as a number from 0 to ``maximum``."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        raise InvalidInput(f"{text[:50]!r} is not a number from 0 to {maximum}", field=name)
    return int(text)


def known_parameters(request: Request, *names: str) -> None:
    """Raise ``InvalidInput`` for a query parameter that the route does not have."""
    for name in request.query:
        if name not in names:
            raise InvalidInput(
                f"unknown parameter {name[:50]!r}; there are {', '.join(names) or 'none'}",
                field=name[:50],
            )


def receipts_of(texts: list[str], maximum: int) -> list[Receipt]:
    """Return receipts parsed; there may be none, but not more than ``maximum``."""
    if len(texts) > maximum:
        raise TooLarge(
            f"{len(texts)} receipts are over the limit of {maximum} a request", field="receipts"
        )
    return [Receipt.parse(text) for text in texts]
