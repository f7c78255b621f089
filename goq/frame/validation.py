"""Validation of frames from outside.

After :func:`check_frame` every accessor of a view is safe. Both CRCs match, sections fill the body
exactly, offsets rise from 0 to the length of their data, names are UTF-8, and every size is within
its limit. The work is a few vector operations per frame, whatever its count. Short columns, where
these cost more than they save, are checked in a loop.
"""

from __future__ import annotations

import itertools

import mmh3
import numpy as np

from goq import limits
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame, InvalidInput, TooLarge
from goq.frame.body import BytesColumn, Payload, apply_nulls
from goq.frame.checksum import crc32c
from goq.frame.encoder import NO_TENANT
from goq.frame.header import Attribute, FrameHeader
from goq.frame.one_value import value_of
from goq.frame.view import DELIVERY_COLUMNS, FrameView
from goq.units import format_duration_ms

_SHORT_COLUMN = 32
_SEQUENCE_MAX = 2**63 - 1


def check_body_crc(view: FrameView) -> None:
    """Raise ``InvalidFrame`` unless the body's bytes match their CRC32C."""
    if crc32c(view.body) != view.header.body_crc32c:
        raise InvalidFrame("the frame body's CRC32C does not match its bytes")


def check_frame(view: FrameView) -> None:
    """Raise ``InvalidFrame`` or ``TooLarge`` unless ``view`` is a sound frame of messages."""
    check_body_crc(view)
    header = view.header
    if header.first_sequence + header.message_count > _SEQUENCE_MAX:
        raise InvalidFrame(f"first_sequence {header.first_sequence} is over the maximum")
    value = value_of(view)
    if value is not None and len(value) <= limits.VALUE_BYTES_MAX:
        return
    if header.attributes & Attribute.EVENTS:
        raise InvalidFrame("a frame of events is not a frame of messages")
    if header.attributes & Attribute.COPY:
        raise InvalidFrame("only the node marks a frame as copies")
    if header.attributes & Attribute.REMOVED:
        raise InvalidFrame("only the node removes messages from a frame")
    if header.attributes & Attribute.KEY_NULLS and not header.attributes & Attribute.KEYS:
        raise InvalidFrame("a frame without keys cannot mark null keys")
    if bool(header.attributes & Attribute.KEYS) != bool(header.attributes & Attribute.KEY_HASH):
        raise InvalidFrame("a frame has both keys and key hashes, or neither")
    if header.left_out:
        raise InvalidFrame("only the node leaves messages out of a batch")
    try:
        payload = view.payload
    except (ValueError, IndexError) as error:
        raise InvalidFrame(f"the frame's sections contradict each other: {error}") from None
    _check_column(payload.values, limits.VALUE_BYTES_MAX, "value")
    if payload.keys is not None:
        _check_column(payload.keys, limits.KEY_BYTES_MAX, "key")
        _check_key_hashes(view, payload.keys, payload.key_validity)
    if payload.header_counts is not None:
        _check_headers(payload, payload.header_counts, header)
    _check_tenants(view)


def check_delivery(view: FrameView, settings: TopicSettings, now_ms: int) -> None:
    """Raise ``InvalidInput`` unless a topic allows the frame's delivery columns.

    The frame has passed :func:`check_frame`. A delivery time may exceed the topic's limit a little,
    because the producer knows the node's clock only approximately. A negative time is a duration.
    """
    if not view.header.attributes & DELIVERY_COLUMNS:
        return
    if view.header.attributes & Attribute.DEDUP_ID:
        limit_bytes = limits.FRAME_BYTES_MAX - limits.LEFT_OUT_BYTES_MAX
        if view.unpacked_bytes > limit_bytes:  # it must still fit with a record of duplicates
            raise TooLarge(
                f"a frame of {view.unpacked_bytes} bytes, uncompressed, is over the limit of"
                f" {limit_bytes} for one with dedup ids"
            )
    if (lanes := view.column(Attribute.LANE)) is not None:
        highest, lane_count = max(lanes), len(settings.lanes) or limits.LANES_MAX
        if highest >= lane_count:
            raise InvalidInput(f"there is no lane {highest}; there are 0 to {lane_count - 1}")
    if (names := view.tenants) is not None and not np.diff(np.asarray(names.offsets)).all():
        raise InvalidFrame("a tenant's name is empty")
    latest_ms = now_ms + settings.delay_max_ms + limits.CLOCK_SLACK_MS
    earliest_ms, furthest_ms = _bounds_ms(view, Attribute.DELIVER_AT, "a time to deliver at")
    if furthest_ms > latest_ms or -earliest_ms > settings.delay_max_ms:
        raise InvalidInput(
            "a message's delivery time is over the topic's delay.max, which is"
            f" {format_duration_ms(settings.delay_max_ms)}"
        )
    earliest_ms, _ = _bounds_ms(view, Attribute.EXPIRES_AT, "a time to expire at")
    if -earliest_ms > limits.TTL_MS_MAX:
        raise InvalidInput("a time to live is over its limit")


