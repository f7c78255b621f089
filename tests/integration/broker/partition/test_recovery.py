"""What a restart finds is what was live: random traffic, copies of the folder, crashes, damage."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.broker.events import writer
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.delivery.group.group import Group
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.frame.encoder import ProducerMark
from goq.model import Receipt
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    frame,
    leased,
    nack,
    options,
    publish,
    quick_broker_on,
    quiet,
    receipts,
    reopened,
    run,
    settle_acked,
    settle_nacked,
    trim,
)
from tests.support.broker.partition_internals import event_log, event_writer, message_log, state_of
from tests.support.delivery.model import canonical
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.folder_copy import copy_in_use


async def _check_copy(topic: Topic, path: Path) -> None:
    """A node that starts on a copy of the folder has the state that is live."""
    partition = topic.partitions[0]
    await quiet(partition)
    copy = path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy_in_use(topic.directory / "0", copy)
    assert canonical(reopened(copy).state) == canonical(state_of(partition))


async def _random_step(
    topic: Topic, clock: ManualClock, rng: random.Random, held: list[LeasedBatch]
):
    partition, group = topic.partitions[0], rng.choice("gh")
    kind = rng.randrange(12)
    if kind < 3:
        mark = ProducerMark(rng.randint(1, 3), 1, 0)
        known = {p: (e, b) for p, e, b in state_of(partition).producers.snapshot().producers}
        if mark.producer_id in known:
            last = known[mark.producer_id][1][-1]
            mark = mark.__class__(mark.producer_id, 1, last[0] + last[1])
        values = [b"%d" % rng.randrange(100) for _ in range(rng.randint(1, 9))]
        await topic.publisher.publish_frames([(0, frame(*values, mark=mark))])
    elif kind < 7:
        held += await topic.receiver.receive(group, options(rng.randint(1, 6), visibility_ms=50))
    elif kind < 9 and held:
        chosen = receipts([rng.choice(held)])
        await settle_acked(topic, group, chosen)
    elif kind < 10 and held:
        delay_ms = rng.choice([0, 100])
        chosen = receipts([rng.choice(held)])
        await settle_nacked(topic, group, chosen, delay_ms)
    elif kind < 11:
        clock.advance_ms(rng.choice([1, 60, -5]))
        partition._timers._on_time()
    else:
        end = partition.end_offset
        start = rng.randint(0, end)
        await partition.reset(group, start, rng.choice([None, rng.randint(start, end)]))


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_of_the_folder_opens_with_the_state_that_is_live(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if seed % 2:  # snapshots at every turn, at heads of segments and between
        monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1500)
        monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 3)
        monkeypatch.setattr(writer, "GROUPS_AT_ONCE", 1)
        monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 2000)

    async def main() -> None:
        clock, held, metadata = ManualClock(), list[LeasedBatch](), MemoryMetadata()
        for _ in range(3):
            async with quick_broker_on(
                tmp_path,
                clock=clock,
                metadata=metadata,
                snapshot_limits=SnapshotLimits(2, 3, 1) if seed % 2 else DEFAULT_SNAPSHOT_LIMITS,
                fsync="never",
            ) as broker:
                topic = await broker.topic_admin.topic_for_publish("t")
                for step in range(60):
                    await _random_step(topic, clock, rng, held)
                    if step % 15 == 0:
                        await _check_copy(topic, tmp_path)
                await quiet(topic.partitions[0])
                state = canonical(state_of(topic.partitions[0]))
                if seed % 2:
                    assert len(event_log(topic.partitions[0]).segments) > 1
            assert canonical(reopened(tmp_path / "topics/t/0").state) == state

    run(main())


class _Ledger:
    """What clients were promised."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.tried: set[int] = set()
        self.sent = 0


async def _use(topic: Topic, ledger: _Ledger, rng: random.Random) -> None:
    """Publish and consume until the disk gives up."""

    async def producer() -> None:
        for _ in range(rng.randint(1, 12)):
            value = b"%d" % ledger.sent
            ledger.sent += 1
            (offset,) = await publish(topic, value)
            assert offset not in ledger.stored
            ledger.stored[offset] = value

    async def consumer() -> None:
        for _ in range(rng.randint(1, 12)):
            found = await topic.receiver.receive(
                "g", options(rng.randint(1, 4), visibility_ms=10**7)
            )
            for offset, _, value in leased(found):
                assert offset not in ledger.acked
                assert ledger.stored.get(offset, value) == value
            if found and rng.random() < 0.7:
                ledger.tried |= {offset for offset, _, _ in leased(found)}
                await ack(topic, "g", found)
                ledger.acked |= {offset for offset, _, _ in leased(found)}
            elif found:
                await nack(topic, "g", found, 0)
            await asyncio.sleep(0)

    work = [producer(), producer(), consumer(), consumer()]
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, AssertionError):
            raise result


