"""The binary form of publish, read and receive: placed frames and prefaces.

A placed frame is the partition as a little-endian ``u32``, then the frame. A preface is a
little-endian ``u32`` length, then that many bytes of JSON. ``docs/internals/wire.md`` is the
specification.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from goq.client.delivery_options import DEFAULT_LANES
from goq.client.messages import DamagedRange, FailedReceipt, ReadBatch, Settled
from goq.errors import CorruptData, InvalidFrame
from goq.frame.checksum import crc32c
from goq.frame.view import FrameView
from goq.model import Receipt
from goq.units import parse_time_us

_LENGTH_BYTES = 4

Shape = TypeVar("Shape")


def place(partition: int, frame: bytes) -> tuple[bytes, bytes]:
    """Return the two pieces of a placed frame."""
    return partition.to_bytes(_LENGTH_BYTES, "little"), frame


def placed_frames(body: memoryview) -> Iterator[tuple[int, FrameView]]:
    """Yield the partition and the frame of each placed frame; the bodies' CRCs are checked.

    Raises ``InvalidFrame`` where there is no frame, ``CorruptData`` for a frame whose bytes are not
    those that the producer wrote.
    """
    position = 0
    while position < len(body):
        partition = int.from_bytes(body[position : position + _LENGTH_BYTES], "little")
        view = FrameView.parse(body, position + _LENGTH_BYTES)
        if crc32c(view.body) != view.header.body_crc32c:
            raise CorruptData(
                f"the frame at partition {partition}, offset {view.header.base_offset} arrived"
                " damaged: its CRC32C does not match; read it again, and run goq doctor if it"
                " comes the same"
            )
        yield partition, view
        position += _LENGTH_BYTES + view.header.frame_bytes


def split_preface(
    body: bytes, decoder: msgspec.json.Decoder[Shape]
) -> tuple[Shape, Iterator[tuple[int, FrameView]]]:
    """Return the decoded preface of an answer, and the placed frames after it."""
    view = memoryview(body)
    end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    if not _LENGTH_BYTES < end <= len(view):
        raise InvalidFrame(f"an answer of {len(view)} bytes has no whole preface")
    return decoder.decode(view[_LENGTH_BYTES:end]), placed_frames(view[end:])


class StoredFrame(msgspec.Struct):
    """Where one published frame was stored; ``duplicates`` are ``(row, offset, time_us)``.

    ``partitions`` is the number of partitions of the topic then, 0 if the node does not tell.
    """

    partition: int
    offset: int
    count: int
    timestamp: str
    duplicate: bool = False
    duplicates: list[tuple[int, int, int]] = []
    partitions: int = 0


class _PublishAnswer(msgspec.Struct):
    results: list[StoredFrame]
    partitions: int = 0


_decode_publish = msgspec.json.Decoder(_PublishAnswer).decode


def decode_published(body: bytes, frames: int) -> list[StoredFrame]:
    """Return the results of a publish of so many frames."""
    answer = _decode_publish(body)
    if len(answer.results) != frames:
        raise msgspec.ValidationError(f"{len(answer.results)} results for {frames} frames")
    for stored in answer.results:
        stored.partitions = answer.partitions
    return answer.results


class _Damage(msgspec.Struct):
    partition: int
    start_offset: int
    end_offset: int


class _ReadPreface(msgspec.Struct):
    next: int
    start: int
    end: int
    damaged: list[_Damage] = []
    deleted: list[tuple[int, int]] = []
    lanes: str = DEFAULT_LANES


_read_decoder = msgspec.json.Decoder(_ReadPreface)


def decode_read(body: bytes, topic: str, partition: int) -> ReadBatch:
    """Return the piece of a log that an answer holds."""
    preface, placed = split_preface(body, _read_decoder)
    return ReadBatch(
        topic,
        partition,
        frames=[frame for _, frame in placed],
        bounds=(preface.next, preface.start, preface.end),
        damaged=[
            DamagedRange(topic, item.partition, item.start_offset, item.end_offset)
            for item in preface.damaged
        ],
        deleted=preface.deleted,
        lanes=preface.lanes,
    )


class _DeliveryHead(msgspec.Struct):
    partition: int
    token: int
    lease_until: str
    ranges: list[tuple[int, int, int]]
    frames: int
    picked: list[tuple[int, int]] = []
    times: list[tuple[int, int, int]] = []
    lease_ms: int | None = None
    moved: list[tuple[int, int]] = []


class _ReceivePreface(msgspec.Struct):
    deliveries: list[_DeliveryHead]
    lanes: str = DEFAULT_LANES


_receive_decoder = msgspec.json.Decoder(_ReceivePreface, strict=False)


class FrameSlice(NamedTuple):
    """Messages ``start`` up to ``end`` of a frame, counted from its first, on one attempt.

    ``offset`` is that of the first, ``time_us`` the append time of all: where messages were picked
    from frames, those of the frame say nothing.
    """

    frame: FrameView
    start: int
    end: int
    attempt: int
    offset: int
    time_us: int


class PartitionDelivery(NamedTuple):
    """Messages of one partition that are leased under one token; times are microseconds.

    A range is ``(start, end, attempt)``, end excluded. ``frames`` hold at least these messages.
    ``lanes`` are the names of the topic's lanes. A ``picked`` frame (its number, and an offset)
    holds only the messages of the ranges from its base offset up to that offset, in order. If they
    come from several frames, ``times`` say (its number, an offset, a time) when those from that
    offset on were appended.
    ``lease_ms`` was left of the lease when the node sent it, None from a node that does not tell.
    ``moved`` are the lanes of messages that were moved to another, by offset.
    """

    partition: int
    token: int
    lease_until: int
    ranges: Sequence[tuple[int, int, int]]
    frames: Sequence[FrameView]
    lanes: str = DEFAULT_LANES
    picked: Sequence[tuple[int, int]] = ()
    times: Sequence[tuple[int, int, int]] = ()
    lease_ms: int | None = None
    moved: Mapping[int, int] = MappingProxyType({})

    def message_count(self) -> int:
        """Return how many messages were delivered."""
        return sum(end - start for start, end, _ in self.ranges)

    def receipts(self) -> list[Receipt]:
        """Return one receipt for each range."""
        return [Receipt(self.partition, self.token, start, end) for start, end, _ in self.ranges]

    def pieces(self) -> Iterator[FrameSlice]:
        """Yield the slices of frames that hold the messages, in the order of the ranges."""
        held = self._held()
        for start, end, attempt in self.ranges:
            at = start
            while at < end:
                index = bisect_right(held, at, key=_base_of) - 1
                if index < 0 or at >= held[index].end:
                    raise InvalidFrame(
                        f"partition {self.partition}, offset {at} was handed over without its frame"
                    )
                frame, base, stop, time_us, rows = held[index]
                stop = min(end, stop)
                row = at - base if rows is None else rows[at]
                yield FrameSlice(frame, row, row + stop - at, attempt, at, time_us)
                at = stop

    def _held(self) -> list[_Held]:
        """Return what the frames hold, by rising offset; a gathered frame once for each source."""
        ends = dict(self.picked)
        times: dict[int, list[tuple[int, int]]] = {}
        for number, offset, time_us in self.times:
            times.setdefault(number, []).append((offset, time_us))
        held: list[_Held] = []
        for number, frame in enumerate(self.frames):
            header, rows = frame.header, None
            end = ends.get(number, header.end_offset)
            if number in ends:
                rows = self._rows_of(header.base_offset, end)
            sources = times.get(number) or [(header.base_offset, header.append_time_us)]
            next_bases = [base for base, _ in sources[1:]] + [end]
            held += [
                _Held(frame, base, next_base, time_us, rows)
                for (base, time_us), next_base in zip(sources, next_bases, strict=True)
            ]
        held.sort(key=_base_of)
        return held

    def _rows_of(self, base: int, end: int) -> dict[int, int]:
        """Return at which row of a picked frame the message of each offset is."""
        offsets = (o for s, e, _ in sorted(self.ranges) for o in range(max(s, base), min(e, end)))
        return {offset: row for row, offset in enumerate(offsets)}


class _Held(NamedTuple):
    """Offsets whose messages a frame holds, appended at one time.

    Where they were picked, ``rows`` says where each message of the frame is.
    """

    frame: FrameView
    base: int
    end: int
    time_us: int
    rows: dict[int, int] | None = None


def _base_of(held: _Held) -> int:
    return held.base


def decode_deliveries(body: bytes) -> list[PartitionDelivery]:
    """Return the deliveries of a receive."""
    preface, placed = split_preface(body, _receive_decoder)
    return [
        PartitionDelivery(
            head.partition,
            head.token,
            parse_time_us(head.lease_until, now_us=0),
            head.ranges,
            [_next_frame(placed) for _ in range(head.frames)],
            preface.lanes,
            head.picked,
            head.times,
            head.lease_ms,
            dict(head.moved),
        )
        for head in preface.deliveries
    ]


class StreamSplitter:
    """Splits a stream into its answers, each after its length as a little-endian ``u32``."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._needed_bytes = _LENGTH_BYTES

    def feed(self, piece: bytes) -> list[bytes]:
        """Take received bytes; return the answers that they complete.

        Raises ``InvalidFrame`` for an answer that is larger than any that a node sends.
        """
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        if self._size_bytes < self._needed_bytes:
            return []
        data = b"".join(self._pieces)
        answers: list[bytes] = []
        start = 0
        while len(data) - start >= (needed := self._needed_at(data, start)):
            answers.append(data[start + _LENGTH_BYTES : start + needed])
            start += needed
        self._pieces = [data[start:]]
        self._size_bytes = len(data) - start
        self._needed_bytes = needed
        return answers

    def _needed_at(self, data: bytes, start: int) -> int:
        if len(data) - start < _LENGTH_BYTES:
            return _LENGTH_BYTES
        size_bytes = int.from_bytes(data[start : start + _LENGTH_BYTES], "little")
        if not _LENGTH_BYTES < size_bytes <= self._bytes_max:
            raise InvalidFrame(f"an answer of {size_bytes} bytes in a stream")
        return _LENGTH_BYTES + size_bytes


def _next_frame(placed: Iterator[tuple[int, FrameView]]) -> FrameView:
    for _, frame in placed:
        return frame
    raise InvalidFrame("the answer ends before the last of its frames")


class _Failed(msgspec.Struct):
    receipt: str
    code: str


class _SettleAnswer(msgspec.Struct):
    settled: int
    failed: list[_Failed] = []


_decode_settle = msgspec.json.Decoder(_SettleAnswer).decode


def decode_settled(body: bytes) -> Settled:
    """Return the result of settling receipts."""
    answer = _decode_settle(body)
    return Settled(
        answer.settled, [FailedReceipt(item.receipt, item.code) for item in answer.failed]
    )


def runs_of(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the fewest receipts that name the same messages, each message once."""
    runs: list[Receipt] = []
    for receipt in sorted(receipts):
        if runs and runs[-1][:2] == receipt[:2] and receipt.start <= runs[-1].end:
            runs[-1] = runs[-1]._replace(end=max(runs[-1].end, receipt.end))
        else:
            runs.append(receipt)
    return runs
