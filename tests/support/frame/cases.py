"""Batches that use every part of the format, for the tests of frames."""

from __future__ import annotations

from typing import Any, NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from goq.frame.encoder import NO_PRODUCER, Columns, ProducerMark, assemble_frame, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute, parse_header, stamp


class Batch(NamedTuple):
    columns: Columns
    producer: ProducerMark = NO_PRODUCER
    compress: bool = False
    base_offset: int = 0
    append_time_us: int = 0
    leader_epoch: int = 0

    def encode(self) -> bytes:
        return stamped(
            encode_frame(self.columns, producer=self.producer, compress=self.compress),
            self.base_offset,
            self.append_time_us,
            self.leader_epoch,
        )


def stamped(frame: bytes, base_offset: int, append_time_us: int, leader_epoch: int) -> bytes:
    header = stamp(
        parse_header(frame),
        base_offset=base_offset,
        append_time_us=append_time_us,
        leader_epoch=leader_epoch,
    )
    return header.pack() + frame[HEADER_BYTES:]


def resealed(frame: bytes | bytearray) -> bytes:
    """Make length and both CRCs right, so that what else is wrong has to be found."""
    data = bytearray(frame)
    data[4:8] = len(data).to_bytes(4, "little")
    data[56:60] = crc32c(bytes(data[HEADER_BYTES:])).to_bytes(4, "little")
    data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
    return bytes(data)


def every_column(*, compress: bool = False) -> Batch:
    columns = Columns(
        values=[b"first", None, b"", b"\x00\xff" * 40],
        keys=[b"key", None, b"", "schlüssel".encode()],
        headers=[[("a", b"1"), ("a", b"2")], [], [("ü", b"\xff\xfe")], [("trace", b"")]],
        deliver_at_ms=[0, 1_700_000_000_000, -1, 2**62],
        expires_at_ms=[0, 0, 5, 2**63 - 1],
        client_time_ms=[1, 2, 3, -(2**63)],
        dedup_ids=[bytes(16), b"0123456789abcdef", b"\xff" * 16, bytes(range(16))],
        tenants=["acme", None, "", "größe"],
        lanes=[0, 255, 7, 1],
    )
    return Batch(columns, ProducerMark(2**64 - 1, 2**32 - 1, 2**62), compress, 2**40, 2**50, 9)


GOLDEN = {
    "one": Batch(Columns([b"hello"])),
    "plain": Batch(
        Columns([b"%d" % n for n in range(100)]),
        base_offset=45678,
        append_time_us=1_700_000_000_123_456,
        leader_epoch=3,
    ),
    "nulls": Batch(Columns([None, b"", b"x"] * 3, keys=[b"", None, b"k"] * 3)),
    "headers": Batch(Columns([b"v"] * 2, headers=[[("n", b"\xff"), ("n", b"")], []])),
    "every-column": every_column(),
    "compressed": Batch(Columns([b"again and again " * 20] * 5, keys=[b"k"] * 5), compress=True),
    "every-column-compressed": every_column(compress=True),
}


def event_frame() -> bytes:
    data = b"\x92\xa1a\xa1b"
    parts = [len(data).to_bytes(8, "little"), data, bytes(-len(data) % 8)]
    return assemble_frame(parts, count=2, attributes=Attribute.EVENTS)


def _maybe(column: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | column


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 8) | st.integers(30, 40))

    def of(entry: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(entry, min_size=count, max_size=count)

    times = st.integers(-(2**63), 2**63 - 1)
    data = st.binary(max_size=20) | st.sampled_from([b"", b"same " * 50])
    names = st.text(min_size=1, max_size=10)
    columns = Columns(
        values=draw(of(st.none() | data)),
        keys=draw(_maybe(of(st.none() | data))),
        headers=draw(_maybe(of(st.lists(st.tuples(names, data), max_size=3)))),
        deliver_at_ms=draw(_maybe(of(times))),
        expires_at_ms=draw(_maybe(of(times))),
        client_time_ms=draw(_maybe(of(times))),
        dedup_ids=draw(_maybe(of(st.binary(min_size=16, max_size=16)))),
        tenants=draw(_maybe(of(st.none() | st.sampled_from(["a", "b", "größe", ""])))),
        lanes=draw(_maybe(of(st.integers(0, 255)))),
    )
    producer = ProducerMark(
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 2**63 - 2 - 65_536)),
    )
    return Batch(
        columns,
        producer,
        draw(st.booleans()),
        draw(st.integers(0, 2**62)),
        draw(times),
        draw(st.integers(0, 2**32 - 1)),
    )
