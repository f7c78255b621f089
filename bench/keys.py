"""What finding by key costs on this machine: ``python -m bench.keys [messages] [folder]``.

Prints figures and asserts nothing. Each message has a key of its own but for one in a thousand,
which have the same; values have 100 bytes, frames 1000 messages, segments 64 MiB. 5 million
messages, the default, need 0.9 GiB in the folder, which it cleans up.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from goq.broker.finding import Search
from goq.broker.searching import Budget, HeaderSource, KeySource, Wanted
from goq.frame.encode import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.settings import Fsync
from goq.storage.files import RealDisk
from goq.storage.keyindex import KeyIndex
from goq.storage.keymemory import KeyMemory
from goq.storage.log import Log, LogConfig

VALUE = random.Random(1).randbytes(100)
FRAME_MESSAGES = 1000
HOT = b"hot"


def no_pause() -> None:
    pass


def key_of(number: int) -> bytes:
    return HOT if number % 1000 == 7 else b"order-%d" % number


def main() -> None:
    """Fill a log, make its index, look keys up."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        disk = RealDisk()
        log = Log.open(Path(temporary) / "log", disk, LogConfig(fsync=Fsync.INTERVAL))
        append_s = fill(log, messages)
        made_s = make(disk, log)
        sealed = sum(segment.message_count for segment in log.segments[:-1])
        print(f"making it takes {made_s / sealed / (append_s / messages):.2f} of appending")
        looking_up(disk, log)
        log.close()


def fill(log: Log, messages: int) -> float:
    """Append frames; return the seconds that appending took, without encoding."""
    spent_s, encoding_s = 0.0, 0.0
    for first in range(0, messages, FRAME_MESSAGES):
        began_s = time.perf_counter()
        keys = [key_of(number) for number in range(first, first + FRAME_MESSAGES)]
        frame = encode_frame(Columns([VALUE] * FRAME_MESSAGES, keys=keys))
        encoded_s = time.perf_counter()
        batch = log.begin(time.time_ns() // 1000)
        batch.add(
            parse_header(frame),
            memoryview(frame)[HEADER_BYTES:],
            append_time_us=time.time_ns() // 1000,
            leader_epoch=1,
        )
        log.write(batch)
        log.commit(batch)
        spent_s += time.perf_counter() - encoded_s
        encoding_s += encoded_s - began_s
    print(
        f"{messages:,} messages in {len(log.segments)} segments, {log.size_bytes / 1e9:.2f} GB:"
        f" appended at {messages / spent_s:,.0f}/s, {spent_s / messages * 1e9:.0f} ns a message"
        f" (their frames made by the producer: {encoding_s / messages * 1e9:.0f} ns)"
    )
    return spent_s


def make(disk: RealDisk, log: Log) -> float:
    index = KeyIndex(disk, log.reader, KeyMemory())
    times = []
    for segment in log.segments[:-1]:
        began_s = time.perf_counter()
        index.make(segment, no_pause)
        times.append(time.perf_counter() - began_s)
    size_bytes = sum(path.stat().st_size for path in log.directory.glob("*.keys"))
    sealed = sum(segment.message_count for segment in log.segments[:-1])
    print(
        f"index made in {sum(times):.2f} s: {sum(times) / sealed * 1e9:.0f} ns and"
        f" {size_bytes / sealed:.2f} bytes a message; {max(times) * 1000:.0f} ms a segment at most"
    )
    return sum(times)


def looking_up(disk: RealDisk, log: Log) -> None:
    memory = KeyMemory()
    index = KeyIndex(disk, log.reader, memory)
    choose = random.Random(2)

    def search(wanted: Wanted, limit: int = 10) -> int:
        end = log.end_offset
        source = (
            HeaderSource(0, index, wanted, 0, end, no_pause)
            if wanted.header
            else KeySource(0, index, wanted, 0, end, no_pause)
        )
        page = Search([source], limit, Budget(10**9, 10**12))
        assert page.run(10**9)
        return len(page.found)

    def measure(what: str, wanted: list[Wanted], limit: int = 10) -> None:
        times, found = [], 0
        for one in wanted:
            began_s = time.perf_counter()
            found += search(one, limit)
            times.append((time.perf_counter() - began_s) * 1000)
        times.sort()
        print(
            f"{what}: p50 {times[len(times) // 2]:.2f} ms,"
            f" p99 {times[len(times) * 99 // 100]:.2f} ms, {found / len(wanted):.1f} found"
        )

    began_s = time.perf_counter()
    search(Wanted(key=b"nobody"))
    first_ms = (time.perf_counter() - began_s) * 1000
    print(f"first lookup, which reads the segment that grows: {first_ms:.1f} ms")
    numbers = [n for n in choose.choices(range(log.end_offset), k=300) if n % 1000 != 7]
    measure("a key of one message", [Wanted(key=key_of(n)) for n in numbers])
    measure("a key of none", [Wanted(key=b"none-%d" % n) for n in numbers])
    measure("the newest 10 of a key of very many", [Wanted(key=HOT)] * 50)
    measure("the newest 100 of it", [Wanted(key=HOT)] * 20, 100)
    print(f"memory kept: {memory.size_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
