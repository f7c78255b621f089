"""Search for recorded acks: the messages of an ended lease that this very lease acknowledged.

A client whose answer was lost sends its ack again, perhaps to a new leader. The lease is over by
then, and only the event log tells whether the ack ended it. Tokens are never made twice, so an ack
with the token of a receipt is an earlier ack of that receipt. Functions block on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from goq import limits
from goq.broker.events.search import EventGap, IndexedEventLog, find_events
from goq.delivery.events.event import Acked, GroupDeleted, Range, Reset, Truncated
from goq.model import Receipt


def split_recorded(
    log: IndexedEventLog, group: str, receipts: Sequence[Receipt]
) -> tuple[int, list[Receipt]]:
    """Return how many messages of void receipts their own ack settled, and the other receipts.

    Looks for at most ``limits.ACK_SEARCHES_MAX`` messages; an ack of many is found by one of them.
    """
    known: dict[int, list[Range]] = {}
    settled, searches, lost = 0, 0, list[Receipt]()
    for receipt in dict.fromkeys(receipts):
        at = lost_from = receipt.start
        while at < receipt.end:
            end = _end_of_run(known.get(receipt.token, ()), at)
            if end is None and searches < limits.ACK_SEARCHES_MAX:
                searches += 1
                found = _acked_ranges(log, group, receipt.token, at)
                known.setdefault(receipt.token, []).extend(found)
                end = _end_of_run(found, at)
            if end is None:
                at += 1
                continue
            if lost_from < at:
                lost.append(receipt._replace(start=lost_from, end=at))
            end = min(end, receipt.end)
            settled += end - at
            at = lost_from = end
        if lost_from < receipt.end:
            lost.append(receipt._replace(start=lost_from))
    return settled, lost


def _acked_ranges(log: IndexedEventLog, group: str, token: int, offset: int) -> list[Range]:
    """Return the messages of the ack of a lease that settled a message; none if it never did.

    Messages that a reset or a deletion of the group gave back later are not included.
    """
    done: list[Range] = []
    for found in find_events([log], offset, None):
        match None if isinstance(found, EventGap) else found.event:
            case Acked(name, by, ranges) if (name, by) == (group, token):
                done += ranges
            case Reset(name, start) if name == group:
                done = _before(done, start)
            case GroupDeleted(name) if name == group:
                done = []
            case Truncated(end_offset):
                done = _before(done, end_offset)
            case _:
                pass
    return done


def _before(ranges: Sequence[Range], offset: int) -> list[Range]:
    return [(start, min(end, offset)) for start, end in ranges if start < offset]


def _end_of_run(ranges: Sequence[Range], offset: int) -> int | None:
    return next((end for start, end in ranges if start <= offset < end), None)