async def _check_ledger(topic: Topic, ledger: _Ledger) -> None:
    partition = topic.partitions[0]
    reading = partition.read(0, messages_max=10**6)
    assert not reading.damage
    values = [v for f in reading.frames for v in f.values(0, f.header.message_count)]
    for offset, value in ledger.stored.items():
        assert values[offset] == value
    await partition.reset("all", 0)
    seen: set[int] = set()
    for group, skipped in (("all", set[int]()), ("g", ledger.acked)):
        left = set(range(len(values))) - skipped
        for lease in list(state_of(partition).group(group).leases.values()):
            given = [Receipt(0, lease.token, p.start, p.end) for p in lease.parts]
            await settle_nacked(topic, group, given, 0)
        seen = set()
        while found := await topic.receiver.receive(group, options(100)):
            seen |= {offset for offset, _, _ in leased(found)}
        assert not seen & skipped, "an acknowledged ack came back"
        tried = ledger.tried if group == "g" else set()  # an ack whose answer was lost may hold
        assert left - tried <= seen <= left


def _crash_rounds(seed: int, rounds: int, frame_weight_max: int) -> _Ledger:
    rng, ledger = random.Random(seed), _Ledger()
    small = SnapshotLimits(frame_weight_max=frame_weight_max)

    async def main() -> None:
        disk, metadata = SimulatedDisk(random.Random(seed)), MemoryMetadata()
        base = Path("/simulated")
        for _ in range(rounds):
            disk.crash_at = disk.operations + rng.randint(20, 90)
            try:
                async with quick_broker_on(
                    base, disk=disk, metadata=metadata, snapshot_limits=small
                ) as broker:
                    topic = await broker.topic_admin.topic_for_publish("t")
                    await _use(topic, ledger, rng)
            except Exception as error:
                if isinstance(error, AssertionError) or not disk._crashing:
                    raise
            disk.crash(power=rng.random() < 0.7)
            async with quick_broker_on(
                base, disk=disk.copy(), metadata=_copy(metadata), snapshot_limits=small
            ) as broker:
                if "t" in broker.topics:
                    await _check_ledger(broker.topics["t"], ledger)

    run(main())
    return ledger


def _copy(metadata: MemoryMetadata) -> MemoryMetadata:
    other = MemoryMetadata()
    other.epoch, other.rows = metadata.epoch, dict(metadata.rows)
    return other


@pytest.mark.parametrize("seed", first_of(range(12), quick=5))
def test_after_any_crash_what_was_acknowledged_holds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1000)
        monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 3)
        monkeypatch.setattr(writer, "GROUPS_AT_ONCE", 1)
    frame_weight_max = 2 if seed % 2 else DEFAULT_SNAPSHOT_LIMITS.frame_weight_max
    ledger = _crash_rounds(seed, 8, frame_weight_max)
    assert len(ledger.stored) > 10
    assert ledger.acked


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_after_very_many_crashes_what_was_acknowledged_holds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 3)
    monkeypatch.setattr(writer, "GROUPS_AT_ONCE", 1)
    _crash_rounds(seed, 15, 2)


