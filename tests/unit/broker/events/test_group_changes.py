"""A watcher counts again what may have changed since its last look, and nothing else."""

from __future__ import annotations

from goq.broker.events.group_changes import GroupChanges
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.events.event import Acked, Cancelled, GroupDeleted, Matured


def test_all_groups_are_counted_once_when_watching_begins_and_then_those_with_events() -> None:
    changes = GroupChanges(TopicStats())
    changes.watch()
    changes.on_event(Acked("a", 1, [(0, 1)]))
    assert changes.take() is None
    assert changes.take() == set()
    changes.on_event(Acked("b", 1, [(0, 1)]))
    changes.on_event(GroupDeleted("c"))
    changes.on_group("d")
    assert changes.take() == {"b", "c", "d"}
    assert changes.take() == set()


def test_what_is_about_all_groups_has_all_counted_once() -> None:
    changes = GroupChanges(TopicStats())
    changes.watch()
    changes.take()
    changes.on_event(Matured(50, 60))
    assert changes.take() == set()
    changes.on_event(Cancelled([(0, 1)]))
    assert changes.take() is None
    changes.on_all_groups()
    assert changes.take() is None
    assert changes.take() == set()


def test_each_event_is_told_at_once_with_its_group_unless_it_changes_none() -> None:
    told: list[str | None] = []
    changes = GroupChanges(TopicStats(), told.append)
    for event in (Acked("a", 1, [(0, 1)]), Matured(50, 60), Cancelled([(0, 1)])):
        changes.on_event(event)
    assert told == ["a", None]


def test_without_a_watcher_nothing_is_kept_but_the_count_of_changes() -> None:
    stats = TopicStats()
    changes = GroupChanges(stats)
    changes.on_event(Acked("a", 1, [(0, 1)]))
    changes.on_group("b")
    changes.on_all_groups()
    assert stats.change_count == 3
    changes.watch()
    changes.on_group("c")
    changes.unwatch()
    assert changes.take() == set()
    changes.on_group("d")
    changes.on_all_groups()
    assert changes.take() == set()
