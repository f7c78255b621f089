"""Which events are about a message, where its offset belonged to another one before."""

from __future__ import annotations

import pytest

from goq.broker.events.search import EventGap, _reused_offset_sequence
from goq.delivery.events.event import Reset, Truncated
from goq.delivery.events.frame_codec import StoredEvent


@pytest.mark.parametrize(("offset", "expected"), [(8, -1), (9, 4), (10, 6), (11, 6)])
def test_an_offset_belongs_to_another_message_since_the_log_was_cut_at_or_before_it(
    offset: int, expected: int
) -> None:
    events = {2: Reset("g", 0), 4: Truncated(9), 6: Truncated(10), 7: Reset("g", 1)}
    found: dict[int, StoredEvent | EventGap] = {
        number: StoredEvent(number, 1, 0, event, None) for number, event in events.items()
    }
    found[5] = EventGap(5, None, None, None, "lost")
    assert _reused_offset_sequence(found, offset) == expected
