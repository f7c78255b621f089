"""A leader whose sync failed has less than its followers: it leads on in another epoch only."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Replica
from goq.config.topic import Fsync, TopicSettings
from tests.support.cluster.replication.agreement import Agreement
from tests.support.cluster.replication.world import KEY, NAMES, World, _values

SEEDS = range(6)
_SETTINGS = replace(TopicSettings(), segment_bytes=2**20, visibility_timeout_ms=2000)


class _Outcome(NamedTuple):
    """What became of a cluster whose leader lost what followers have."""

    is_whole: bool
    """Whether it goes on, and all replicas are in sync and equal."""
    epochs: int
    has_lost: bool
    """Whether anything acknowledged is not where it was said to be."""


def _stay(_agreement: Agreement, _key: PartitionKey) -> None:
    """No other node can lead."""


async def _is_soon(condition: Callable[[], bool]) -> bool:
    """Whether something becomes so within a while of simulated time."""
    for _ in range(300):
        if condition():
            return True
        await asyncio.sleep(0.1)
    return False


def _live(seed: int, fsync: Fsync) -> _Outcome:
    """Let a leader lose what followers have."""
    world = World(seed, replace(_SETTINGS, fsync=fsync))
    outcome: list[_Outcome] = []

    async def story() -> None:
        for name in NAMES:
            world.start(name)
        works = [asyncio.ensure_future(world.produce(n)) for n in range(3)]
        await world.until(lambda: len(world.books.acknowledged) > 20)
        part = world.agreement.parts[KEY]
        assert part.leader is not None
        disk = world.disks[part.leader]
        failed: list[Path] = []

        def fault(operation: str, path: Path) -> int | None:
            if operation == "sync" and path.suffix == ".log" and not failed:
                failed.append(path)
                return errno.EIO
            return None

        disk.reverts_failed_syncs = True
        disk.fault = fault
        await world.until(lambda: failed)
        for work in works:  # a producer whose messages are lost is refused for good
            work.cancel()
        works = [asyncio.ensure_future(world.produce(3 + n)) for n in range(3)]
        stored = len(world.books.acknowledged)
        goes_on = await _is_soon(lambda: len(world.books.acknowledged) > stored + 20)
        world.is_calm = True
        if goes_on:
            await asyncio.wait_for(asyncio.gather(*works), 60)
        is_in_sync = await _is_soon(world.is_in_sync)
        assert world.agreement.parts[KEY].leader == part.leader
        epochs = world.agreement.parts[KEY].leader_epoch - part.leader_epoch
        is_whole = goes_on and is_in_sync and world._are_equal()
        values = _values(world.disks[part.leader])
        acknowledged = world.books.acknowledged.items()
        has_lost = any(values[offset : offset + 1] != [value] for value, offset in acknowledged)
        outcome.append(_Outcome(is_whole, epochs, has_lost))
        for node in list(world.nodes.values()):
            await asyncio.wait_for(node.stop(), 60)

    world.run(story())
    return outcome[0]


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.INTERVAL])
@pytest.mark.parametrize("seed", SEEDS)
def test_followers_end_equal_to_a_leader_that_lost_what_they_had(
    seed: int, fsync: Fsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agreement, "depose", _stay)
    outcome = _live(seed, fsync)
    assert outcome[:2] == (True, 1)
    assert not outcome.has_lost or fsync is Fsync.INTERVAL


def test_in_the_same_epoch_followers_would_keep_what_the_leader_has_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Agreement, "depose", _stay)
    monkeypatch.setattr(Replica, "_is_spent", lambda *_: False)
    assert (False, 0) in [_live(seed, Fsync.ALWAYS)[:2] for seed in SEEDS]
