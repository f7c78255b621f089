"""What the segment log costs on this machine: ``python -m bench.log.storage [folder]``.

Prints figures and asserts nothing. Needs about 2.5 GiB in the folder, which it cleans up.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.harness.disk import append_rate
from goq import limits
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log
from goq.storage.verification import LogReport, verify_log

T = TypeVar("T")
VALUE = random.Random(1).randbytes(100)


def main() -> None:
    """Measure everything in turn."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        appending(Path(temporary))
        opening_and_reading(Path(temporary))
        verifying(Path(temporary))


def fill(log: Log, frames: int, messages: int, *, frames_a_batch: int = 1) -> float:
    """Append frames of so many messages of 100 bytes; return the seconds that it took."""
    frame = encode_frame(Columns([VALUE] * messages))
    header, body = parse_header(frame), memoryview(frame)[HEADER_BYTES:]
    began_s = time.perf_counter()
    appended = 0
    while appended < frames:
        batch = log.begin(time.time_ns() // 1000)
        for _ in range(frames_a_batch):
            if not batch.has_room_for(len(frame)):
                break
            batch.add(header, body, append_time_us=time.time_ns() // 1000, leader_epoch=1)
            appended += 1
        log.write(batch)
        log.commit(batch)
    return time.perf_counter() - began_s


def appending(folder: Path) -> None:
    """One writer, each batch synced before the next begins."""
    print(f"write + fdatasync of 228 bytes alone: {append_rate(folder, 228, 2000):,.0f}/s")
    for messages, frames_a_batch, batches in ((1, 1, 3000), (1, 64, 1000), (100, 1, 2000),
                                              (1000, 1, 1000), (1000, 8, 300)):  # fmt: skip
        disk, directory = RealDisk(), folder / "append"
        log = Log.open(directory, disk)
        frames = batches * frames_a_batch
        seconds = fill(log, frames, messages, frames_a_batch=frames_a_batch)
        size_bytes = log.size_bytes
        log.close()
        disk.remove_dir(directory)
        print(
            f"append, {frames_a_batch} frames of {messages} a sync:"
            f" {frames / seconds:,.0f} frames/s"
            f" {log.end_offset / seconds:,.0f} messages/s {size_bytes / seconds / 1e6:,.0f} MB/s"
        )


def opening_and_reading(folder: Path) -> None:
    """Ten million messages in 1 GiB: open it cleanly and after a kill, read old and new places."""
    disk, directory = RealDisk(), folder / "log"
    log = Log.open(directory, disk)
    fill(log, 10_000, 1000, frames_a_batch=8)
    log.close()
    size = f"{log.size_bytes / limits.GIB:.2f} GiB, {log.end_offset:,} messages"
    seconds, log = timed(lambda: Log.open(directory, RealDisk()))
    print(f"open {size}, closed cleanly: {seconds * 1000:.1f} ms")
    fill(log, 150, 1000)  # 16 MB: the most that lies behind a checkpoint
    seconds, log = timed(lambda: Log.open(directory, RealDisk()))
    scanned = log.scanned_bytes / limits.MIB
    print(f"open the same after a kill, {scanned:.1f} MiB to check: {seconds * 1000:.1f} ms")
    log.close()
    (directory / "watermark").unlink()
    seconds, log = timed(lambda: Log.open(directory, RealDisk()))
    print(f"open the same with its watermark lost: {seconds * 1000:.0f} ms")
    reading(log)
    seconds, report = timed(lambda: verify_log(RealDisk(), directory))
    print_verified("1000 messages a frame, in memory", seconds, report)
    for path in directory.iterdir():
        forget(path)
    seconds, report = timed(lambda: verify_log(RealDisk(), directory))
    print_verified("1000 messages a frame, from the device", seconds, report)
    log.close()
    disk.remove_dir(directory)


def reading(log: Log) -> None:
    """One frame at a time, at random places, each segment's index in memory."""
    places = random.Random(2)
    for segment in log.segments:
        segment.load_index(RealDisk())
    for name, low, high in (("oldest", 0, 0.1), ("middle", 0.45, 0.55), ("newest", 0.9, 1.0)):
        times = []
        for _ in range(3000):
            offset = int(log.end_offset * places.uniform(low, high))
            began_s = time.perf_counter()
            log.reader.read(offset, log.end_offset, messages_max=1)
            times.append(time.perf_counter() - began_s)
        print(
            f"read at one of the {name} tenth's offsets: p50 {statistics.median(times) * 1e6:.0f}"
            f" µs, p99 {sorted(times)[-30] * 1e6:.0f} µs"
        )


def verifying(folder: Path) -> None:
    """Verification by the size of frames, in memory."""
    for messages, frames in ((1, 200_000), (10, 100_000), (100, 30_000)):
        disk, directory = RealDisk(), folder / "verify"
        log = Log.open(directory, disk)
        fill(log, frames, messages, frames_a_batch=1000)
        log.close()
        seconds, report = timed(partial(verify_log, RealDisk(), directory))
        print_verified(f"{messages} messages a frame, in memory", seconds, report)
        disk.remove_dir(directory)


def print_verified(what: str, seconds: float, report: LogReport) -> None:
    print(
        f"verify, {what}: {report.bytes / seconds / 1e6:,.0f} MB/s"
        f" ({report.frames / seconds:,.0f} frames/s, damage {len(report.damage)})"
    )


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began_s = time.perf_counter()
    result = work()
    return time.perf_counter() - began_s, result


def forget(path: Path) -> None:
    """Let the system drop a file's bytes from memory."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
