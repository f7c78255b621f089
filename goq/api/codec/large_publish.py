"""Decoder of a large JSON publish, in slices of the event loop's time.

The JSON decoder takes a whole text and cannot be interrupted: 16 MiB of escapes take it 30 ms. So
an index of the body is made first, a window at a time: where its messages begin and end, and its
long texts. The messages are then decoded in pieces, and a long value in parts.

The index is only a proposal, because it takes the body for sound JSON. What decides is the decoder:
it gets the body without its messages, and each piece of messages as an array. Both are sound only
if the body is, as a text is an array if an empty array is put in place of its elements, and the
elements alone are one. So no other body is accepted, and no sound one is read differently.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from goq import limits
from goq.api.codec.request import decode_json
from goq.api.schemas.messages import NewMessage, Publish
from goq.clock import TimeSlice
from goq.errors import InvalidInput, TooLarge

LARGE_BYTES = 256 * limits.KIB
"""Bodies over this size are decoded in slices."""
_WINDOW_BYTES = 128 * limits.KIB
_PIECE_BYTES = 128 * limits.KIB
_LONG_TEXT_BYTES = 128 * limits.KIB
_MESSAGE_BYTES_MAX = 2 * limits.MIB  # beside its long value
_NAME_BYTES_MAX = 4 * limits.KIB  # of a field, with the blanks behind it
_OUTLINE_BYTES_MAX = 64 * limits.KIB  # of the body without its messages
_OUTLINE, _ELEMENT, _FIELD = 1, 2, 3  # depth: of messages and acks, of a message, of its fields
_QUOTE, _BACKSLASH = b'"\\'
_KINDS = np.zeros(256, np.int8)  # by byte: 1 opens, 2 closes, 3 separates
_KINDS[list(b"[{")] = 1
_KINDS[list(b"]}")] = 2
_KINDS[list(b",")] = 3
_DEPTH_CHANGE = np.array([0, 1, -1, 0], np.int64)
_ESCAPE_BYTES_MAX = 12  # of a pair of surrogates
_BYTE_NUMBER = re.compile(r"\(byte (\d+)\)$")
_PLACE = re.compile(r"messages\[(\d+)\]")
_Int64s = npt.NDArray[np.int64]


class LargePublish(NamedTuple):
    """A decoded publish, with its long values by the numbers of their messages."""

    publish: Publish
    long_values: dict[int, bytes]


class _LongText(NamedTuple):
    """A long text within its quotes; ``depth`` is that of what it stands in."""

    start: int
    end: int
    depth: int


class _Index(msgspec.Struct):
    """The places in a body, and the state at the end of the last window."""

    opened: int | None = None
    """The bracket before the messages."""
    closed: int | None = None
    separators: list[int] = msgspec.field(default_factory=list)
    long_texts: list[_LongText] = msgspec.field(default_factory=list)
    depth: int = 0
    is_in_text: bool = False
    is_escaped: bool = False
    quote: int = 0
    quote_depth: int = 0

    def add(self, body: bytes, start: int, end: int) -> None:
        """Read one more window. Raises ``TooLarge`` and ``InvalidInput``."""
        window = np.frombuffer(body, np.uint8, end - start, start)
        escapes = _escape_starts(window, is_escaped=self.is_escaped)
        escaped = np.zeros(len(window) + 1, bool)
        escaped[0] = self.is_escaped
        escaped[escapes + 1] = True
        self.is_escaped = bool(escaped[-1])
        quotes = np.flatnonzero(window == _QUOTE)
        quotes = quotes[~escaped[quotes]]
        kinds = _KINDS[window]
        marks = np.flatnonzero(kinds)
        outside = np.searchsorted(quotes, marks) % 2 == int(self.is_in_text)
        marks = marks[outside]
        depths = self.depth + np.cumsum(_DEPTH_CHANGE[kinds[marks]])
        self._note_messages(kinds[marks], marks + start, depths)
        self._note_texts(quotes, marks, depths, start)
        self.depth = int(depths[-1]) if len(depths) else self.depth
        self.is_in_text ^= bool(len(quotes) % 2)

    def _note_messages(self, kinds: npt.NDArray[np.int8], marks: _Int64s, depths: _Int64s) -> None:
        for opened in marks[(kinds == 1) & (depths == _ELEMENT)][:2].tolist():
            if self.opened is not None:
                raise InvalidInput("the body has one array, the messages", field="body")
            self.opened = opened
        if self.closed is None:
            closed = marks[(kinds == 2) & (depths == _OUTLINE)][:1].tolist()
            self.closed = closed[0] if closed else None
        self.separators += marks[(kinds == 3) & (depths == _ELEMENT)].tolist()
        if len(self.separators) >= limits.JSON_MESSAGES_PER_REQUEST_MAX:
            raise TooLarge(
                f"there are more than {limits.JSON_MESSAGES_PER_REQUEST_MAX} messages, the limit"
                " of a request",
                field="messages",
            )

    def _note_texts(self, quotes: _Int64s, marks: _Int64s, depths: _Int64s, start: int) -> None:
        """Note a long text that ends here, and the one that goes on behind the window.

        A text within one window is not long.
        """
        if not len(quotes):
            return
        if self.is_in_text:
            end = int(quotes[0]) + start
            if end - self.quote > _LONG_TEXT_BYTES:
                self.long_texts.append(_LongText(self.quote + 1, end, self.quote_depth))
        before = int(np.searchsorted(marks, quotes[-1]))
        self.quote = int(quotes[-1]) + start
        self.quote_depth = int(depths[before - 1]) if before else self.depth


async def decode_large_publish(body: bytes) -> LargePublish:
    """Return a JSON publish; a long value is empty in its message, and returned beside it.

    Raises ``InvalidInput`` with the path of the field at fault, and ``TooLarge``.
    """
    time_slice = TimeSlice()
    index = _Index()
    for start in range(0, len(body), _WINDOW_BYTES):
        index.add(body, start, min(start + _WINDOW_BYTES, len(body)))
        if time_slice.is_over:
            await time_slice.next()
    opened = len(body) if index.opened is None else index.opened + 1
    closed = len(body) if index.closed is None else index.closed
    if opened + len(body) - closed > _OUTLINE_BYTES_MAX:
        raise TooLarge(
            f"there are more than {_OUTLINE_BYTES_MAX} bytes beside the messages", field="body"
        )
    publish = decode_json(body[:opened] + body[closed:], Publish)
    long_values: dict[int, bytes] = {}
    if closed - opened <= _MESSAGE_BYTES_MAX and not body[opened:closed].strip():
        return LargePublish(publish, long_values)
    texts = iter(index.long_texts)
    text = next(texts, None)
    for first, start, end in _pieces(opened, closed, index.separators):
        parts, at = list[tuple[int, int]](), start
        found: tuple[str, _LongText] | None = None
        while text is not None and text.start < end:
            name = _name_of_value(body, text) if text.depth == _FIELD else None
            if name is not None:
                found = name, text
                parts.append((at, text.start))
                at = text.end
            text = next(texts, None)
        parts.append((at, end))
        messages = _decode_messages(body, parts, first)
        publish.messages += messages
        if found is not None and getattr(messages[0], found[0]) == "":
            long_values[first] = await _long_value(body, found[1], found[0], first, time_slice)
        if time_slice.is_over:
            await time_slice.next()
    return LargePublish(publish, long_values)


def _pieces(start: int, end: int, separators: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of whole messages: the number of the first, and the bounds of their bytes.

    A long message is a run of its own.
    """
    first, begin = 0, start
    for number, stop in enumerate([*separators, end], start=1):
        following = separators[number] if number < len(separators) else end
        if following - begin > _PIECE_BYTES or stop == end:
            yield first, begin, stop
            first, begin = number, stop + 1


