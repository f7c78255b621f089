"""Each rule of replication is needed: without it, the simulation finds a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from goq import limits
from goq.broker.log.admission import Admission
from goq.broker.partition import appender
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionUpdate
from goq.cluster.replication.push.sender import PushSender
from tests.support.cluster.replication.world import World
from tests.support.storage.disk import _SimulatedFile

SEEDS = 150
Patch = pytest.MonkeyPatch


def _shows_what_the_leader_alone_has(patch: Patch) -> None:
    def advance(self: ReplicaProgress) -> None:
        self.high_watermark = self.ends

    patch.setattr(ReplicaProgress, "_advance", advance)


def _lets_anybody_into_the_in_sync_set(patch: Patch) -> None:
    def wanted(self: ReplicaProgress, _now_ms: int, _lag_ms_max: int) -> frozenset[str] | None:
        everybody = frozenset({self.node, *self._followers})
        return everybody if everybody != self.in_sync and self._proposed is None else None

    def counts(self: ReplicaProgress, _in_sync: object) -> None:
        self._proposed = self.in_sync

    patch.setattr(ReplicaProgress, "desired_in_sync", wanted)
    patch.setattr(ReplicaProgress, "begin_change", counts)


def _never_looks_where_logs_part(patch: Patch) -> None:
    original = LeaderReplica.read_update

    def news(self: LeaderReplica, position: object, *, is_checked: bool, bytes_max: int) -> object:
        return original(self, position, is_checked=True, bytes_max=bytes_max)

    patch.setattr(LeaderReplica, "read_update", news)


def _follows_whatever_the_epoch(patch: Patch) -> None:
    original = FollowerReplica.apply

    def take(self: FollowerReplica, news: PartitionUpdate, frames: memoryview) -> None:
        self.leader_epoch = max(self.leader_epoch, news.leader_epoch)
        original(self, news, frames)

    def fetched(self: LeaderReplica, node: str, ends: LogOffsets, now_ms: int) -> None:
        self.progress.on_fetch(node, LogOffsets(*map(max, ends, self.progress.ends)), now_ms)
        self._announce_high_watermark()

    patch.setattr(FollowerReplica, "apply", take)
    patch.setattr(LeaderReplica, "on_fetch", fetched)


def _does_not_sync(patch: Patch) -> None:
    patch.setattr(_SimulatedFile, "sync", lambda self: self._begin("sync") and None)


def _forgets_numbers_that_are_not_safe_yet(patch: Patch) -> None:
    class Forgetful(Admission):
        def __init__(self, *args: object, is_ahead: bool) -> None:
            super().__init__(*args, is_ahead=False)

    patch.setattr(appender, "Admission", Forgetful)


def _refuses_though_it_may_be_deposed(patch: Patch) -> None:
    patch.setattr(LeaderReplica, "confirm", lambda _self, then: then())


def _counts_a_push_before_it_is_stored(patch: Patch) -> None:
    original = PushSender._send

    def send(self: PushSender, outgoing: Any) -> None:
        original(self, outgoing)
        if self._session.pushes is self:
            number = self._number
            asyncio.get_running_loop().call_soon(lambda: _stored(self, number))

    def _stored(sender: PushSender, number: int, _others: object = ()) -> None:
        if number in sender._in_flight:
            original_stored(sender, number)

    original_stored = PushSender.on_stored
    patch.setattr(PushSender, "_send", send)
    patch.setattr(PushSender, "on_stored", _stored)


def _long(mutate: Callable[[Patch], None]) -> object:
    return pytest.param(mutate, 0, marks=pytest.mark.long, id=_name(mutate))


def _found_by(seed: int, mutate: Callable[[Patch], None]) -> object:
    """Return a mutation with the seed that found it last; others are tried if it does not."""
    return pytest.param(mutate, seed, id=_name(mutate))


def _name(mutate: Callable[[Patch], None]) -> str:
    return mutate.__name__.strip("_")


@pytest.mark.parametrize(
    ("mutate", "likely"),
    [
        _found_by(5, _shows_what_the_leader_alone_has),
        _long(_lets_anybody_into_the_in_sync_set),
        _long(_never_looks_where_logs_part),
        _long(_follows_whatever_the_epoch),
        _long(_does_not_sync),
        _found_by(7, _forgets_numbers_that_are_not_safe_yet),
        _long(_refuses_though_it_may_be_deposed),
        _found_by(2, _counts_a_push_before_it_is_stored),
    ],
)
def test_without_this_rule_a_fault_is_found(
    mutate: Callable[[Patch], None], likely: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "REPLICA_LAG_MS_MAX", 300)
    monkeypatch.setattr(limits, "PUSH_IN_FLIGHT_BYTES_MAX", 3000)
    mutate(monkeypatch)
    for seed in (likely, *range(SEEDS)):
        world = World(seed)
        try:
            world.run(world.live(10))
        except (AssertionError, TimeoutError):
            return
        if world.loop.unexpected:
            return
    raise AssertionError(f"{SEEDS} simulated histories went well")
