r"""How messages are printed: ``%v\n``, raw, or JSON."""

from __future__ import annotations

import base64
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from goq.errors import UsageError
from goq.model import UNTERMINATED_HEADER, Header
from goq.units import format_time_us
from goq_cli.output.text import escaped_json, shown_bytes

if TYPE_CHECKING:
    from goq.client import LogMessage, ReceivedMessage

    AnyMessage = LogMessage | ReceivedMessage

DEFAULT_FORMAT = r"%v\n"
_FLUSH_BYTES = 64 * 1024
_FLUSH_S = 0.05
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Writer(Protocol):
    """A writer of messages to stdout."""

    written_bytes: int
    """How many bytes were written out."""
    printed_bytes: int
    """How many bytes were written out or are buffered."""

    def write(self, message: AnyMessage) -> bool:
        """Print a message, possibly buffered; return whether nothing is buffered."""
        ...

    def flush(self) -> None:
        """Write out everything that is buffered."""
        ...


class BytesWriter:
    """Prints each message as the bytes that ``form`` returns for it."""

    def __init__(self, form: Callable[[AnyMessage], bytes]) -> None:
        self._form = form
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._flushed_s = 0.0
        self.written_bytes = self.printed_bytes = 0
        sys.stdout.flush()

    def write(self, message: AnyMessage) -> bool:
        """Print a message; messages in quick succession are written together."""
        part = self._form(message)
        self._parts.append(part)
        self._size_bytes += len(part)
        self.printed_bytes += len(part)
        if self._size_bytes >= _FLUSH_BYTES or time.monotonic() - self._flushed_s > _FLUSH_S:
            self.flush()
            return True
        return False

    def flush(self) -> None:
        """Write out everything that is buffered; the rest stays after an error."""
        rest = b"".join(self._parts)
        self._parts = [rest]
        while rest:
            count = os.write(sys.stdout.fileno(), rest)
            self.written_bytes += count
            rest = rest[count:]
            self._parts = [rest]
        self._size_bytes = 0
        self._flushed_s = time.monotonic()


def make_writer(form: str, raw: bool, delimiter: bytes) -> Writer:
    """Return the writer for the options; raise ``UsageError`` for an invalid format."""
    from goq_cli.session import SESSION

    is_terminal = sys.stdout.isatty()
    if SESSION.json:
        return BytesWriter(_escaped_json_line if is_terminal else json_line)
    if raw:
        return BytesWriter(_raw(delimiter))
    return BytesWriter(compile_format(form, _printable if is_terminal else bytes))


def _raw(delimiter: bytes) -> Callable[[AnyMessage], bytes]:
    """Return the formatter of values, each with the delimiter behind it.

    The end of an input that had no final newline gets none either, so that files come out as they
    went in; what follows is parted from it. Records that end with NUL always do.
    """
    before = b""  # the delimiter that the last message was printed without

    def form(message: AnyMessage) -> bytes:
        nonlocal before
        value = before + (message.value or b"")
        if message.headers and any(name == UNTERMINATED_HEADER for name, _ in message.headers):
            before = delimiter
            return value
        before = b""
        return value + delimiter

    return (lambda message: (message.value or b"") + delimiter) if delimiter == b"\0" else form


def compile_format(
    form: str, shown: Callable[[bytes], bytes] = bytes
) -> Callable[[AnyMessage], bytes]:
    r"""Return a formatter for ``form``: ``%`` letters and ``\`` escapes."""
    fields: dict[str, Callable[[Any], bytes]] = {
        "t": lambda m: m.topic.encode(),
        "p": lambda m: b"%d" % m.partition,
        "o": lambda m: b"%d" % m.offset,
        "k": lambda m: shown(m.key or b""),
        "v": lambda m: shown(m.value or b""),
        "h": lambda m: shown(_headers_text(m.headers)),
        "T": lambda m: format_time_us(m.timestamp).encode(),
        "i": lambda m: str(m.id).encode(),
        "a": lambda m: b"%d" % getattr(m, "attempt", 0),
        "x": lambda m: (m.value or b"").hex().encode(),
        "S": lambda m: b"%d" % len(m.value or b""),
        "j": lambda m: (json_line(m) if shown is bytes else _escaped_json_line(m))[:-1],
        "%": lambda _m: b"%",
    }
    pieces: list[Callable[[Any], bytes]] = []
    # A header's name may have any character: it is taken out before letters are looked at.
    for part in re.split(r"((?<!%)(?:%%)*%h\{[^}]*\})", form):
        if match := re.fullmatch(r"((?:%%)*)%h\{([^}]*)\}", part):
            pieces += [_literal(b"%" * (len(match[1]) // 2)), _header_value(match[2], shown)]
        else:
            pieces += _pieces(part, fields)
    return lambda message: b"".join([piece(message) for piece in pieces])


def _pieces(
    form: str, fields: Mapping[str, Callable[[Any], bytes]]
) -> Iterator[Callable[[Any], bytes]]:
    """Yield the pieces of a format without names of headers; raise ``UsageError``."""
    characters = iter(form)
    for character in characters:
        if character not in "%\\":
            yield _literal(character.encode())
            continue
        known = fields if character == "%" else {k: _literal(v) for k, v in _ESCAPES.items()}
        letter = next(characters, "")
        if letter not in known:
            raise UsageError(
                f"--format: {character}{letter} means nothing; there are"
                f" {' '.join(character + k for k in known)}"
            )
        yield known[letter]


def _header_value(name: str, shown: Callable[[bytes], bytes]) -> Callable[[Any], bytes]:
    """Return the values of a header, in their order, with commas."""
    return lambda m: shown(b",".join(value for each, value in m.headers if each == name))


def _literal(text: bytes) -> Callable[[Any], bytes]:
    return lambda _message: text


def _headers_text(headers: Sequence[Header]) -> bytes:
    return b",".join(name.encode() + b"=" + value for name, value in headers)


def _printable(data: bytes) -> bytes:
    """Escape control characters, which a terminal would obey; return binary data as hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return shown_bytes(data).encode()
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    ).encode()


def json_line(message: AnyMessage) -> bytes:
    """Return a message as one line of JSON."""
    import msgspec

    return msgspec.json.encode(message_fields(message)) + b"\n"


def _escaped_json_line(message: AnyMessage) -> bytes:
    return escaped_json(json_line(message)[:-1].decode()).encode() + b"\n"


def message_fields(message: AnyMessage) -> dict[str, object]:
    """Return the fields of a message for JSON; bytes that are not UTF-8 are base64."""
    fields: dict[str, object] = {
        "id": str(message.id),
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": format_time_us(message.timestamp),
    }
    if (attempt := getattr(message, "attempt", None)) is not None:
        fields["attempt"] = attempt
    fields["priority"] = message.priority
    if message.tenant is not None:
        fields["tenant"] = message.tenant
    if message.deliver_at is not None:
        fields["deliver_at"] = format_time_us(message.deliver_at)
    if message.expires_at is not None:
        fields["expires_at"] = format_time_us(message.expires_at)
    _put(fields, "key", message.key)
    _put(fields, "value", message.value)
    if message.headers:
        fields["headers"] = [_header(name, value) for name, value in message.headers]
    return fields


def _put(fields: dict[str, object], name: str, data: bytes | None) -> None:
    try:
        fields[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data or b"").decode()


def _header(name: str, value: bytes) -> dict[str, object]:
    fields: dict[str, object] = {"name": name}
    _put(fields, "value", value)
    return fields
