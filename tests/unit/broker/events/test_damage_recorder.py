"""Damage that a read found is recorded once, unless another replica may have the messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.events.damage_recorder import DamageRecorder
from goq.broker.events.group_changes import GroupChanges
from goq.broker.partition_context import Availability, PartitionId
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.events.event import AnyEvent, Corrupted
from goq.delivery.partition_state import PartitionState
from goq.errors import PartitionOffline
from goq.storage.scanner import Damage


class Case:
    """A partition of 100 messages."""

    def __init__(self, *, is_replicated: bool = False) -> None:
        self.state = PartitionState()
        self.state.extend_to(100)
        self.availability = Availability(PartitionId("t", 0))
        self.changes = GroupChanges(TopicStats())
        self.recorded: list[AnyEvent] = []
        self.has_room = True
        callbacks: Any = SimpleNamespace(may_be_repaired=lambda _damage: is_replicated)
        writer: Any = self
        self.damage = DamageRecorder(self.state, callbacks, self.availability, writer, self.changes)

    def record(self, events: list[AnyEvent]) -> None:
        for event in events:
            self.state.apply(event, len(self.recorded), 1)
        self.recorded += events

    def meet(self, start: int, end: int) -> None:
        self.damage.record(Damage("f", 0, 1, start, end, "bad"))


def test_only_damage_that_is_not_known_whole_is_recorded() -> None:
    case = Case()
    for start, end in ((10, 20), (10, 20), (12, 18), (9, 20), (10, 21), (20, 30), (9, 21)):
        case.meet(start, end)
    assert case.recorded == [
        Corrupted(start, end, "bad") for start, end in ((10, 20), (9, 20), (10, 21), (20, 30))
    ]


def test_nothing_is_recorded_on_a_full_disk_or_by_a_partition_that_is_offline() -> None:
    case = Case()
    case.has_room = False
    case.meet(0, 1)
    case.has_room = True
    case.availability.take_offline("is closed")
    case.meet(0, 1)
    assert case.recorded == []


def test_what_another_replica_may_have_takes_the_partition_offline_for_a_moment() -> None:
    case = Case(is_replicated=True)
    case.changes.watch()
    case.changes.take()
    with pytest.raises(PartitionOffline) as refused:
        case.meet(0, 1)
    assert refused.value.retry_after_ms == 1000
    assert case.availability.error is refused.value
    assert case.recorded == []
    assert case.changes.take() is None