def _decode_messages(body: bytes, parts: list[tuple[int, int]], first: int) -> list[NewMessage]:
    """Return the messages in parts of a body; ``first`` is the number of the first."""
    size_bytes = sum(end - start for start, end in parts)
    if size_bytes > _MESSAGE_BYTES_MAX:
        raise TooLarge(
            f"a message of {size_bytes} bytes beside its value is over the limit of"
            f" {_MESSAGE_BYTES_MAX}",
            field=f"messages[{first}]",
        )
    piece, begin = b"".join(body[start:end] for start, end in parts), parts[0][0]
    if not piece.strip():
        raise InvalidInput(f"the body is not JSON: no message (byte {begin})", field="body")
    try:
        return decode_json(b"[%s]" % piece, list[NewMessage], field="messages")
    except InvalidInput as error:
        detail = _BYTE_NUMBER.sub(lambda at: f"(byte {int(at[1]) + begin - 1})", error.detail)
        place = _PLACE.sub(lambda at: f"messages[{int(at[1]) + first}]", error.field or "", count=1)
        raise InvalidInput(detail, field="body" if place == "messages" else place) from None


def _name_of_value(body: bytes, text: _LongText) -> str | None:
    """Return the name of the field that has a text, None for one that is no value."""
    least = max(0, text.start - _NAME_BYTES_MAX)
    end = body.rfind(b'"', least, text.start - 1)
    start = body.rfind(b'"', least, max(least, end))
    try:
        name = msgspec.json.decode(body[start : end + 1], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return name if name in ("value", "value_base64") else None


async def _long_value(
    body: bytes, text: _LongText, name: str, number: int, time_slice: TimeSlice
) -> bytes:
    """Return the value that a long text stands for, decoded in parts."""
    parts: list[bytes] = []
    size_bytes, rest, place = 0, "", f"messages[{number}].{name}"
    at = text.start
    while at < text.end:
        end = _cut(body, at, text.end)
        part = decode_json(b'"%s"' % body[at:end], str, field=place)
        if name == "value_base64":
            rest += part
            whole = len(rest) if end == text.end else len(rest) // 4 * 4
            parts.append(_from_base64(rest[:whole], place, is_last=end == text.end))
            rest = rest[whole:]
        else:
            parts.append(part.encode())
        size_bytes += len(parts[-1])
        if size_bytes > limits.VALUE_BYTES_MAX:
            raise TooLarge(
                f"a value of {size_bytes} bytes or more is over the limit of"
                f" {limits.VALUE_BYTES_MAX}",
                field=f"messages[{number}].value",
            )
        at = end
        if time_slice.is_over:
            await time_slice.next()
    return b"".join(parts)


def _from_base64(text: str, place: str, *, is_last: bool) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"not base64: {error}", field=place) from None
    if not is_last and 4 * len(data) != 3 * len(text):
        raise InvalidInput("not base64: data after the padding", field=place)
    return data


