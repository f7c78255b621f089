"""Records of the journal's file: each checked by itself, each of a kind.

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
from crc32c import crc32c

from goq import limits

FORMAT = 1
BASE, TERM, ENTRY = 1, 2, 3
_HEAD = struct.Struct("<IIB")
_SIZE = struct.Struct("<I")
_TERM = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQ")


class Entry(NamedTuple):
    """An entry of the log, in the order in which the library takes its parts."""

    command: bytes
    index: int  # type: ignore[assignment]  # a tuple's own method is of no use here
    term: int


class Base(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a journal begins with."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    generation: int
    members: list[str]


class Term(NamedTuple):
    """The current term, and the node that has this one's vote in it."""

    term: int
    vote: str | None


class Record(NamedTuple):
    """A sound record, and where it ends."""

    value: Base | Term | Entry
    end: int


def pack_base(base: Base) -> bytes:
    """Return the record that a journal begins with."""
    return _packed(BASE, msgspec.msgpack.encode(base))


def pack_term(term: Term) -> bytes:
    """Return the record of a term."""
    return _packed(TERM, _TERM.pack(term.term) + (term.vote or "").encode())


def pack_entry(entry: Entry) -> bytes:
    """Return the record of an entry."""
    return _packed(ENTRY, _ENTRY.pack(entry.index, entry.term) + entry.command)


def unpack(data: bytes) -> Iterator[Record]:
    """Yield the records up to the first that is not sound."""
    position = 0
    while len(data) - position >= _HEAD.size:
        size, check, kind = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + size
        if end > len(data) or size > limits.RAFT_RECORD_BYTES_MAX:
            return
        payload = data[position + _HEAD.size : end]
        if _check(kind, payload) != check:
            return
        try:
            value = _value(kind, payload)
        except (ValueError, struct.error, msgspec.MsgspecError):
            return
        yield Record(value, end)
        position = end


def _value(kind: int, payload: bytes) -> Base | Term | Entry:
    if kind == ENTRY:
        index, term = _ENTRY.unpack_from(payload)
        return Entry(payload[_ENTRY.size :], index, term)
    if kind == TERM:
        (term,) = _TERM.unpack_from(payload)
        return Term(term, payload[_TERM.size :].decode() or None)
    if kind == BASE:
        return msgspec.msgpack.decode(payload, type=Base)
    raise ValueError(f"no record is of kind {kind}")


def _packed(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), _check(kind, payload), kind) + payload


def _check(kind: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(_SIZE.pack(len(payload)) + bytes((kind,))))
