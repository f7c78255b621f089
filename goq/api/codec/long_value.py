"""The JSON text of a long value, made in steps.

The JSON encoder takes a whole value and cannot be interrupted: 8 MiB of control characters become
48 MiB of text, which takes over 100 ms. So a long value stands in its message as a ``LongValue``,
which the encoder refuses. Its text is made a part at a time, and sent without being joined.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, cast

import msgspec
from msgspec import UNSET

from goq import limits
from goq.api.schemas.messages import MessageOut
from goq.clock import TimeSlice

LONG_BYTES: Final = 128 * limits.KIB
"""Values over this size are encoded in parts."""
_PART_BYTES = 96 * limits.KIB  # a multiple of 3, so that parts in base64 have no padding between
_TAIL_BYTES_MAX = 3  # of a character in UTF-8, behind its first byte
_encoder = msgspec.json.Encoder()


class LongValue:
    """A long value of a message. After :meth:`steps`, ``field`` and ``parts`` are its JSON."""

    __slots__ = ("_data", "field", "parts")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.field = ""
        """``value`` for text, ``value_base64`` for other bytes."""
        self.parts: list[bytes] = []
        """The text without its quotes."""

    @classmethod
    def in_place_of(cls, data: bytes) -> str:
        """Return a long value as what the field of a message is declared to hold."""
        return cast(str, cls(data))

    @classmethod
    def of(cls, out: MessageOut) -> LongValue | None:
        """Return the long value of a message, None if it has none."""
        value: object = out.value
        return value if isinstance(value, cls) else None

    def steps(self) -> Iterator[None]:
        """Encode the value, one part a step."""
        self.parts.clear()
        self.field = "value"
        try:
            for part in self._text_parts():
                self.parts.append(_encoder.encode(part)[1:-1])
                yield
        except UnicodeDecodeError:
            self.parts.clear()
            self.field = "value_base64"
            for start in range(0, len(self._data), _PART_BYTES):
                self.parts.append(base64.b64encode(self._data[start : start + _PART_BYTES]))
                yield

    def _text_parts(self) -> Iterator[str]:
        data, start = self._data, 0
        while start < len(data):
            end = min(start + _PART_BYTES, len(data))
            if end < len(data):
                least = end - _TAIL_BYTES_MAX
                while end > least and data[end] & 0xC0 == 0x80:
                    end -= 1
            yield data[start:end].decode()
            start = end


async def encode_long_value(out: MessageOut, time_slice: TimeSlice) -> None:
    """Make the text of a message's value if it is long."""
    long_value = LongValue.of(out)
    if long_value is not None:
        for _ in long_value.steps():
            if time_slice.is_over:
                await time_slice.next()


def message_parts(out: MessageOut) -> list[bytes]:
    """Return a message as JSON, in one part unless its value is long."""
    long_value = LongValue.of(out)
    if long_value is None:
        return [_encoder.encode(out)]
    if not long_value.field:
        for _ in long_value.steps():
            pass
    # No field before the value can have its name: the first place is that of the value.
    named = {"value": UNSET, "value_base64": UNSET, long_value.field: ""}
    head, tail = _encoder.encode(msgspec.structs.replace(out, **named)).split(
        b'"%b":""' % long_value.field.encode(), 1
    )
    return [b'%b"%b":"' % (head, long_value.field.encode()), *long_value.parts, b'"' + tail]