def _cut(body: bytes, start: int, end: int) -> int:
    """Return where a part of a long text ends: not within a character, nor within an escape."""
    cut = start + _PIECE_BYTES
    if cut >= end:
        return end
    near = body.rfind(b"\\", cut - _ESCAPE_BYTES_MAX, cut)
    if near < 0:
        while cut > start and body[cut] & 0xC0 == 0x80:
            cut -= 1
        return cut
    window = np.frombuffer(body, np.uint8, cut - start, start)
    escapes = _escape_starts(window, is_escaped=False)[-4:].tolist()
    for escape in reversed(escapes):
        at = start + int(escape)
        is_low_surrogate = body[at + 1 : at + 2] == b"u" and body[at + 2 : at + 4].lower() in (
            b"dc",
            b"dd",
            b"de",
            b"df",
        )
        if not is_low_surrogate and at > start:
            return at
    return cut  # two low surrogates in a row: no sound text


def _escape_starts(window: npt.NDArray[np.uint8], *, is_escaped: bool) -> _Int64s:
    """Return the places of the backslashes that escape what follows.

    In a run of backslashes it is every second one, from the first or, if that ``is_escaped``
    itself, from the second.
    """
    found: _Int64s = np.flatnonzero(window == _BACKSLASH)
    if not len(found):
        return found
    firsts = np.flatnonzero(np.diff(found, prepend=-2) != 1)
    lengths = np.diff(firsts, append=len(found))
    index = np.arange(len(found)) - np.repeat(firsts, lengths)
    if is_escaped and found[0] == 0:
        index[: lengths[0]] += 1
    starts: _Int64s = found[index % 2 == 0]
    return starts
