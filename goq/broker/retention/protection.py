"""What retention must leave because a group has not done it yet."""

from __future__ import annotations

from collections.abc import Iterator

from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic


def first_unread(topic: Topic, partition: Partition) -> int | None:
    """Return the first offset that a group whose unread messages are protected has not done.

    None where nothing is: no group is protected, or each of these has done everything. What is
    leased, waits for a retry or for its time, or was never handed out is not done; what is damaged
    will never be, and protects nothing.
    """
    names = {*topic.groups, *partition.state.groups}
    protected = (name for name in names if topic.settings_of(name).protect_unread)
    return min((o for name in protected for o in _first_not_done(partition, name)), default=None)


def _first_not_done(partition: Partition, name: str) -> Iterator[int]:
    state = partition.state
    group = state.group(name)
    for untaken in state.deliverable(group, state.start_offset, state.end_offset):
        yield untaken.start
        break
    yield from (part.start for part in group.outstanding())
