"""Telling a rebuilt state what it must know of outstanding messages: their keys, lanes, tenants.

That is in the messages themselves, and only of these is it kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from goq import limits
from goq.broker.partition.ready_state import Dispatch
from goq.delivery.group.key_locks import Fact
from goq.delivery.partition_state import PartitionState
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.column_index.extract import rows_of
from goq.storage.log.log import Log

_TELLING = Attribute.KEYS | Attribute.LANE | Attribute.TENANT


def learn_outstanding(messages: Log, state: PartitionState, dispatch: Dispatch) -> None:
    """Read about all outstanding messages of all groups; blocks on the disk."""
    outstanding = {
        name: sorted((part.start, part.end) for part in group.outstanding())
        for name, group in state.groups.items()
    }
    facts: dict[int, Fact] = {}
    for start, end in _joined(run for runs in outstanding.values() for run in runs):
        for view in _frames(messages, start, min(end, messages.end_offset)):
            if view.header.attributes & _TELLING or state.moved:
                facts.update(_facts(view, start, end, state, dispatch))
    for name, runs in outstanding.items():
        offsets = (offset for run in runs for offset in range(*run)) if facts else ()
        state.groups[name].learn_outstanding({o: facts[o] for o in offsets if o in facts})


def _frames(messages: Log, start: int, end: int) -> Iterator[FrameView]:
    while start < end:
        reading = messages.reader.read(
            start, end, messages_max=end - start, bytes_max=limits.READ_BYTES_MAX
        )
        yield from reading.frames
        if reading.next_offset <= start:
            return
        start = reading.next_offset


def _facts(
    view: FrameView, start: int, end: int, state: PartitionState, dispatch: Dispatch
) -> Iterator[tuple[int, Fact]]:
    header = view.header
    first, last = max(start, header.base_offset), min(end, header.end_offset)
    keys = view.column(Attribute.KEY_HASH)
    hashes = keys.cast("Q").tolist() if keys is not None else [0] * header.message_count
    places: dict[int, tuple[int, int]] = {}
    rows = rows_of(view)
    if rows is not None:
        lanes, tenants = (column.tolist() for column in dispatch.places(rows))
        places = dict(zip(rows.offsets.tolist(), zip(lanes, tenants, strict=True), strict=True))
    for offset in range(first, last):
        lane, tenant = places.get(offset, (dispatch.default_lane, 0))
        key = hashes[offset - header.base_offset]
        fact = Fact(key, state.moved.get(offset, lane), tenant)
        if fact != (0, dispatch.default_lane, 0):
            yield offset, fact


def _joined(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield runs in order, those that touch or overlap as one."""
    at: tuple[int, int] | None = None
    for start, end in sorted(runs):
        if at is None or start > at[1]:
            if at is not None:
                yield at
            at = (start, end)
        else:
            at = (at[0], max(at[1], end))
    if at is not None:
        yield at
