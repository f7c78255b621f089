"""A new leader shows nothing before all in-sync replicas have what its logs held at first."""

from __future__ import annotations

import asyncio

import pytest

from goq import limits
from goq.cluster.replication.leader import LeaderReplica
from goq.errors import GoqError
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.cluster.replication.node import SimNode
from tests.support.cluster.replication.world import KEY, NAMES, World


async def _read_log(world: World, node: SimNode) -> None:
    """Read a node's log again and again, as a client does, and keep what it shows."""
    while not node.is_dead:
        await asyncio.sleep(0.01)
        try:
            reading = node.partition(KEY).read(0, messages_max=1000)
        except GoqError:
            continue
        for view in reading.frames:
            for number, value in enumerate(view.values(0, view.header.message_count)):
                offset = view.header.base_offset + number
                if world.books.shown.setdefault(offset, value or b"") != value:
                    world.books.problems.append(f"{offset} was another message, now {value!r}")


async def _publish(node: SimNode, value: bytes) -> int:
    view = FrameView.parse(encode_frame(Columns([value])))
    return (await node.partition(KEY).appender.publish(view)).offset


def _cut(world: World, one: str, other: str) -> None:
    world.network.cut |= {(one, other), (other, one)}


def _has(node: SimNode, end: int) -> bool:
    replica = node.replicas.get(KEY)
    follower = replica.as_follower if replica is not None else None
    return follower is not None and follower.position.ends.messages == end


def _leads(node: SimNode) -> bool:
    replica = node.replicas.get(KEY)
    return replica is not None and replica.as_leader is not None


async def _lose_two_leaders(world: World) -> None:
    """The first leader's last message reaches the second only, which dies before it passes it on.

    The third leads then, without that message: it must never have been shown.
    """
    for name in NAMES:
        world.start(name)
    await world.until(world.is_in_sync)
    first = world.leader()
    assert first is not None
    await world.until(lambda: KEY.topic in first.topics)
    second, third = (world.nodes[name] for name in NAMES if name != first.name)
    readers = [asyncio.ensure_future(_read_log(world, node)) for node in world.nodes.values()]
    await _publish(first, b"safe")
    await world.until(world._are_equal)
    _cut(world, first.name, third.name)
    unsafe = asyncio.ensure_future(_publish(first, b"unsafe"))
    await world.until(lambda: _has(second, 2))
    _cut(world, second.name, third.name)
    world.agreement.unfit.add(third.name)
    first.crash(power=False)
    unsafe.cancel()
    world.agreement.leave(first.name)
    assert world.agreement.parts[KEY].in_sync == tuple(sorted((second.name, third.name)))
    await world.until(lambda: _leads(second))
    await asyncio.sleep(0.2)
    assert set(world.agreement.parts[KEY].in_sync) == {second.name, third.name}
    world.agreement.unfit.clear()
    second.crash(power=False)
    world.agreement.leave(second.name)
    world.network.cut.clear()
    world.start(first.name)
    await world.until(lambda: _leads(third))
    await world.until(lambda: len(world.agreement.parts[KEY].in_sync) == 2)
    await world.until(lambda: KEY.topic in third.topics)
    await _publish(third, b"other")
    await asyncio.sleep(1)
    for reader in readers:
        reader.cancel()


@pytest.mark.parametrize("seed", range(4))
def test_a_message_that_only_dead_leaders_had_was_never_shown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLICA_LAG_MS_MAX", 60_000)
    world = World(seed)
    world.run(_lose_two_leaders(world))
    assert world.books.shown == {0: b"safe", 1: b"other"}
    assert not world.books.problems


@pytest.mark.parametrize("seed", range(4))
def test_without_the_rule_such_a_message_is_shown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLICA_LAG_MS_MAX", 60_000)
    monkeypatch.setattr(LeaderReplica, "is_caught_up", property(lambda _self: True))
    world = World(seed)
    world.run(_lose_two_leaders(world))
    assert world.books.problems
