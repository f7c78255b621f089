"""A trace over damaged events says that it is incomplete, and nothing that did not happen."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from goq import limits
from goq.broker.events.index import EventIndex
from goq.broker.events.search import IndexedEventLog, timeline_of
from goq.clock import ManualClock
from goq.delivery.trace.steps import PublishRecord, Step
from goq.delivery.trace.timeline import Timeline
from goq.index_cache import IndexCache
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from tests.support.broker.harness import MemoryMetadata, broker_on, run
from tests.support.delivery.trace_model import TOPIC, TraceTwin
from tests.support.effort import first_of

SETTINGS = {"delivery__max_attempts": 3, "delivery__backoff__initial": "1s"}
FLIPS = 40
NEVER = LogConfig(2**62, 2**62)


def live(path: Path, seed: int) -> Path:
    """Let a partition live for a while; return its folder."""

    async def main() -> None:
        twin = TraceTwin(seed, ManualClock())
        async with broker_on(path, metadata=MemoryMetadata(), clock=twin.clock, **SETTINGS) as b:
            twin.bind(b)
            await b.topic_admin.create(TOPIC, 1)
            for _ in range(60):
                await twin.act()

    run(main())
    return path / "topics" / TOPIC / "0"


def published(partition: Path) -> list[PublishRecord]:
    log = Log.open(partition / "messages", RealDisk())
    found = []
    for view in log.reader.read(0, log.end_offset).frames:
        header = view.header
        for offset, message in enumerate(
            view.messages(0, header.message_count), header.base_offset
        ):
            found.append(PublishRecord(offset, header.append_time_us, message.deliver_at_ms))
    log.close()
    return found


def timelines(partition: Path, messages: list[PublishRecord]) -> list[Timeline]:
    disk = RealDisk()
    log = Log.open(partition / "events", disk, NEVER)
    try:
        events = IndexedEventLog(log.reader, EventIndex(disk, log.reader, IndexCache()), {})
        return [timeline_of([events], each.offset, each) for each in messages]
    finally:
        log.close()


def may_be(found: Step, right: Step) -> bool:
    """Whether a step is the right one, as far as it says anything.

    Who had the message is not known where the lease is lost, nor how long where its end is.
    """
    if found.consumer is None:
        right = replace(right, consumer=None)
        if found.attempt is None:
            right = replace(right, attempt=None)
    if found.copy is not None and right.copy is not None and found.copy.offset < 0:
        right = replace(right, copy=right.copy._replace(offset=-1))
    return replace(found, until_ms=None) == replace(right, until_ms=None)


def is_part(found: list[Step], right: list[Step]) -> bool:
    rest = iter(right)
    return all(any(may_be(each, other) for other in rest) for each in found)


@pytest.mark.parametrize("seed", first_of(range(3), quick=1))
@pytest.mark.parametrize("keeps_index", [True, False])
def test_a_trace_over_damage_is_a_part_of_the_right_one_and_says_so(
    tmp_path: Path, seed: int, keeps_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 8_000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "EVENT_INDEX_BLOCK_BYTES", 600)
    partition = live(tmp_path / "life", seed)
    messages = published(partition)
    right = timelines(partition, messages)
    assert not any(each.incomplete for each in right)
    chance, incomplete = Random(seed), 0
    for number in range(FLIPS):
        copy = tmp_path / str(number)
        shutil.copytree(partition, copy)
        path = chance.choice(sorted((copy / "events").glob("*.log")))
        data = bytearray(path.read_bytes())
        if not data:
            continue
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        if not keeps_index:
            for each in (copy / "events").glob("*.spans"):
                each.unlink()
        for found, whole in zip(timelines(copy, messages), right, strict=True):
            incomplete += bool(found.incomplete)
            if not found.incomplete:
                assert found.steps == whole.steps
            assert is_part(found.steps, whole.steps), (found.steps, whole.steps)
        shutil.rmtree(copy)
    assert incomplete
