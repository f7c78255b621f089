"""What finding by key costs on this machine: ``python -m bench.log.keys [messages] [folder]``.

Prints figures and asserts nothing. Values have 100 bytes, frames 1000 messages, segments 64 MiB.
The oldest million messages have keys of their own; all others come again and again, a million keys
and one that each thousandth message has. 5 million messages, the default, need 0.9 GB in the
folder, which it cleans up; 50 million need 9 GB and some minutes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from bench.harness.disk import append_rate
from goq.broker.search.finder import TopicSearch
from goq.broker.search.partition_search import (
    KeySearch,
    MessageQuery,
    PartitionSearch,
    ScanSearch,
    SearchBudget,
)
from goq.config.topic import Fsync
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.index_cache import IndexCache
from goq.storage.disk import RealDisk
from goq.storage.key_index.index import KeyIndex
from goq.storage.log.log import Log, LogConfig

VALUE = random.Random(1).randbytes(100)
FRAME_MESSAGES = 1000
DIFFERENT = 1_000_000
HOT = b"hot"


def no_pause() -> None:
    pass


def main() -> None:
    """Fill a log, make its index, look keys up."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        rate = append_rate(Path(temporary), 228, 500)
        print(f"write + fdatasync of 228 bytes alone: {rate:,.0f}/s")
        disk = RealDisk()
        log = Log.open(Path(temporary) / "log", disk, LogConfig(fsync=Fsync.INTERVAL))
        append_s = fill(log, messages)
        made_s = make(disk, log)
        sealed = sum(segment.message_count for segment in log.segments[:-1])
        print(f"making it takes {made_s / sealed / (append_s / messages):.2f} of appending")
        looking_up(disk, log)
        log.close()


def frames_of(name: bytes, messages: int) -> list[bytes]:
    """Return frames of messages that have keys of their own."""
    return [
        encode_frame(
            Columns(
                [VALUE] * FRAME_MESSAGES,
                keys=[HOT, *(b"%s-%d" % (name, n) for n in range(first + 1, first + 1000))],
            )
        )
        for first in range(0, messages, FRAME_MESSAGES)
    ]


def fill(log: Log, messages: int) -> float:
    """Append frames; return the seconds that it took, without making them."""
    frames = frames_of(b"old", DIFFERENT)
    spent_s = append(log, frames)
    if messages > DIFFERENT:
        frames = frames_of(b"new", DIFFERENT)
        while log.end_offset < messages:
            spent_s += append(log, frames[: (messages - log.end_offset) // FRAME_MESSAGES or 1])
    each_ns = spent_s / log.end_offset * 1e9
    print(
        f"{log.end_offset:,} messages in {len(log.segments)} segments, {log.size_bytes / 1e9:.2f}"
        f" GB: appended at {log.end_offset / spent_s:,.0f}/s, {each_ns:.0f} ns a message"
    )
    return spent_s


def append(log: Log, frames: list[bytes]) -> float:
    began_s = time.perf_counter()
    for frame in frames:
        batch = log.begin(time.time_ns() // 1000)
        batch.add(
            parse_header(frame),
            memoryview(frame)[HEADER_BYTES:],
            append_time_us=time.time_ns() // 1000,
            leader_epoch=1,
        )
        log.write(batch)
        log.commit(batch)
    return time.perf_counter() - began_s


def make(disk: RealDisk, log: Log) -> float:
    """Make the index of all sealed segments; return the seconds that it took."""
    index = KeyIndex(disk, log.reader, IndexCache())
    times, cpu_s = [], time.process_time()
    for segment in log.segments[:-1]:
        began_s = time.perf_counter()
        index.build(segment, no_pause)
        times.append(time.perf_counter() - began_s)
    cpu_s = time.process_time() - cpu_s
    size_bytes = sum(path.stat().st_size for path in log.directory.glob("*.keys"))
    sealed = sum(segment.message_count for segment in log.segments[:-1])
    print(
        f"index made: {sum(times) / sealed * 1e9:.0f} ns ({cpu_s / sealed * 1e9:.0f} of CPU) and"
        f" {size_bytes / sealed:.2f} bytes a message; {max(times) * 1000:.0f} ms a segment at most"
    )
    return sum(times)


def looking_up(disk: RealDisk, log: Log) -> None:
    """Search for keys that are there and not there."""
    memory, choose = IndexCache(), random.Random(2)
    index = KeyIndex(disk, log.reader, memory)

    def search(wanted: MessageQuery, limit: int = 10) -> int:
        source: PartitionSearch
        if wanted.header:
            source = ScanSearch(0, index, wanted, 0, log.end_offset, no_pause)
        else:
            source = KeySearch(0, index, wanted, 0, log.end_offset, no_pause)
        page = TopicSearch([source], limit, SearchBudget(10**9, 10**12))
        page.run(10**9)
        return len(page.found)

    def measure(what: str, wanted: list[MessageQuery], limit: int = 10) -> None:
        times, found = [], 0
        for one in wanted:
            began_s = time.perf_counter()
            found += search(one, limit)
            times.append((time.perf_counter() - began_s) * 1000)
        times.sort()
        p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
        print(f"{what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {found / len(wanted):.1f} found")

    began_s = time.perf_counter()
    search(MessageQuery(key=b"nobody"))
    print(f"the first lookup after opening: {(time.perf_counter() - began_s) * 1000:.1f} ms")
    old = [n for n in choose.choices(range(DIFFERENT), k=500) if n % 1000]
    measure("an old key of one message", [MessageQuery(key=b"old-%d" % n) for n in old])
    measure("a key of none", [MessageQuery(key=b"none-%d" % n) for n in old])
    measure("the newest 10 of very many", [MessageQuery(key=HOT)] * 100)
    measure("the newest 100 of them", [MessageQuery(key=HOT)] * 20, 100)
    measure("a header that none has", [MessageQuery(header=("a", b"b"))], 10)
    print(f"memory kept: {memory.size_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
