"""The groups of a partition that may count otherwise since a watcher looked last.

Only these have to be counted again. An event names its group, or it may be about all of them: a
cancelled message is done for every group. What a publish changes is the same for all groups and
follows from the bounds of the partition, so it is not noted. Nothing is kept without a watcher.
"""

from __future__ import annotations

from collections.abc import Callable

from goq.broker.runtime.metrics import TopicStats
from goq.delivery.events.affected import group_of
from goq.delivery.events.event import AnyEvent


class GroupChanges:
    """The changed groups of a partition; ``stats`` is of its topic, which changes too.

    ``on_change`` is called for the group of each event, with None for all groups.
    """

    def __init__(
        self, stats: TopicStats, on_change: Callable[[str | None], None] = lambda _group: None
    ) -> None:
        self._stats = stats
        self._on_change = on_change
        self._is_watched = False
        self._are_all = False
        self._names: set[str] = set()

    def watch(self) -> None:
        """Note changes from now on; so far all groups count as changed."""
        self._is_watched = self._are_all = True

    def unwatch(self) -> None:
        """Note nothing any more."""
        self._is_watched = self._are_all = False
        self._names = set()

    def take(self) -> set[str] | None:
        """Return the groups that may have changed since the last call, None for all."""
        names, are_all = self._names, self._are_all
        self._names, self._are_all = set(), False
        return None if are_all else names

    def on_event(self, event: AnyEvent) -> None:
        """Note an event that was applied to the state."""
        self._stats.change_count += 1
        group = group_of(event)
        if group != "":
            self._on_change(group)
        if self._is_watched:
            if group is None:
                self._are_all = True
            elif group:
                self._names.add(group)

    def on_group(self, group: str) -> None:
        """Note that a group may count otherwise without an event."""
        self._stats.change_count += 1
        if self._is_watched:
            self._names.add(group)

    def on_all_groups(self) -> None:
        """Note that all groups may count otherwise without an event."""
        self._stats.change_count += 1
        self._are_all = self._is_watched
