"""What replication costs on three hosts, each with a disk of its own: a model in simulated time.

Work on a disk and the way to another host take fixed times, and nothing else takes any. Where large
batches are written, each of their bytes takes some, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from statistics import median
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from goq.config.topic import TopicSettings
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.cluster.replication.loop import SimExecutor
from tests.support.cluster.replication.network import SimNetwork
from tests.support.cluster.replication.world import KEY, NAMES, World
from tests.support.storage.disk import _SimulatedFile

OTHER = KEY._replace(number=1)
SYNC_S = 0.001
WRITE_BYTES_PER_S = 200_000_000
WAY_S = 0.0001
PUBLISHERS = 64
_SETTINGS = replace(TopicSettings(), segment_bytes=2**24)


class _NoChance:
    """Every piece of work on a disk takes as long as a sync."""

    @staticmethod
    def expovariate(_rate: float) -> float:
        return SYNC_S


@pytest.fixture(autouse=True)
def fixed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimExecutor.__init__

    def init(self: SimExecutor, loop: object, _random: object, *rest: object) -> None:
        original(self, loop, _NoChance(), *rest)

    monkeypatch.setattr(SimExecutor, "__init__", init)
    monkeypatch.setattr(SimNetwork, "delay_s", lambda *_: WAY_S)


@pytest.fixture
def slow_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a thread that writes take longer for each byte; what it does is seen at its end."""
    append, written = _SimulatedFile.append, Counter[str]()

    def append_counted(self: _SimulatedFile, buffers: Sequence[bytes], **options: bool) -> None:
        written["bytes"] += sum(map(len, buffers))
        append(self, buffers, **options)

    def submit(self: SimExecutor, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        done, reports = Future[Any](), list[tuple[Any, ...]]()
        before = written["bytes"]
        with patch.object(self._loop, "call_soon_threadsafe", lambda *call: reports.append(call)):
            result = work(*arguments)
        took_s = SYNC_S + (written["bytes"] - before) / WRITE_BYTES_PER_S

        def end() -> None:
            for report, *values in reports:
                report(*values)
            done.set_result(result)

        self._loop.call_later(took_s, end)
        return done

    monkeypatch.setattr(_SimulatedFile, "append", append_counted)
    monkeypatch.setattr(SimExecutor, "submit", submit)


def _latencies(
    hosts: int,
    publishers: int,
    each: int,
    messages: Sequence[bytes] = (b"x" * 100,),
    *,
    beside: Sequence[bytes] = (),
) -> tuple[list[float], float]:
    """Return how long publishes took on so many hosts, and how many there were in a second.

    ``beside`` them batches of these messages go to another partition, one after the other.
    """
    world = World(1, _SETTINGS)
    names = NAMES[:hosts]
    part = world.agreement.parts[KEY]
    for key in (KEY, OTHER):
        world.agreement.parts[key] = part._replace(
            in_sync=names, replicas=names, min_insync=min(hosts, 2)
        )
    frame = FrameView.parse(encode_frame(Columns(messages)))
    took_s: list[float] = []

    async def publish(count: int) -> None:
        leader = world.leader()
        assert leader is not None
        for _ in range(count):
            began_s = world.loop.time()
            await leader.partition(KEY).appender.publish(frame)
            took_s.append(world.loop.time() - began_s)

    async def publish_beside() -> None:
        leader, batch = world.leader(), FrameView.parse(encode_frame(Columns(beside)))
        assert leader is not None
        while True:
            await leader.partition(OTHER).appender.publish(batch)

    def is_ready() -> bool:
        leader = world.leader()
        topic = None if leader is None else leader.topics.get(KEY.topic)
        is_led = topic is not None and all(map(topic.partitions.get, (KEY.number, OTHER.number)))
        return is_led and leader is not None and len(leader.streams) == hosts - 1

    async def story() -> float:
        for name in names:
            world.start(name)
        await world.until(is_ready)
        for _ in range(20):  # until followers are pushed to
            await publish(1)
            await asyncio.sleep(0.1)
        if beside:
            publishing = asyncio.ensure_future(publish_beside())
            await asyncio.sleep(0.5)
        took_s.clear()
        began_s = world.loop.time()
        await asyncio.gather(*(publish(each) for _ in range(publishers)))
        rate = publishers * each / (world.loop.time() - began_s)
        if beside:
            publishing.cancel()
        return rate

    rate = world.run(story())
    return took_s, rate


def test_a_publish_takes_a_sync_and_a_round_trip() -> None:
    took_s, _ = _latencies(3, 1, 100)
    assert median(took_s) <= 1.3 * SYNC_S + 2 * WAY_S
    alone_s, _ = _latencies(1, 1, 100)
    assert median(alone_s) == pytest.approx(SYNC_S)


def test_a_batch_of_a_megabyte_takes_a_sync_and_a_round_trip_too() -> None:
    took_s, _ = _latencies(3, 1, 5, [b"x" * 1000] * 1000)
    assert median(took_s) <= 1.3 * SYNC_S + 2 * WAY_S


@pytest.mark.usefixtures("slow_bytes")
def test_a_small_publish_waits_for_no_large_batch_of_another_partition() -> None:
    took_s, _ = _latencies(3, 1, 20, beside=[b"x" * 1000] * 1800)
    assert max(took_s) <= 1.3 * SYNC_S + 2 * WAY_S


def test_many_publishers_reach_four_fifths_of_what_they_do_on_one_host() -> None:
    _, rate = _latencies(3, PUBLISHERS, 10)
    _, alone = _latencies(1, PUBLISHERS, 10)
    assert rate >= 0.8 * alone
