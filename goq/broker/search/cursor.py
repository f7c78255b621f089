"""The cursor of a search: for each partition with more messages, the offset to continue before.

Its text form is URL-safe base64 of varints: for each partition the distance to the previous
partition, and the offset.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping

from goq import limits
from goq.errors import InvalidInput

_OFFSET_MAX = 2**63 - 1


def write_cursor(bounds: Mapping[int, int]) -> str:
    """Return the text of a cursor: partitions, and the offset before which each continues."""
    numbers: list[int] = []
    before = 0
    for partition in sorted(bounds):
        numbers += partition - before, bounds[partition]
        before = partition
    return base64.urlsafe_b64encode(_varints(numbers)).rstrip(b"=").decode()


def read_cursor(text: str) -> dict[int, int]:
    """Return the offsets by partition. Raises ``InvalidInput`` unless the text is a cursor."""
    try:
        padded = text + "=" * (-len(text) % 4)
        data = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        numbers = list(_numbers(data))
    except (binascii.Error, ValueError):
        raise _invalid_cursor(text) from None
    bounds: dict[int, int] = {}
    partition = 0
    for distance, bound in zip(numbers[::2], numbers[1::2], strict=False):
        partition += distance
        bounds[partition] = bound
    is_canonical = not len(numbers) % 2 and numbers and write_cursor(bounds) == text
    if not is_canonical or partition >= limits.PARTITIONS_PER_TOPIC_MAX:
        raise _invalid_cursor(text)
    return bounds


def _invalid_cursor(text: str) -> InvalidInput:
    return InvalidInput(
        f"{text[:50]!r} is not a cursor; send the next of an answer unchanged", field="cursor"
    )


def _varints(numbers: Iterable[int]) -> bytes:
    data = bytearray()
    for number in numbers:
        while number >= 0x80:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return bytes(data)


def _numbers(data: bytes) -> Iterable[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        if number > _OFFSET_MAX:
            raise ValueError("too large a number")
        yield number
        number = shift = 0
    if shift:
        raise ValueError("a number is cut off")
