"""The query protocol of SDKs before 2024: a form as request, XML as answer.

A form has lists and maps as numbered fields, ``Attribute.1.Name=…``. They become the input that the
operation has in the JSON protocol, and its output becomes XML. Only POST is answered: a page of
another site can make a browser send a GET without telling its origin.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from goq.http.message import Request, Response
from goq.http.request.request_target import is_well_escaped
from goq.sqs.protocol.errors import SqsError, invalid_parameter

CONTENT_TYPE: Final = "application/x-www-form-urlencoded"
_XML: Final = "text/xml"
_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
_FIELDS_MAX: Final = 5_000  # ten messages with ten attributes have 400
_LONG_CHARS: Final = 1_000
_DEPTH_MAX: Final = 8
_NUMBERS_MAX: Final = 1_000
_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}
_MAPS: Final = {
    "Attribute": ("Attributes", "Name"),
    "Tag": ("Tags", "Key"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
}
_ENTRY: Final = "RequestEntry"
_LIST_ELEMENTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
}
_MAP_ELEMENTS: Final = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
}
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"}  # "&" first
UNFIT: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that XML 1.0 does not have."""
_REPLACED: Final = {
    each: "\ufffd" for each in (*map(chr, range(0x20)), "\ufffe", "\uffff") if UNFIT.match(each)
}
_ILL_ESCAPED: Final = "a '%' without two hexadecimal digits"
Tree = dict[str, Any]


