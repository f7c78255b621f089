"""A frame read in place.

A view parses the fixed columns and the payload's sections on first use, and returns slices of the
original bytes. It trusts lengths only as far as the buffer reaches. A frame from outside goes
through :mod:`goq.frame.validation` first. A frame from the log has passed its CRC.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from goq import limits
from goq.errors import InvalidFrame, TooLarge
from goq.frame.body import (
    BytesColumn,
    Payload,
    SectionReader,
    apply_nulls,
    decompress,
    read_left_out,
    read_removed_rows,
)
from goq.frame.encoder import (
    NO_DEDUP_ID,
    NO_PRODUCER,
    NO_TENANT,
    Columns,
    DuplicateRow,
    ProducerMark,
    header_of,
)
from goq.frame.header import (
    HEADER_BYTES,
    Attribute,
    FrameHeader,
    padding_bytes,
    parse_header,
)
from goq.model import Header, Message

if TYPE_CHECKING:
    from goq.frame.body import RemovedRows

T = TypeVar("T")
DELIVERY_COLUMNS: Final = (
    Attribute.DELIVER_AT
    | Attribute.EXPIRES_AT
    | Attribute.DEDUP_ID
    | Attribute.TENANT
    | Attribute.LANE
)
"""The columns that decide when, in which order, and whether a message is delivered."""
_WIDTH_BYTES = {
    Attribute.DELIVER_AT: 8,
    Attribute.EXPIRES_AT: 8,
    Attribute.CLIENT_TIME: 8,
    Attribute.KEY_HASH: 8,
    Attribute.DEDUP_ID: 16,
}


class _lazy(Generic[T]):
    """A property that is computed once: ``cached_property`` without its lock."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__

    def __get__(self, instance: Any, owner: type[Any]) -> T:
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class FrameView:
    """One frame over a buffer; its message ``i`` has the offset ``base_offset + i``."""

    __slots__ = ("__dict__", "buffer", "header")

    def __init__(self, header: FrameHeader, buffer: memoryview) -> None:
        self.header = header
        self.buffer = buffer

    @classmethod
    def parse(cls, buffer: bytes | memoryview, position: int = 0) -> FrameView:
        """Return the frame at ``position``; checks its header, not its body."""
        header = parse_header(buffer, position)
        end = position + header.frame_bytes
        if end > len(buffer):
            raise InvalidFrame(
                f"a frame of {header.frame_bytes} bytes is cut off after {len(buffer) - position}"
            )
        return cls(header, memoryview(buffer)[position:end])

    @classmethod
    def assemble(
        cls,
        body: Sequence[bytes],
        *,
        count: int,
        attributes: int,
        producer: ProducerMark = NO_PRODUCER,
    ) -> FrameView:
        """Return a new frame with the parts of ``body``, together a multiple of 8 bytes."""
        header = header_of(body, count=count, attributes=attributes, producer=producer)
        return cls(header, memoryview(b"".join((header.pack(), *body))))

    @property
    def body(self) -> memoryview:
        """All bytes after the header."""
        return self.buffer[HEADER_BYTES:]

    @_lazy
    def _sections(self) -> tuple[dict[int, memoryview], BytesColumn | None, memoryview]:
        """The fixed columns, the tenant dictionary, and the payload as stored.

        Also sets the duplicates left out of the batch, and the removed rows.
        """
        header, cursor = self.header, SectionReader(self.body)
        count, removed = header.message_count, None
        if header.attributes & Attribute.REMOVED:
            removed = self._removed_rows = read_removed_rows(cursor, count)
            count = removed.kept_count
        columns: dict[int, memoryview] = {}
        for attribute, width_bytes in _WIDTH_BYTES.items():
            if header.attributes & attribute:
                has_all = attribute == Attribute.DEDUP_ID
                columns[attribute] = cursor.take(
                    width_bytes * (header.message_count if has_all else count)
                )
        tenants: BytesColumn | None = None
        if header.attributes & Attribute.TENANT:
            columns[Attribute.TENANT] = cursor.take(2 * count)
            names = int.from_bytes(cursor.take(8), "little")
            if names > limits.TENANTS_PER_FRAME_MAX:
                raise InvalidFrame(f"a frame cannot name {names} tenants")
            tenants = cursor.take_bytes_column(names)
        if header.attributes & Attribute.LANE:
            columns[Attribute.LANE] = cursor.take(count)
        if removed is not None:
            columns = _expand(columns, removed)
        self._left_out = read_left_out(cursor, header.left_out)
        lengths = cursor.take(8)
        stored = cursor.take(int.from_bytes(lengths[4:], "little"))
        if not cursor.done():
            raise InvalidFrame("the body has bytes after its payload")
        self.raw_bytes = int.from_bytes(lengths[:4], "little")
        return columns, tenants, stored

    @_lazy
    def payload(self) -> Payload:
        """The sections of the payload, expanded to all rows."""
        return Payload(self.raw_payload, self.header, self.removed_rows)

    @property
    def raw_payload(self) -> memoryview:
        """The payload, decompressed if needed; uncompressed it is within the limit of a frame."""
        stored = self._sections[2]
        if self.unpacked_bytes > limits.FRAME_BYTES_MAX:
            raise TooLarge(
                f"a frame of {self.unpacked_bytes} bytes, uncompressed, is over the limit of"
                f" {limits.FRAME_BYTES_MAX}"
            )
        if self.header.attributes & Attribute.ZSTD:
            stored = memoryview(decompress(stored, self.raw_bytes))
        if len(stored) != self.raw_bytes:
            raise InvalidFrame(
                f"the payload has {len(stored)} bytes where {self.raw_bytes} are declared"
            )
        return stored

    @property
    def fixed_sections(self) -> memoryview:
        """The body before the payload and its lengths: all columns that are never compressed."""
        stored_bytes = len(self._sections[2])
        return self.body[: -(8 + stored_bytes + padding_bytes(stored_bytes))]

    @property
    def unpacked_bytes(self) -> int:
        """Length of the frame with its payload uncompressed."""
        stored_bytes = len(self._sections[2])
        return (
            self.header.frame_bytes - (stored_bytes + padding_bytes(stored_bytes)) + self.raw_bytes
        )

    @property
    def tenants(self) -> BytesColumn | None:
        """The dictionary that tenant numbers index, None if the frame has no tenants."""
        return self._sections[1]

    @property
    def tenant_names(self) -> list[str]:
        """The names in that dictionary."""
        return [name.decode() for name in self.encoded_tenant_names]

    @_lazy
    def encoded_tenant_names(self) -> list[bytes]:
        """The same, as they are stored; computed once."""
        dictionary = self.tenants
        return [] if dictionary is None else dictionary.slice(0, len(dictionary.offsets) - 1)

    @property
    def left_out(self) -> Sequence[DuplicateRow]:
        """The duplicates that were left out of the producer's batch."""
        if not self.header.left_out:
            return ()
        _ = self._sections
        return self._left_out

    @property
    def removed_rows(self) -> RemovedRows | None:
        """The rows that compaction removed; None for a complete frame."""
        if not self.header.attributes & Attribute.REMOVED:
            return None
        _ = self._sections
        return self._removed_rows

    def kept(self, start: int, end: int) -> Sequence[bool]:
        """Return for each message from ``start`` up to ``end`` whether it is kept."""
        removed = self.removed_rows
        return [True] * (end - start) if removed is None else removed.kept(start, end)

    def column(self, attribute: int) -> memoryview | None:
        """Return a fixed column's raw bytes, or None if the frame does not have it."""
        return self._sections[0].get(attribute)

    def leading_column(self, attribute: int) -> memoryview | None:
        """Return a column of times, key hashes or dedup ids, without parsing the body.

        Only where rows were removed the body is parsed: their bitmap comes first, and the columns
        after it lack them.
        """
        header, start = self.header, HEADER_BYTES
        if header.attributes & Attribute.REMOVED:
            return self.column(attribute)
        for known, width_bytes in _WIDTH_BYTES.items():
            if header.attributes & known:
                end = start + width_bytes * header.message_count
                if known == attribute:
                    if end > len(self.buffer):
                        raise InvalidFrame(f"a column passes the end of {len(self.buffer)} bytes")
                    return self.buffer[start:end]
                start = end
        return None

    def values(self, start: int, end: int) -> list[bytes | None]:
        """Return the values of messages ``start`` up to ``end``, counted from the frame's first."""
        payload = self.payload
        return apply_nulls(payload.values.slice(start, end), payload.value_validity, start)

    def value_sizes_bytes(self) -> list[int]:
        """Return the length of the value of each message, 0 without one."""
        bounds = self.payload.values.offsets[: self.header.message_count + 1].tolist()
        return [end - start for start, end in itertools.pairwise(bounds)]

    def keys(self, start: int, end: int) -> list[bytes | None]:
        """Return their keys."""
        payload = self.payload
        if payload.keys is None:
            return [None] * (end - start)
        return apply_nulls(payload.keys.slice(start, end), payload.key_validity, start)

    def headers(self, start: int, end: int) -> list[tuple[Header, ...]]:
        """Return their headers."""
        payload = self.payload
        if payload.header_counts is None:
            return [()] * (end - start)
        bounds = payload.header_counts[start : end + 1].tolist()
        first, last = bounds[0], bounds[-1]
        names = [name.decode() for name in payload.header_names.slice(first, last)]
        pairs = tuple(zip(names, payload.header_values.slice(first, last), strict=True))
        return [pairs[a - first : b - first] for a, b in itertools.pairwise(bounds)]

    def header_values(self, name: bytes) -> dict[int, bytes]:
        """Return the first value of one header, by row of the messages that have it."""
        payload, found = self.payload, dict[int, bytes]()
        if payload.header_counts is None:
            return found
        names, values = payload.header_names, payload.header_values
        every_name = bytes(names.data)
        at = every_name.find(name)
        while at >= 0:
            entry = bisect_right(names.offsets, at) - 1
            if names.offsets[entry : entry + 2].tolist() == [at, at + len(name)]:
                row = bisect_right(payload.header_counts, entry) - 1
                found.setdefault(row, values.pick([entry])[0])
            at = every_name.find(name, at + 1)
        return found

    def messages(self, start: int, end: int) -> Iterator[Message]:
        """Yield messages ``start`` up to ``end``, counted from the frame's first."""
        values, keys = self.values(start, end), self.keys(start, end)
        headers = self.headers(start, end)
        if not self.header.attributes & DELIVERY_COLUMNS:
            return map(Message, values, keys, headers)
        return map(
            Message,
            values,
            keys,
            headers,
            self.lanes(start, end) or repeat(None),
            self.times_ms(Attribute.DELIVER_AT, start, end) or repeat(0),
            self.times_ms(Attribute.EXPIRES_AT, start, end) or repeat(0),
            self.tenants_of(start, end) or repeat(None),
            self.dedup_ids(start, end) or repeat(None),
        )

    def lanes(self, start: int, end: int) -> Sequence[int] | None:
        """Return the lanes of messages ``start`` up to ``end``; None if all have the default."""
        column = self.column(Attribute.LANE)
        return None if column is None else column[start:end]

    def tenants_of(self, start: int, end: int) -> list[str | None] | None:
        """Return the tenants of messages ``start`` up to ``end``; None if none has one."""
        column, dictionary = self.column(Attribute.TENANT), self.tenants
        if column is None or dictionary is None:
            return None
        numbers = column.cast("H")[start:end].tolist()
        known = sorted(set(numbers) - {NO_TENANT})
        names = {n: name.decode() for n, name in zip(known, dictionary.pick(known), strict=True)}
        return [names.get(number) for number in numbers]

    def dedup_ids(self, start: int, end: int) -> list[bytes | None] | None:
        """Return the dedup ids of messages ``start`` up to ``end``; None if none has one."""
        column = self.column(Attribute.DEDUP_ID)
        if column is None:
            return None
        ids = bytes(column[16 * start : 16 * end])
        found = [ids[at : at + 16] for at in range(0, len(ids), 16)]
        return [None if one == NO_DEDUP_ID else one for one in found]

    def times_ms(self, attribute: int, start: int, end: int) -> list[int] | None:
        """Return a column of times of messages ``start`` up to ``end``; None if none has one."""
        column = self.column(attribute)
        return None if column is None else column.cast("q")[start:end].tolist()

    def columns(self, start: int, end: int) -> Columns:
        """Return messages ``start`` up to ``end`` by column, as they were encoded."""
        present = self.header.attributes
        dedup_ids = self.dedup_ids(start, end)
        return Columns(
            values=self.values(start, end),
            keys=self.keys(start, end) if present & Attribute.KEYS else None,
            headers=self.headers(start, end) if present & Attribute.HEADERS else None,
            deliver_at_ms=self.times_ms(Attribute.DELIVER_AT, start, end),
            expires_at_ms=self.times_ms(Attribute.EXPIRES_AT, start, end),
            client_time_ms=self.times_ms(Attribute.CLIENT_TIME, start, end),
            dedup_ids=None if dedup_ids is None else [one or NO_DEDUP_ID for one in dedup_ids],
            tenants=self.tenants_of(start, end),
            lanes=self.lanes(start, end),
        )


def _expand(columns: dict[int, memoryview], removed: RemovedRows) -> dict[int, memoryview]:
    """Return columns with an entry per row; dedup ids have one already."""
    codes = {Attribute.TENANT: ("u2", NO_TENANT), Attribute.LANE: ("u1", 0)}
    return {
        attribute: section
        if attribute == Attribute.DEDUP_ID
        else removed.expand(section, *codes.get(attribute, ("u8", 0)))
        for attribute, section in columns.items()
    }