def test_messages_published_after_a_power_cut_took_others_are_not_skipped(
    tmp_path: Path,
) -> None:
    """With unsynced messages gone and their leases and acks kept, offsets are used again."""

    async def main() -> None:
        metadata = MemoryMetadata()
        async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            mark = ProducerMark(5, 1, 0)
            await topic.publisher.publish_frames([(0, frame(b"a", mark=mark))])
            kept = tmp_path / "kept"
            await quiet(topic.partitions[0])
            copy_in_use(topic.directory / "0" / "messages", kept)
            lost = ProducerMark(5, 1, 1)
            await topic.publisher.publish_frames([(0, frame(b"lost", b"lost", mark=lost))])
            await ack(topic, "g", await topic.receiver.receive("g", options()))
            await topic.receiver.receive("h", options())
        messages = tmp_path / "topics/t/0/messages"
        shutil.rmtree(messages)
        shutil.move(kept, messages)
        for expected in (b"new", b"newer"):
            async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
                topic = broker.topic("t")
                state = state_of(topic.partitions[0])
                assert state.known_end() <= state.end_offset
                again = ProducerMark(5, 1, state.end_offset)
                (stored,) = await topic.publisher.publish_frames([(0, frame(expected, mark=again))])
                assert not stored.duplicate
                if expected == b"newer":
                    assert [
                        v for _, _, v in leased(await topic.receiver.receive("g", options()))
                    ] == [
                        b"new",
                        b"newer",
                    ]
                    assert [
                        v for _, _, v in leased(await topic.receiver.receive("h", options()))
                    ] == [
                        b"new",
                        b"newer",
                    ]

    run(main())


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(25))
def test_damaged_events_bring_acked_messages_back_but_never_skip_one(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        metadata, acked = MemoryMetadata(), set[int]()
        async with quick_broker_on(tmp_path, metadata=metadata, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"%d" % n for n in range(60)])
            held: list[LeasedBatch] = []
            for _ in range(rng.randint(3, 25)):
                held += await topic.receiver.receive("g", options(rng.randint(1, 4)))
                if held and rng.random() < 0.7:
                    some = [held.pop(rng.randrange(len(held)))]
                    if rng.random() < 0.6:
                        acked |= {o for o, _, _ in leased(some)}
                        await ack(topic, "g", some)
                    else:
                        await nack(topic, "g", some, 0)
        (events,) = (tmp_path / "topics/t/0/events").glob("*.log")
        for _ in range(rng.randint(1, 3)):
            _flip(events, rng.randrange(events.stat().st_size))
        (tmp_path / "topics/t/0/events/watermark").unlink()  # so that every byte is read again
        async with quick_broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            state = state_of(topic.partitions[0])
            for lease in list(state.group("g").leases.values()):
                given = [Receipt(0, lease.token, p.start, p.end) for p in lease.parts]
                await settle_nacked(topic, "g", given, 0)
            seen: list[int] = []
            while found := await topic.receiver.receive("g", options(100)):
                seen += [offset for offset, _, _ in leased(found)]
            assert len(set(seen)) == len(seen)
            assert set(range(60)) - acked <= set(seen)

    run(main())


async def _busy_group(topic: Topic, turns: int) -> None:
    for _ in range(turns):
        await publish(topic, b"x", b"y")
        found = await topic.receiver.receive("g", options(2))
        await ack(topic, "g", found)
    await topic.receiver.receive("g", options(1))


@pytest.fixture
def _small_event_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 3)
    monkeypatch.setattr(writer, "GROUPS_AT_ONCE", 1)


@pytest.mark.usefixtures("_small_event_segments")
def test_every_later_segment_of_events_begins_with_all_there_is_to_know(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await _busy_group(topic, 30)
            partition = topic.partitions[0]
            await quiet(partition)
            state, segments = canonical(state_of(partition)), event_log(partition).segments
            assert len(segments) > 2
            copy = tmp_path / "copy"
            copy_in_use(topic.directory / "0", copy)
        events = copy / "events"
        for path in sorted(events.glob("*.log"))[:-1]:
            path.unlink()
            path.with_suffix(".index").unlink()
        assert canonical(reopened(copy).state) == state

    run(main())


@pytest.mark.usefixtures("_small_event_segments")
def test_a_damaged_snapshot_falls_back_to_the_segment_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await _busy_group(topic, 30)
            partition = topic.partitions[0]
            await quiet(partition)
            state = canonical(state_of(partition))
            copy = tmp_path / "copy"
            copy_in_use(topic.directory / "0", copy)
        newest = sorted((copy / "events").glob("*.log"))[-1]
        _flip(newest, 75)
        opened = reopened(copy)
        assert opened.snapshot_sequence < int(newest.stem)
        assert canonical(opened.state) == state

    run(main())


def test_events_after_a_snapshot_that_a_crash_cut_short_are_not_lost(
    tmp_path: Path,
) -> None:
    small = SnapshotLimits(frame_weight_max=1)

    async def main() -> None:
        metadata, disk = MemoryMetadata(), BrokenDisk()
        async with quick_broker_on(
            tmp_path, metadata=metadata, disk=disk, snapshot_limits=small
        ) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"%d" % n for n in range(6)])
            await ack(topic, "g", await topic.receiver.receive("g", options(2)))
            partition = topic.partitions[0]
            await quiet(partition)
            (events,) = (topic.directory / "0" / "events").glob("*.log")
            before = events.stat().st_size
            event_writer(partition)._record_snapshot(begins_segment=False)
            await quiet(partition)
            recorder = event_writer(partition)
            recorder._snapshot_sequence = recorder._next_sequence  # none at close
            recorder._bytes_since_snapshot = 0
        data = events.read_bytes()
        size = int.from_bytes(data[before + 4 : before + 8], "little")
        with events.open("r+b") as file:
            file.truncate(before + size)  # only the first frame of the snapshot
        (tmp_path / "topics/t/0/events/watermark").unlink()
        for _ in range(2):
            async with quick_broker_on(tmp_path, metadata=metadata) as broker:
                topic = broker.topic("t")
                await ack(topic, "g", await topic.receiver.receive("g", options(2)))
                await quiet(topic.partitions[0])
                copy = tmp_path / "copy"
                shutil.rmtree(copy, ignore_errors=True)
                copy_in_use(topic.directory / "0", copy)
                assert canonical(reopened(copy).state) == canonical(state_of(topic.partitions[0]))

    run(main())