def _bounds_ms(view: FrameView, attribute: int, what: str) -> tuple[int, int]:
    """Return the earliest and the latest time of a column, 0 if the frame does not have it."""
    column = view.column(attribute)
    if column is None:
        return 0, 0
    times_ms = np.frombuffer(column, np.int64)
    earliest_ms, latest_ms = int(times_ms.min()), int(times_ms.max())
    if latest_ms > limits.TIME_MS_MAX:
        raise InvalidFrame(f"{what} is not from 1970 to 9999")
    return earliest_ms, latest_ms


def _check_headers(payload: Payload, counts: memoryview, header: FrameHeader) -> None:
    total = counts[header.message_count]
    _check_offsets(counts, total, limits.HEADERS_PER_MESSAGE_MAX, "header count")
    names = payload.header_names
    _check_column(names, limits.HEADER_NAME_BYTES_MAX, "header name")
    _check_column(payload.header_values, limits.HEADERS_BYTES_MAX, "header value")
    sizes = np.diff(np.frombuffer(names.offsets, np.int32))
    if len(sizes) and not sizes.all():
        raise InvalidFrame("a header's name is empty")
    _check_text(names, "a header's name")
    bounds = np.frombuffer(counts, np.int32)
    name_ends = np.frombuffer(names.offsets, np.int32)[bounds]
    value_ends = np.frombuffer(payload.header_values.offsets, np.int32)[bounds]
    if int(np.diff(name_ends + value_ends).max()) > limits.HEADERS_BYTES_MAX:
        raise TooLarge(
            f"a message's headers are over the limit of {limits.HEADERS_BYTES_MAX} bytes"
        )


def _check_key_hashes(view: FrameView, entries: BytesColumn, validity: memoryview | None) -> None:
    """Raise ``InvalidFrame`` unless each message has the hash of its key, and 0 without a key.

    The hash decides which consumer gets the key's messages, and finds them by key.
    """
    keys = entries.slice(0, view.header.message_count)
    if validity is not None:
        keys = [key or b"" for key in apply_nulls(keys, validity, 0)]
    both_halves = np.frombuffer(b"".join(map(mmh3.mmh3_x64_128_digest, keys)), np.uint64)
    column = view.column(Attribute.KEY_HASH)
    assert column is not None
    if (both_halves[::2] != np.frombuffer(column, np.uint64)).any():
        raise InvalidFrame("a key hash is not the hash of its key")


def _check_text(column: BytesColumn, what: str) -> None:
    """Raise ``InvalidFrame`` unless every entry is UTF-8.

    It holds if all the data is UTF-8 and no entry begins inside a character.
    """
    data = bytes(column.data)
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidFrame(f"{what} is not UTF-8") from None
    starts = np.frombuffer(column.offsets, np.int32)
    starts = starts[starts < len(data)]
    if ((np.frombuffer(data, np.uint8)[starts] & 0xC0) == 0x80).any():
        raise InvalidFrame(f"{what} is not UTF-8")


def _check_tenants(view: FrameView) -> None:
    column, dictionary = view.column(Attribute.TENANT), view.tenants
    if column is None or dictionary is None:
        return
    _check_column(dictionary, limits.TENANT_NAME_BYTES_MAX, "tenant name")
    _check_text(dictionary, "a tenant's name")
    numbers = np.frombuffer(column, np.uint16)
    known = (numbers < len(dictionary.offsets) - 1) | (numbers == NO_TENANT)
    if not known.all():
        raise InvalidFrame("a tenant's number is not in the frame's dictionary")


def _check_column(column: BytesColumn, size_bytes_max: int, what: str) -> None:
    _check_offsets(column.offsets, len(column.data), size_bytes_max, what)


def _check_offsets(offsets: memoryview, total: int, step_max: int, what: str) -> None:
    if offsets[0] != 0 or offsets[-1] != total:
        raise InvalidFrame(f"the {what} offsets do not span their data")
    if len(offsets) <= _SHORT_COLUMN:
        steps = [b - a for a, b in itertools.pairwise(offsets)]
        lowest, highest = min(steps, default=0), max(steps, default=0)
    else:
        diffs = np.diff(np.frombuffer(offsets, np.int32).astype(np.int64))
        lowest, highest = int(diffs.min()), int(diffs.max())
    if lowest < 0:
        raise InvalidFrame(f"the {what} offsets do not rise")
    if highest > step_max:
        raise TooLarge(f"a {what} of {highest} is over the limit of {step_max}")
