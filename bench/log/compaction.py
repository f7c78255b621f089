"""What compaction costs and saves on this machine: ``python -m bench.log.compaction [folder]``.

Prints figures and asserts nothing. Needs about 300 MiB in the folder, which it cleans up.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from goq import limits
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.compaction.cleaner import OffsetMap, build_offset_map
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig

KEYS = 10_000
UPDATES = 100
VALUE = random.Random(1).randbytes(100)


def main() -> None:
    """Write every key a hundred times, in frames of one and of a hundred, and compact that."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for messages in (100, 1):
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            compacting(Path(temporary) / "log", messages)


def compacting(directory: Path, messages: int) -> None:
    disk = RealDisk()
    log = Log.open(directory, disk, LogConfig(16 * limits.MIB, columns=True))
    count = fill(log, messages)
    log.roll()
    before_bytes, memory_kib = log.size_bytes, peak_kib()
    began_s = time.perf_counter()
    newest = OffsetMap(0, secret=b"of no account here", keys_max=limits.COMPACTION_KEYS_MAX)
    build_offset_map(log.reader, newest, log.end_offset, lambda: None)
    read_s = time.perf_counter() - began_s
    terms = CleanerParameters(newest, 0, 0, lambda: None)
    for segment in log.segments[:-1]:
        found = plan_rewrite(disk, segment, terms)
        new = rewrite_segment(disk, segment, found, terms, time_before_us=0)
        install_generation(disk, new)
        log.replace_segments([segment], new)
        segment.remove(disk)
    seconds = time.perf_counter() - began_s
    print(
        f"compaction, {count:,} messages of {KEYS:,} keys, {messages} a frame:"
        f" {before_bytes / limits.MIB:,.1f} MiB to {log.size_bytes / limits.MIB:,.2f} MiB"
        f" ({log.size_bytes / before_bytes:.2%}) in {seconds:.1f} s,"
        f" {before_bytes / seconds / 1e6:,.0f} MB/s, {count / seconds:,.0f} messages/s"
        f" (reading keys {read_s:.1f} s), {(peak_kib() - memory_kib) / 1024:.0f} MiB more memory"
    )
    log.close()


def fill(log: Log, messages: int) -> int:
    """Append updates of all keys in a random order; return how many messages there are."""
    chance = random.Random(2)
    updates = UPDATES if messages > 1 else UPDATES // 10
    left = [number % KEYS for number in range(KEYS * updates)]
    chance.shuffle(left)
    for first in range(0, len(left), 10_000):
        batch = log.begin(time.time_ns() // 1000)
        for start in range(first, first + 10_000, messages):
            keys = [b"key-%06d" % number for number in left[start : start + messages]]
            frame = encode_frame(Columns([VALUE] * messages, keys))
            header, body = parse_header(frame), memoryview(frame)[HEADER_BYTES:]
            if not batch.has_room_for(len(frame)):
                log.write(batch)
                log.commit(batch)
                batch = log.begin(time.time_ns() // 1000)
            batch.add(header, body, append_time_us=time.time_ns() // 1000, leader_epoch=1)
        log.write(batch)
        log.commit(batch)
    return len(left)


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