class QueryExchange:
    """One request in this protocol, and its answer.

    A form that cannot be read has no operation; :meth:`decode_input` raises why.
    """

    def __init__(self, request: Request) -> None:
        self._path = request.path
        self._error: SqsError | None = None
        self._tree: Tree = {}
        try:
            self._tree = _parsed(request.body)
        except SqsError as error:
            self._error = error
        action = self._tree.pop("Action", "")
        self.operation = action if isinstance(action, str) else ""

    def decode_input(self, shape: type[Any]) -> Any:
        """Return the input of the operation. Raises ``SqsError``."""
        if self._error is not None:
            raise self._error
        found = _input(self._tree)
        if self._path.strip("/"):
            found.setdefault("QueueUrl", self._path)
        try:
            return msgspec.convert(found, shape, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_parameter(f"The request is invalid: {error}") from None

    @staticmethod
    def readable(text: str) -> str:
        """Return a text as XML 1.0 has it; characters that it does not have become U+FFFD."""
        return _replaced(text, _REPLACED)

    def encode_part(self, part: Tree) -> bytes:
        """Return a member of a list of an output as it stands in the answer."""
        parts: list[str | bytes] = []
        _write(parts, part, self.operation)
        return _joined(parts)

    def encode_output(self, output: Any, request_id: str) -> Response:
        """Return the answer."""
        name = self.operation
        parts: list[str | bytes] = [f'<?xml version="1.0"?><{name}Response xmlns="{_NAMESPACE}">']
        if output is not None:
            parts.append(f"<{name}Result>")
            _write(parts, output, name)
            parts.append(f"</{name}Result>")
        parts.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>")
        parts.append(f"</{name}Response>")
        return Response(200, _joined(parts), _XML, {"x-amzn-RequestId": request_id})

    def encode_error(self, error: SqsError, request_id: str) -> Response:
        """Return the answer of an operation that failed."""
        fault = "Sender" if error.is_of_sender else "Receiver"
        text = (
            f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type>'
            f"<Code>{error.query_code}</Code><Message>{_escaped(error.message)}</Message><Detail/>"
            f"</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        headers = {"x-amzn-RequestId": request_id}
        return Response(error.status, text.encode(), _XML, headers)


def _parsed(body: bytes) -> Tree:
    """Return the fields of a form as a tree. Raises ``SqsError``."""
    try:
        pieces = body.decode("ascii").split("&", _FIELDS_MAX)
        if len(pieces) > _FIELDS_MAX:
            raise ValueError(f"more than {_FIELDS_MAX} fields")
        pairs = [
            (_unescaped(name), _unescaped(value))
            for name, _, value in (piece.partition("=") for piece in pieces if piece)
        ]
    except ValueError as error:
        raise SqsError("MalformedQueryString", f"The form cannot be read: {error}") from None
    tree: Tree = {}
    for name, value in pairs:
        steps = name.split(".", _DEPTH_MAX)
        place = tree
        for step in steps[:-1]:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SqsError("MalformedQueryString", f"{name[:100]} contradicts another field.")
            place = inner
        if steps[-1] in place:
            raise SqsError("MalformedQueryString", f"{name[:100]} is in the form twice.")
        place[steps[-1]] = value
    return tree


def _unescaped(text: str) -> str:
    """Return what a name or a value stands for. Raises ``ValueError``.

    Most of a body of 4 MiB may be escapes, of which the library would decode 200 a millisecond.
    """
    text = text.replace("+", " ")
    if "%" not in text:
        return text
    if len(text) < _LONG_CHARS:
        if not is_well_escaped(text):
            raise ValueError(_ILL_ESCAPED)
        return unquote(text, errors="strict")
    # Quoted-printable has "=" for "%". It would take an escaped end of line for none, and it keeps
    # what is no escape: then fewer characters are gone.
    escaped = text.encode("ascii").replace(b"=", b"=3D").replace(b"%", b"=")
    decoded = binascii.a2b_qp(escaped)
    if (
        len(decoded) != len(escaped) - 2 * escaped.count(b"=")
        or b"=\n" in escaped
        or b"=\r" in escaped
    ):
        raise ValueError(_ILL_ESCAPED)
    return decoded.decode()


def _input(tree: Tree) -> Tree:
    """Return the input as the JSON protocol has it.

    A single member may have no number, ``AttributeName=All``, as in examples of AWS.
    """
    found: Tree = {}
    for name, value in tree.items():
        if name in _LISTS:
            found[_LISTS[name]] = _numbered(value) if isinstance(value, dict) else [value]
        elif name in _MAPS:
            target, key = _MAPS[name]
            is_single = not isinstance(value, dict) or key in value
            found[target] = _map([value] if is_single else _numbered(value), key)
        elif not isinstance(value, dict):
            found[name] = value
        elif name.endswith(_ENTRY):
            entries = _numbered(value)
            found["Entries"] = [_input(e) if isinstance(e, dict) else e for e in entries]
        else:
            found[name] = value
    return found


def _numbered(tree: Tree) -> list[Any]:
    """Return values by their numbers. Raises ``SqsError``."""
    for number in tree:
        if not (number.isascii() and number.isdigit() and len(number) < 6):
            raise invalid_parameter(f"{number[:50]!r} is not the number of a list member.")
    if len(tree) > _NUMBERS_MAX:
        raise invalid_parameter(f"A list has more than {_NUMBERS_MAX} members.")
    return [tree[number] for number in sorted(tree, key=int)]


def _map(pairs: list[Any], key: str) -> Tree:
    found: Tree = {}
    for pair in pairs:
        if not isinstance(pair, dict) or not isinstance(pair.get(key), str):
            raise invalid_parameter(f"A member of a map has no {key}.")
        found[pair[key]] = pair.get("Value", "")
    return found


def _joined(parts: list[str | bytes]) -> bytes:
    """Return the parts of an answer in one; bytes are encoded already."""
    return b"".join([part if isinstance(part, bytes) else part.encode() for part in parts])


def _write(parts: list[str | bytes], output: Tree, operation: str) -> None:
    """Write the members of an output as elements."""
    for name, value in output.items():
        if isinstance(value, list):
            element = _LIST_ELEMENTS.get(name, f"{operation}ResultEntry")
            for each in value:
                if isinstance(each, bytes):  # by encode_part
                    parts += [f"<{element}>", each, f"</{element}>"]
                else:
                    _write_element(parts, element, each, operation)
        elif isinstance(value, dict) and name in _MAP_ELEMENTS:
            element, key = _MAP_ELEMENTS[name]
            for inner, content in value.items():
                _write_element(parts, element, {key: inner, "Value": content}, operation)
        else:
            _write_element(parts, name, value, operation)


def _write_element(parts: list[str | bytes], name: str, value: Any, operation: str) -> None:
    parts.append(f"<{name}>")
    if isinstance(value, dict):
        _write(parts, value, operation)
    elif isinstance(value, bytes):
        parts.append(base64.b64encode(value).decode())
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    else:
        parts.append(_escaped(str(value)))
    parts.append(f"</{name}>")


def _escaped(text: str) -> str:
    """Return a text for XML 1.0; characters that it does not have become U+FFFD."""
    return _replaced(QueryExchange.readable(text), _ESCAPES)


def _replaced(text: str, by_character: dict[str, str]) -> str:
    """Return a text with characters replaced, by the C library: an answer has up to 10 MiB."""
    for character, replacement in by_character.items():
        text = text.replace(character, replacement)
    return text