def test_retention_keeps_the_events_that_a_rebuild_begins_with(
    tmp_path: Path,
) -> None:
    """The newest segment of events begins with a snapshot that a crash cut short."""
    small = SnapshotLimits(frame_weight_max=1)

    async def main() -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        async with quick_broker_on(
            tmp_path, metadata=metadata, clock=clock, snapshot_limits=small
        ) as broker:
            topic = await broker.topic_admin.create("t")
            partition = _small_segments(topic, 100)
            for _ in range(6):
                await publish(topic, b"x" * 100)
            await ack(topic, "g", await topic.receiver.receive("g", options(5)))
            event_writer(partition)._record_snapshot(begins_segment=True)
            await quiet(partition)
            recorder = event_writer(partition)
            recorder._snapshot_sequence = recorder._next_sequence  # none at close
            recorder._bytes_since_snapshot = 0
        newest = sorted((tmp_path / "topics/t/0/events").glob("*.log"))[-1]
        size = int.from_bytes(newest.read_bytes()[4:8], "little")
        with newest.open("r+b") as file:
            file.truncate(size)  # only the first frame of the snapshot
        (tmp_path / "topics/t/0/events/watermark").unlink()
        clock.advance_ms(10**6)
        async with quick_broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            topic = broker.topic("t")
            partition = _small_segments(topic, 100)
            assert event_log(partition).start_offset == 0
            assert len(event_log(partition).segments) == 2
            await publish(topic, b"y" * 100)
            await partition.trimmer.roll()
            await publish(topic, b"y" * 100)
            await trim(partition, 6)
            assert partition.log_start_offset == 6
            assert event_log(partition).start_offset == 0
            await _check_copy(topic, tmp_path)
            event_writer(partition)._record_snapshot(begins_segment=True)
            await quiet(partition)
            await partition.trimmer.roll()
            await trim(partition, 7)
            assert event_log(partition).start_offset > 0
            await _check_copy(topic, tmp_path)

    run(main())


@pytest.mark.usefixtures("_small_event_segments")
def test_much_publishing_and_few_events_still_begin_new_segments_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10**9)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 1000)

    async def main() -> None:
        async with quick_broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(40):
                await publish(topic, b"x" * 300)
                await ack(topic, "g", await topic.receiver.receive("g", options(5)))
            await quiet(topic.partitions[0])
            assert len(event_log(topic.partitions[0]).segments) > 2
            await _check_copy(topic, tmp_path)

    run(main())


def _small_segments(topic: Topic, size_bytes: int) -> Partition:
    partition = topic.partitions[0]
    message_log(partition).config = replace(message_log(partition).config, segment_bytes=size_bytes)
    return partition


