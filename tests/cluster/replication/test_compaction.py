"""Compaction on leaders that change: whoever leads, a key is what was written to it last.

Replicas do not have the same bytes then: each has compacted what it had when it led. What a reader
makes of them is the same, and no key that was deleted comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from goq import limits
from goq.broker.partition.compactor import CompactionResources
from goq.config.topic import Cleanup, TopicSettings
from goq.errors import GoqError
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.cluster.replication.loop import SimExecutor
from tests.support.cluster.replication.world import KEY, NAMES, World
from tests.support.effort import first_of

KEYS = [b"k%d" % n for n in range(150)]
SETTINGS = replace(
    TopicSettings(), segment_bytes=1024, cleanup=Cleanup.COMPACT, tombstone_age_ms=100
)
FOLDER = "t/0/messages"
Written = dict[bytes, bytes]


class CompactionWorld(World):
    """Nodes whose leader compacts all the time; producers overwrite and delete a few keys."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SETTINGS)
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.compacted = 0

    async def produce(self, number: int) -> None:
        sequence = 0
        while not self.is_calm:
            count = self.random.randint(1, 4)
            keys = [self.random.choice(KEYS) for _ in range(count)]
            values = [
                None if self.random.random() < 0.3 else b"%d/%d" % (number, sequence + n)
                for n in range(count)
            ]
            mark = ProducerMark(number + 1, 1, sequence)
            view = FrameView.parse(encode_frame(Columns(values, keys=keys), producer=mark))
            offset = await self._until_stored(view)
            self.written |= dict(enumerate(zip(keys, values, strict=True), offset))
            sequence += count
            await asyncio.sleep(self.random.expovariate(1 / 0.02))

    async def compact(self) -> None:
        """Compact wherever the partition is led."""
        means = CompactionResources(
            SimExecutor(self.loop, self.random, lambda: False), bytes(32), 1000, 0
        )
        while True:
            await asyncio.sleep(self.random.expovariate(1 / 0.2))
            for node in self.nodes.values():
                try:
                    compaction = node.partition(KEY).compactor
                    means = means._replace(now_us=node.clock.wall_us())
                    if await compaction.is_due(self.settings, means):
                        self.compacted += await compaction.run(self.settings, means)
                except (GoqError, OSError):
                    continue

    async def _crash_one(self) -> None:
        """A node is away for long: tombstones come and go meanwhile."""
        name = self.random.choice(NAMES)
        self.nodes[name].crash(power=False)
        self.agreement.leave(name)
        await asyncio.sleep(self.random.uniform(1, 5))
        self.start(name)

    async def live(self, seconds: float) -> None:
        for name in NAMES:
            self.start(name)
        producers = [asyncio.ensure_future(self.produce(n)) for n in range(2)]
        others = [asyncio.ensure_future(self.compact())]
        others += [asyncio.ensure_future(self.rot())] if self.rots_on is not None else []
        await self.torment(seconds)
        self.is_calm = True
        self.network.cut.clear()
        self.network.slow.clear()
        async with asyncio.timeout(60):
            await asyncio.gather(*producers)
        for each in others:
            each.cancel()
        await asyncio.sleep(3 * limits.SCRUB_PAUSE_S)  # by then all that is damaged is known
        await self.until(lambda: self.is_in_sync() and not any(map(self._damage, NAMES)))
        for node in list(self.nodes.values()):
            await node.stop()
        for name in NAMES:
            assert read(self._log_of(name)) == self._expected(), name

    def _damage(self, name: str) -> object:
        return self.nodes[name].repairs.damaged

    def _log_of(self, name: str) -> Log:
        return Log.open(self.nodes[name].directory(KEY) / "messages", self.disks[name])

    def _expected(self) -> Written:
        newest = dict(self.written[offset] for offset in sorted(self.written))
        return {key: value for key, value in newest.items() if value is not None}


def read(log: Log) -> Written:
    """Return what a reader of a whole log has in the end."""
    found: Written = {}
    for key, value in _messages(log):
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def _messages(log: Log) -> Iterator[tuple[bytes, bytes | None]]:
    reading = log.reader.read(0, log.end_offset, messages_max=2**40, bytes_max=2**40)
    assert not reading.damage
    for view in reading.frames:
        count = view.header.message_count
        rows = zip(view.kept(0, count), view.keys(0, count), view.values(0, count), strict=True)
        for is_kept, key, value in rows:
            if is_kept and key is not None:
                yield key, value


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "REPLICA_LAG_MS_MAX", 300)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 1.0)


@pytest.mark.parametrize("seed", first_of(range(16), quick=3))
def test_no_key_comes_back_however_leaders_change(seed: int) -> None:
    world = CompactionWorld(seed)
    world.run(world.live(15))
    assert not world.loop.unexpected
    assert world.compacted


@pytest.mark.parametrize("seed", first_of(range(16, 24), quick=3))
def test_no_key_comes_back_with_what_is_mended(seed: int) -> None:
    world = CompactionWorld(seed)
    world.rots_on = NAMES[seed % len(NAMES)]
    world.run(world.live(15))
    assert not world.loop.unexpected
    assert world.compacted
