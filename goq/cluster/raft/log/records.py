"""Record format of the journal: each record has a kind and its own checksum.

    size of the payload u32 · CRC32C u32 of all but itself · kind u8 · payload

Little-endian. Kinds and payloads:

    BASE   msgpack [format, generation, members before the first entry]; the first record, only
    TERM   current term u64 · id of the node voted for in it, UTF-8, empty for none
    ENTRY  index u64 · term u64 · command
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from goq import limits
from goq.frame.checksum import crc32c

FORMAT = 1
BASE, TERM, ENTRY = 1, 2, 3
_HEAD = struct.Struct("<IIB")
_SIZE = struct.Struct("<I")
_TERM = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQ")


class Entry(NamedTuple):
    """A log entry, with its fields in the library's order."""

    command: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    term: int


class Base(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first record of a journal."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    generation: int
    members: list[str]


class Term(NamedTuple):
    """The current term, and the member that has this one's vote in it."""

    term: int
    vote: str | None


class Record(NamedTuple):
    """A valid record, and the offset of its end."""

    value: Base | Term | Entry
    end: int


def pack_base(base: Base) -> bytes:
    """Encode the first record of a journal."""
    return _pack(BASE, msgspec.msgpack.encode(base))


def pack_term(term: Term) -> bytes:
    """Encode a term."""
    return _pack(TERM, _TERM.pack(term.term) + (term.vote or "").encode())


def pack_entry(entry: Entry) -> bytes:
    """Encode an entry."""
    return _pack(ENTRY, _ENTRY.pack(entry.index, entry.term) + entry.command)


def unpack(data: bytes) -> Iterator[Record]:
    """Yield the records before the first invalid one."""
    position = 0
    while len(data) - position >= _HEAD.size:
        size, check, kind = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + size
        if end > len(data) or size > limits.RAFT_RECORD_BYTES_MAX:
            return
        payload = data[position + _HEAD.size : end]
        if _checksum(kind, payload) != check:
            return
        try:
            value = _unpack_value(kind, payload)
        except (ValueError, struct.error, msgspec.MsgspecError):
            return
        yield Record(value, end)
        position = end


def _unpack_value(kind: int, payload: bytes) -> Base | Term | Entry:
    if kind == ENTRY:
        index, term = _ENTRY.unpack_from(payload)
        return Entry(payload[_ENTRY.size :], index, term)
    if kind == TERM:
        (term,) = _TERM.unpack_from(payload)
        return Term(term, payload[_TERM.size :].decode() or None)
    if kind == BASE:
        return msgspec.msgpack.decode(payload, type=Base)
    raise ValueError(f"unknown kind of record: {kind}")


def _pack(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), _checksum(kind, payload), kind) + payload


def _checksum(kind: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(_SIZE.pack(len(payload)) + bytes((kind,))))
