"""The parts of a topic on several nodes, as one."""

from __future__ import annotations

import pytest

from goq.api.schemas.live import LiveGroupOut, LiveQueueOut, LiveTopicOut
from goq.api.views.live.merge import merge_topics


def part(
    lanes: list[LiveQueueOut] | None, tenants: list[LiveQueueOut] | None = None
) -> LiveTopicOut:
    group = LiveGroupOut("g", 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, lanes, tenants or [])
    return LiveTopicOut("t", 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, [group])


def test_lanes_and_tenants_are_sums_and_the_tenants_with_the_most_come_first() -> None:
    one = part([LiveQueueOut("high", 1)], [LiveQueueOut("acme", 1), LiveQueueOut("zen", 1)])
    other = part([LiveQueueOut("low", 2, 1), LiveQueueOut("high", 4)], [LiveQueueOut("zen", 3)])
    (group,) = merge_topics([one, other]).groups
    assert group.lanes == [LiveQueueOut("high", 5), LiveQueueOut("low", 2, 1)]
    assert group.tenants == [LiveQueueOut("zen", 4), LiveQueueOut("acme", 1)]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_one_node_does_not_know_nobody_knows(is_first: bool) -> None:
    parts = [part(None), part([LiveQueueOut("high", 1)])]
    (group,) = merge_topics(parts if is_first else parts[::-1]).groups
    assert group.lanes is None
    assert group.tenants == []
