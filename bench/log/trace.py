"""What a trace costs: finding all events of one message among those of many.

The logs are made directly, as a node would have left them: each message of a partition leased and
acknowledged by itself, or in batches of 1000. ``python -m bench.log.trace [--full] [folder]``
measures ten million messages that way; the rows of ``python -m bench`` one million.
"""

from __future__ import annotations

import argparse
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness.rows import Place, Row, Work
from goq import limits
from goq.broker.events.index import EventIndex
from goq.broker.events.index_blocks import BlockBuilder
from goq.broker.events.search import IndexedEventLog, timeline_of
from goq.client import Client
from goq.delivery.events.affected import PendingCopies
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Leased,
    SnapshotEnded,
    SnapshotStarted,
    token_of,
)
from goq.delivery.events.frame_codec import encode_event_frame
from goq.delivery.trace.steps import PublishRecord, StepName
from goq.errors import TopicNotFound
from goq.index_cache import IndexCache
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import WriteBatch

MESSAGES = 1_000_000
FULL = 10_000_000
_IN_FLIGHT = 200
_TRACES = 300
_NEVER = 2**62
_REDRIVES = 7
_PATIENCE_S = 10


def _events(count: int, each: int) -> Iterator[AnyEvent]:
    """Yield leases and acks of so many messages at a time, some leases always open."""
    open_leases = max(1, _IN_FLIGHT // each)
    tokens: list[int] = []
    sequence = 0
    for number in range(count // each + open_leases):
        if number < count // each:
            start = number * each
            yield Leased("group", "consumer-1", 1_800_000_000_000, [(start, start + each, 1)])
            tokens.append(token_of(1, sequence))
            sequence += 1
        if number >= open_leases:
            start = (number - open_leases) * each
            yield Acked("group", tokens[number - open_leases], [(start, start + each)])
            sequence += 1


def _fill(folder: Path, count: int, each: int) -> tuple[Log, float]:
    """Write the events; return their log, and the us of the processor to index one."""
    log = Log.open(folder, RealDisk(), LogConfig(_NEVER, _NEVER))
    spans = EventIndex(RealDisk(), log.reader, IndexCache())
    builder, used_s, events = BlockBuilder(0, PendingCopies()), 0.0, 0
    found = _events(count, each)
    now_us = time.time_ns() // 1000
    is_done = False
    while not is_done:
        roll = log.active.size_bytes >= limits.EVENT_SEGMENT_BYTES
        batch = log.begin(now_us, roll=roll)
        for event in (SnapshotStarted(0, 0, []), SnapshotEnded()) if roll else ():
            _add(batch, event, now_us)
        some: list[tuple[AnyEvent, int]] = []
        for _ in range(1000):
            following = next(found, None)
            if following is None:
                is_done = True
                break
            some.append((following, _add(batch, following, now_us)))
            now_us += 10
        log.write(batch)
        sealed = log.commit(batch)
        if sealed is not None:
            spans.seal(sealed, builder.blocks())
            builder = BlockBuilder(sealed.end_offset, PendingCopies())
        sequence = log.end_offset - len(some)
        began_s = time.thread_time()
        for each_event, size_bytes in some:
            builder.add(each_event, 1, sequence)
            sequence += 1
            builder.end_frame(sequence, size_bytes)
        used_s += time.thread_time() - began_s
        events += len(some)
    sealed = log.roll()
    if sealed is not None:
        spans.seal(sealed, builder.blocks())
    return log, used_s * 1e6 / events


def _add(batch: WriteBatch, event: AnyEvent, now_us: int) -> int:
    view = encode_event_frame([event])
    batch.add(view.header, view.body, append_time_us=now_us, leader_epoch=1)
    return view.header.frame_bytes


def _trace_ms(log: Log, count: int) -> tuple[float, list[float]]:
    """Return how long the first trace took and, sorted, those of messages drawn by chance."""
    events = IndexedEventLog(log.reader, EventIndex(RealDisk(), log.reader, IndexCache()), {})
    draw, took_ms = random.Random(20_261_121), []
    for number in range(_TRACES + 1):
        offset = draw.randrange(count)
        began_s = time.perf_counter()
        timeline = timeline_of([events], offset, PublishRecord(offset, 0))
        took_ms.append(1000 * (time.perf_counter() - began_s))
        names = [step.name for step in timeline.steps]
        if names != [StepName.PUBLISHED, StepName.DELIVERED, StepName.ACKNOWLEDGED]:
            raise RuntimeError(f"trace {number} of offset {offset} says {names}")
    return took_ms[0], sorted(took_ms[1:])


def measure(folder: Path, count: int, each: int) -> tuple[float, float, float, float, float]:
    """Return p50 and p99 of a trace, the first one, µs an event to index, bytes a message."""
    log, index_us = _fill(folder, count, each)
    try:
        first_ms, took_ms = _trace_ms(log, count)
        p99_ms = took_ms[len(took_ms) * 99 // 100]
        return statistics.median(took_ms), p99_ms, first_ms, index_us, log.size_bytes / count
    finally:
        log.close()


def _single(place: Place) -> tuple[float, float, float, float]:
    folder = place.folder / f"trace-{secrets.token_hex(4)}"
    return measure(folder, place.scaled(MESSAGES), 1)[:4]


def _batches(place: Place) -> tuple[float, float]:
    folder = place.folder / f"trace-{secrets.token_hex(4)}"
    _, p99_ms, _, _, size_bytes = measure(folder, place.scaled(MESSAGES, 100_000), 1000)
    return p99_ms, size_bytes


_TEXT = f"{MESSAGES:,} messages acked one by one"


def _copies(place: Place) -> float:
    """Return the milliseconds a copy of the trace of a message that was redriven often."""
    topic = f"bench-{secrets.token_hex(4)}"
    with Client(place.goq.url) as client:
        client.create_topic(topic, 1)
        sent = client.publish(topic, b"x")
        for _ in range(_REDRIVES):
            (message,) = client.receive(topic, "g", wait=_PATIENCE_S)
            message.reject("bad")
            until_s = time.monotonic() + _PATIENCE_S
            while not _redriven(client, topic) and time.monotonic() < until_s:
                time.sleep(0.01)
        client.receive(topic, "g", wait=_PATIENCE_S)
        copies, seconds = 0, list[float]()
        for _ in range(_TRACES // 10):
            began_s = time.perf_counter()
            traced = client.get_trace(sent.id)
            seconds.append(time.perf_counter() - began_s)
            copies = sum(event.event == "PUBLISHED" for event in traced.events) - 1
    assert copies == 2 * _REDRIVES, copies
    return 1000 * statistics.median(seconds) / copies


def _redriven(client: Client, topic: str) -> bool:
    try:
        return client.redrive_dead_letters(topic, force=True).redriven > 0
    except TopicNotFound:
        return False


WORKS = [
    Work(
        [Row("trace-copies", f"trace over {2 * _REDRIVES} copies, a copy", "ms", 10, at_most=True)],
        _copies,
    ),
    Work(
        [
            Row("trace-p50", f"{_TEXT}: trace of any, p50", "ms"),
            Row("trace-p99", f"{_TEXT}: trace of any, p99", "ms", 50, at_most=True),
            Row("trace-first", f"{_TEXT}: the first trace, index not in memory", "ms"),
            Row("trace-index", f"{_TEXT}: indexing an event", "us", 2, at_most=True),
        ],
        _single,
    ),
    Work(
        [
            Row("trace-batches-p99", f"{MESSAGES:,} acked by 1000: trace of any, p99", "ms"),
            Row("trace-bytes", "events of a message acked by 1000", "B", 2, at_most=True),
        ],
        _batches,
    ),
]


def main() -> None:
    """Print the figures of both ways to acknowledge."""
    parser = argparse.ArgumentParser(prog="python -m bench.log.trace")
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} messages, 3 GB on the disk")
    parser.add_argument("folder", nargs="?", type=Path)
    arguments = parser.parse_args()
    count = FULL if arguments.full else MESSAGES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for each in (1, 1000):
            p50, p99, first, index_us, size_bytes = measure(Path(name) / str(each), count, each)
            print(
                f"{count:,} messages acked by {each}: trace p50 {p50:.1f} ms, p99 {p99:.1f} ms,"
                f" first {first:.0f} ms; indexing {index_us:.2f} us an event;"
                f" {size_bytes:.2f} bytes of events a message"
            )


if __name__ == "__main__":
    main()
