"""Which copies on their way go in one frame."""

from __future__ import annotations

import pytest

from goq.broker.outbox.worker import _batch
from goq.delivery.events.event import Cause, CopyQueued, token_of
from goq.delivery.outbox import OutboxEntry


def entry(first_sequence: int, messages: int, *, epoch: int = 1) -> OutboxEntry:
    event = CopyQueued("g", 0, [(0, messages, 0)], Cause.REDRIVEN, "", 0, "t", 0, 7)
    return OutboxEntry(token_of(epoch, 1), first_sequence, event, [])


@pytest.mark.parametrize(
    ("entries", "together"),
    [
        ([entry(0, 2), entry(2, 3), entry(5, 1)], 3),
        ([entry(0, 2), entry(2, 3), entry(6, 1)], 2),
        ([entry(0, 2), entry(3, 3)], 1),
        ([entry(0, 2), entry(2, 3, epoch=2)], 1),
        ([entry(0, 1), entry(1, 1), entry(2, 1), entry(3, 1), entry(4, 1)], 4),
    ],
)
def test_a_frame_has_copies_of_one_epoch_without_a_gap(
    entries: list[OutboxEntry], together: int
) -> None:
    assert _batch(entries, 4) == entries[:together]
