"""A leader whose sync failed has less than its followers: it leads on in another epoch only."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import Replica
from goq.config.topic import Fsync, TopicSettings
from tests.support.cluster.replication.agreement import Agreement
from tests.support.cluster.replication.world import KEY, NAMES, World

SEEDS = range(6)
_SETTINGS = replace(
    TopicSettings(), segment_bytes=2**20, visibility_timeout_ms=2000, fsync=Fsync.INTERVAL
)


def _stay(_agreement: Agreement, _key: PartitionKey) -> None:
    """No other node can lead."""


async def _is_soon(condition: Callable[[], bool]) -> bool:
    """Whether something becomes so within a while of simulated time."""
    for _ in range(300):
        if condition():
            return True
        await asyncio.sleep(0.1)
    return False


def _live(seed: int) -> tuple[bool, int]:
    """Let a leader lose what followers have; tell if all go on equal, and the epochs."""
    world = World(seed, _SETTINGS)
    outcome: list[tuple[bool, int]] = []

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
        outcome.append((goes_on and is_in_sync and world._are_equal(), epochs))
        for node in list(world.nodes.values()):
            await asyncio.wait_for(node.stop(), 60)

    world.run(story())
    return outcome[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_followers_end_equal_to_a_leader_that_lost_what_they_had(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agreement, "depose", _stay)
    assert _live(seed) == (True, 1)


def test_in_the_same_epoch_followers_would_keep_what_the_leader_has_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Agreement, "depose", _stay)
    monkeypatch.setattr(Replica, "_is_spent", lambda *_: False)
    assert (False, 0) in [_live(seed) for seed in SEEDS]
