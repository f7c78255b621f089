"""A second reader of frames, written from docs/format.md alone: slow and plain."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c
import zstandard


@dataclass
class TwinFrame:
    header: dict[str, int]
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[list[tuple[str, bytes]]]
    deliver_at_ms: list[int] | None
    expires_at_ms: list[int] | None
    client_time_ms: list[int] | None
    key_hashes: list[int] | None
    dedup_ids: list[bytes] | None
    tenants: list[str | None] | None
    lanes: list[int] | None
    left_out: list[tuple[int, int, int]]
    gone: list[bool]
    """Which messages are gone; the other lists, but that of dedup ids, have none of these."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def section(self, size: int) -> bytes:
        assert self.at % 8 == 0
        assert self.at + size <= len(self.data)
        found = self.data[self.at : self.at + size]
        self.at += size
        while self.at % 8:
            assert self.data[self.at] == 0
            self.at += 1
        return found

    def numbers(self, code: str, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}{code}", self.section(struct.calcsize(code) * count)))

    def column(self, count: int) -> list[bytes]:
        offsets = self.numbers("i", count + 1)
        data = self.section(offsets[-1])
        return [data[offsets[i] : offsets[i + 1]] for i in range(count)]

    def bitmap(self, count: int) -> list[bool]:
        bits = self.section((count + 7) // 8)
        return [bool(bits[i // 8] & (1 << (i % 8))) for i in range(count)]


def decode(frame: bytes) -> TwinFrame:
    names = ["magic", "frame_bytes", "base_offset", "append_time_us", "leader_epoch",
             "message_count", "attributes", "left_out", "producer_epoch", "producer_id",
             "first_sequence", "body_crc32c", "header_crc32c"]  # fmt: skip
    header = dict(zip(names, struct.unpack("<IIqqIIHHIQQII", frame[:64]), strict=True))
    assert frame[:4] == b"goq\x01"
    assert header["frame_bytes"] == len(frame)
    assert header["body_crc32c"] == crc32c.crc32c(frame[64:])
    assert header["header_crc32c"] == crc32c.crc32c(frame[:60])
    count = header["message_count"]

    def has(bit: int) -> bool:
        return bool(header["attributes"] & (1 << bit))

    body = _Reader(frame[64:])
    gone, total = [False] * count, count
    if has(7):
        gone = body.bitmap(count)
        count = gone.count(False)
    deliver = body.numbers("q", count) if has(8) else None
    expires = body.numbers("q", count) if has(9) else None
    client = body.numbers("q", count) if has(10) else None
    hashes = body.numbers("Q", count) if has(11) else None
    dedup = None
    if has(12):
        ids = body.section(16 * total)
        dedup = [ids[16 * i : 16 * i + 16] for i in range(total)]
    tenants: list[str | None] | None = None
    if has(13):
        which = body.numbers("H", count)
        (known,) = body.numbers("Q", 1)
        dictionary = [name.decode() for name in body.column(known)]
        tenants = [None if w == 65535 else dictionary[w] for w in which]
    lanes = list(body.section(count)) if has(14) else None
    missing = header["left_out"]
    left_out: list[tuple[int, int, int]] = []
    if missing:
        columns = [body.numbers(code, missing) for code in "Hqq"]
        left_out = list(zip(*columns, strict=True))
    raw_bytes, stored_bytes = struct.unpack("<II", body.section(8))
    stored = body.section(stored_bytes)
    assert body.at == len(body.data)
    if has(4):
        stored = zstandard.ZstdDecompressor().decompress(stored)
    assert len(stored) == raw_bytes

    payload = _Reader(stored)
    present = payload.bitmap(count) if has(2) else [True] * count
    values = [v if p else None for v, p in zip(payload.column(count), present, strict=True)]
    keys: list[bytes | None] = [None] * count
    if has(0):
        present = payload.bitmap(count) if has(1) else [True] * count
        keys = [k if p else None for k, p in zip(payload.column(count), present, strict=True)]
    headers: list[list[tuple[str, bytes]]] = [[] for _ in range(count)]
    if has(3):
        counts = payload.numbers("i", count + 1)
        header_names = payload.column(counts[-1])
        header_values = payload.column(counts[-1])
        pairs = [(n.decode(), v) for n, v in zip(header_names, header_values, strict=True)]
        headers = [pairs[counts[i] : counts[i + 1]] for i in range(count)]
    assert payload.at == len(payload.data)
    return TwinFrame(
        header,
        values,
        keys,
        headers,
        deliver,
        expires,
        client,
        hashes,
        dedup,
        tenants,
        lanes,
        left_out,
        gone,
    )