@pytest.mark.usefixtures("_small_event_segments")
def test_retention_deletes_messages_and_the_events_that_spoke_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with quick_broker_on(
            tmp_path, clock=clock, metadata=metadata, retention__age="1h"
        ) as broker:
            topic = await broker.topic_admin.create("t")
            partition = _small_segments(topic, 600)
            for number in range(40):
                clock.advance_ms(120_000)
                await publish(topic, b"%03d" % number * 10)
                found = await topic.receiver.receive("g", options(1))
                await ack(topic, "g", found)
                if number == 3:
                    await topic.receiver.receive("slow", options(2, visibility_ms=40_000_000))
            await quiet(partition)
            await until(lambda: len(metadata.segment_keys) > 5)
            await broker.retention_manager.apply()
            assert 0 < partition.log_start_offset < 15
            assert event_log(partition).start_offset > 0
            assert state_of(partition).start_offset == partition.log_start_offset
            logs = {log for _, _, log, _ in metadata.segment_keys}
            assert logs == {"messages", "events"}
            first = min(k[3] for k in metadata.segment_keys if k[2] == "events")
            assert first == event_log(partition).start_offset
            slow = await topic.receiver.receive("slow", options(100))
            assert leased(slow)[0][0] == partition.log_start_offset
            await _check_copy(topic, tmp_path)
            files = len(list((topic.directory / "0" / "messages").glob("*.log")))
            assert files == len(message_log(partition).segments)

    run(main())


def test_receives_and_trims_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with quick_broker_on(tmp_path, disk=disk, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            partition = _small_segments(topic, 400)
            for number in range(200):
                await publish(topic, b"%03d" % number * 10)
            seen: list[int] = []

            async def consume() -> None:
                while found := await topic.receiver.receive("g", options(3)):
                    disk.cold = 1
                    for offset, _, value in leased(found):
                        assert value == b"%03d" % offset * 10
                        seen.append(offset)
                    given = receipts(found)  # void where retention was faster
                    await settle_acked(topic, "g", given)

            async def trim_often() -> None:
                for offset in range(0, 150, 5):
                    await trim(partition, offset)

            await asyncio.gather(consume(), consume(), trim_often())
            assert len(set(seen)) == len(seen)
            assert set(range(150, 200)) <= set(seen)
            await _check_copy(topic, tmp_path)

    run(main())


def test_an_expired_lease_comes_back_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            found = await topic.receiver.receive("g", options(visibility_ms=5))
            waiting = asyncio.ensure_future(topic.receiver.receive("g", options(wait_ms=60_000)))
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            clock.advance_ms(5)
            assert leased(await waiting) == [(0, 2, b"x")]
            assert topic.stats.expired_messages == 1
            done, lost = await settle_acked(topic, "g", receipts(found))
            assert (done, len(lost)) == (0, 1)

    run(main())


def test_leases_and_retries_keep_their_times_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"a", b"b")
            held = await topic.receiver.receive("g", options(1, visibility_ms=40))
            await nack(topic, "g", await topic.receiver.receive("g", options(1)), 20)
        async with quick_broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert await topic.receiver.receive("g", options()) == []
            waiting = asyncio.ensure_future(topic.receiver.receive("g", options(wait_ms=60_000)))
            await until(lambda: topic.receiver.waiters.count("g") == 1)
            clock.advance_ms(20)
            assert leased(await waiting) == [(1, 2, b"b")]
            assert await ack(topic, "g", held) == 1

    run(main())


def test_a_lease_that_expires_costs_nothing_for_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"x")
            for number in range(50):
                visibility_ms = 1000 if number % 25 == 3 else 1_000_000
                await topic.receiver.receive(f"g{number}", options(visibility_ms=visibility_ms))
            looked_at: list[str] = []
            expired = Group.expired

            def looking(group: Group, now_ms: int) -> Any:
                looked_at.append(group.name)
                return expired(group, now_ms)

            monkeypatch.setattr(Group, "expired", looking)
            partition = topic.partitions[0]
            for _ in range(3):
                clock.advance_ms(500)
                partition._timers._on_time()
            assert {*looked_at} == {"g3", "g28"}
            assert topic.stats.expired_messages == 2
            clock.advance_ms(1_000_000)
            await until(lambda: topic.stats.expired_messages == 50)

    run(main())


def test_very_many_leases_that_expire_together_leave_the_loop_room(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with quick_broker_on(tmp_path, clock=clock, fsync="never") as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, *[b"x"] * 3000)
            for _ in range(3000):
                await topic.receiver.receive("g", options(1, visibility_ms=1_000_000))
            partition = topic.partitions[0]
            clock.advance_ms(1_000_000)
            partition._timers._on_time()
            assert 0 < topic.stats.expired_messages < 1000
            await until(lambda: topic.stats.expired_messages == 3000)
            assert len(leased(await topic.receiver.receive("g", options(3000)))) == 3000

    run(main())
