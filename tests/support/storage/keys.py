"""Logs of messages with keys and dedup ids, and what a plain dict says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random

from crc32c import crc32c

from goq.frame.encoder import Columns, encode_frame
from goq.frame.hashes import dedup_hash, key_hash
from goq.frame.header import Attribute, parse_header
from goq.frame.view import FrameView
from goq.index_cache import IndexCache
from goq.storage.key_index.extract import DEFAULT_LIMITS, ScanLimits
from goq.storage.key_index.file import KeyTable
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import KeyLookup
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import read_all

KEYS: list[bytes | None] = [None, b"", b"a", b"b", b"c", "ключ".encode(), b"x" * 300]
IDS = ["one", "two", "three", "four"]
TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1


def no_pause() -> None:
    """Go on at once."""


def keyed_frame(random: Random, *, count: int | None = None) -> bytes:
    """Return a frame in which each of the columns may be missing, empty or full."""
    count = random.randint(1, 8) if count is None else count
    keys = [random.choice(KEYS) for _ in range(count)] if random.random() < 0.7 else None
    ids = None
    if random.random() < 0.5:
        ids = [
            dedup_hash(random.choice(IDS)) if random.random() < 0.7 else bytes(16)
            for _ in range(count)
        ]
    values = [random.randbytes(random.randint(0, 40)) for _ in range(count)]
    return encode_frame(Columns(values, keys=keys, dedup_ids=ids), compress=random.random() < 0.4)


def with_key_hashes(frame: bytes, hashes: list[int]) -> bytes:
    """Return a frame whose column of hashes says something else, its CRC sound."""
    view = FrameView.parse(frame)
    before = sum(
        8 * view.header.message_count
        for attribute in (Attribute.DELIVER_AT, Attribute.EXPIRES_AT, Attribute.CLIENT_TIME)
        if view.header.attributes & attribute
    )
    body = bytearray(view.body)
    data = b"".join(h.to_bytes(8, "little") for h in hashes)
    body[before : before + len(data)] = data
    header = parse_header(frame)._replace(body_crc32c=crc32c(bytes(body)))
    return header.pack() + bytes(body)


def expected(log: Log) -> dict[tuple[KeyTable, int], list[int]]:
    """Return the offsets of each hash, rising, as reading every message says."""
    found: dict[tuple[KeyTable, int], list[int]] = defaultdict(list)
    for frame in read_all(log).frames.values():
        view = FrameView.parse(frame)
        count, base = view.header.message_count, view.header.base_offset
        for row, key in enumerate(view.keys(0, count)):
            if key is not None:
                found[KeyTable.KEYS, key_hash(key)].append(base + row)
        for row, one in enumerate(view.dedup_ids(0, count) or []):
            if one is not None:
                found[KeyTable.DEDUP_IDS, int.from_bytes(one[:8], "little")].append(base + row)
    return found


def all_lookups() -> Iterator[tuple[KeyTable, int]]:
    for key in [*KEYS, b"nobody has this"]:
        if key is not None:
            yield KeyTable.KEYS, key_hash(key)
    for text in [*IDS, "nobody has this"]:
        yield KeyTable.DEDUP_IDS, int.from_bytes(dedup_hash(text)[:8], "little")


def look_up(
    index: KeyIndex,
    table: KeyTable,
    hashed: int,
    start: int = 0,
    end: int = 2**62,
    pause: Callable[[], None] = no_pause,
) -> list[int]:
    lookup = KeyLookup(table, hashed, start, end, TIME_MIN, TIME_MAX)
    return list(index.offsets(lookup, pause))


def index_of(
    log: Log,
    disk: SimulatedDisk,
    cache: IndexCache | None = None,
    *,
    limit: ScanLimits = DEFAULT_LIMITS,
) -> KeyIndex:
    return KeyIndex(disk, log.reader, cache or IndexCache(), limit=limit)


def check(
    index: KeyIndex, log: Log, held: dict[tuple[KeyTable, int], list[int]] | None = None
) -> None:
    """Assert that the index says of every key and id what reading everything says."""
    held = expected(log) if held is None else held
    for table, hashed in all_lookups():
        assert look_up(index, table, hashed) == held.get((table, hashed), [])[::-1]
