"""The target of a request: its path and its query, decoded."""

from __future__ import annotations

from string import hexdigits
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from goq.errors import BadHttp, InvalidInput

QUERY_FIELDS_MAX: Final = 100
_HEX: Final = frozenset(hexdigits)


def parse_target(target: bytes) -> tuple[str, str]:
    """Split a request target into its decoded path and its query string, still encoded.

    Takes the origin form (``/a?b``), the absolute form (``http://host/a?b``) and ``*``. Raises
    ``BadHttp`` when the path is not percent-encoded UTF-8 or the target has a fragment.
    """
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        raise BadHttp("the request target has bytes that are not ASCII; percent-encode") from None
    if "#" in text:
        raise BadHttp("the request target has a fragment; send what comes before '#'")
    if text[:1] != "/" and text != "*":
        text = _origin_form(text)
    path, _, query = text.partition("?")
    if "%" in path:
        path = _decoded(path)
    return path, query


def _origin_form(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadHttp("the request target is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadHttp("the request target is neither a path nor an http URL")
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _decoded(path: str) -> str:
    if not is_well_escaped(path):
        raise BadHttp("the path has a '%' that two hexadecimal digits do not follow")
    try:
        return unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise BadHttp("the path is not percent-encoded UTF-8") from None


def parse_query(query: str) -> dict[str, str]:
    """Decode a query string; a parameter without ``=`` has the empty value.

    Raises ``InvalidInput`` when a parameter is repeated, the encoding is wrong, or there are more
    than ``QUERY_FIELDS_MAX`` parameters.
    """
    if not query:
        return {}
    if not is_well_escaped(query):
        raise InvalidInput("the query has a '%' that two hexadecimal digits do not follow")
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except UnicodeDecodeError:
        raise InvalidInput("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidInput(
            f"the query has more than {QUERY_FIELDS_MAX} parameters; send fewer"
        ) from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidInput(f"the query has {name!r} more than once; send it once", field=name)
        fields[name] = value
    return fields


def is_well_escaped(text: str) -> bool:
    """Whether two hexadecimal digits follow each ``%``."""
    if "%" not in text:
        return True
    return all(
        len(piece) >= 2 and piece[0] in _HEX and piece[1] in _HEX for piece in text.split("%")[1:]
    )
