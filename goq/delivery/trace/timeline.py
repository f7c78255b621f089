"""The life of one message, step by step, from the events that are about it.

What an event says by itself is always told. What follows only from the state before it (that a
reset changed something, that a retry was to come) is told where no event is missing before it. So
a timeline with gaps leaves out, and says so, and is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from goq.delivery.events.affected import WITHOUT_OFFSETS, affects
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    Compacted,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Event,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    Span,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.trace.steps import CopyLocation, PublishRecord, Step, StepName, TraceGap

VISIBILITY_TIMEOUT: Final = "visibility_timeout"
_NO_LEASE: Final = "the event that handed the message out is missing"
DAMAGED: Final = "events are damaged"
DELETED: Final = "older events were deleted"


@dataclass(slots=True)
class _GroupProgress:
    """What the message is for a group: with whom, by which lease, and where that was told."""

    token: int = 0
    consumer: str | None = None
    attempt: int = 0
    delivered: int = -1
    is_taken: bool = False
    waits: bool = False
    """For another attempt."""

    @property
    def is_outstanding(self) -> bool:
        return bool(self.token) or self.waits


class Timeline:
    """Takes events in the order of their log; those that are not about the message do nothing."""

    def __init__(self, offset: int, published: PublishRecord | None) -> None:
        self.offset = offset
        self._published = published
        self._start_over()

    def _start_over(self) -> None:
        self.steps: list[Step] = []
        self.incomplete: list[TraceGap] = []
        self._compactions_us: list[int] = []
        self.attempts = 0
        """Deliveries, but for those that were returned."""
        self._groups: dict[str, _GroupProgress] = {}
        self._leaving: dict[int, int] = {}
        self._is_cancelled = self._is_deleted = False
        self._due_ms = 0
        published = self._published
        if published is None:
            return
        self._tell(published.time_us, StepName.PUBLISHED)
        if published.due_ms:
            self._due_ms = published.due_ms
            self._tell(published.time_us, StepName.SCHEDULED, due_ms=published.due_ms)

    def add(self, event: AnyEvent, sequence: int, epoch: int, time_us: int) -> None:
        """Take an event, by its place and the time of its frame."""
        handler = _HANDLERS.get(type(event))
        if handler is not None and (type(event) in WITHOUT_OFFSETS or affects(event, self.offset)):
            handler(self, event, time_us, token_of(epoch, sequence))

    def add_gap(self, from_us: int | None, to_us: int | None, reason: str = DAMAGED) -> None:
        """Take note of events that cannot be read, and the times of those around them."""
        if to_us is None or self._published is None or to_us >= self._published.time_us:
            self.incomplete.append(TraceGap(from_us, to_us, reason))

    def _tell(self, time_us: int, name: StepName, **known: Any) -> None:
        self.steps.append(Step(time_us, name, **known))

    def _standing(self, group: str) -> _GroupProgress:
        return self._groups.setdefault(group, _GroupProgress())

    def _attempt_in(self, spans: list[Span]) -> int:
        return next(attempt for start, end, attempt in spans if start <= self.offset < end)

    # With a consumer

    def _leased(self, event: Leased, time_us: int, token: int) -> None:
        standing = self._standing(event.group)
        standing.token, standing.consumer = token, event.consumer
        standing.attempt = self._attempt_in(event.spans)
        standing.delivered = len(self.steps)
        standing.is_taken, standing.waits = True, False
        self.attempts += 1
        self._tell(
            time_us,
            StepName.DELIVERED,
            group=event.group,
            consumer=event.consumer or None,
            attempt=standing.attempt,
            until_ms=event.deadline_ms,
        )

    def _held(self, group: str, token: int, time_us: int) -> _GroupProgress | None:
        """Return what is known of the lease that an event speaks of."""
        standing = self._standing(group)
        if standing.token == token:
            return standing
        self.incomplete.append(TraceGap(None, time_us, _NO_LEASE))
        return None

    def _end_lease(self, group: str, *, is_over: bool, waits: bool = False) -> None:
        """The consumer has it no more; how long it would have had it is told if it took as long."""
        standing = self._standing(group)
        if standing.token and not is_over:
            at = standing.delivered
            self.steps[at] = replace(self.steps[at], until_ms=None)
        standing.token, standing.is_taken, standing.waits = 0, True, waits

    def _tell_held(
        self, name: StepName, event: Any, time_us: int, **known: Any
    ) -> _GroupProgress | None:
        standing = self._held(event.group, event.token, time_us)
        if standing is not None:
            known.setdefault("attempt", standing.attempt)
            known["consumer"] = standing.consumer or None
        self._tell(time_us, name, group=event.group, **known)
        return standing

    def _acked(self, event: Acked, time_us: int, _token: int) -> None:
        self._tell_held(StepName.ACKNOWLEDGED, event, time_us)
        self._end_lease(event.group, is_over=False)

    def _extended(self, event: Extended, time_us: int, _token: int) -> None:
        self._tell_held(StepName.EXTENDED, event, time_us, until_ms=event.deadline_ms)

    def _nacked(self, event: Nacked, time_us: int, _token: int) -> None:
        standing = self._standing(event.group)
        attempt = self._attempt_in(event.spans)
        if standing.token == event.token and attempt < standing.attempt:
            self.attempts -= 1
            self._tell_held(StepName.RETURNED, event, time_us)
            self._end_lease(event.group, is_over=False, waits=True)
            return
        if standing.token != event.token and not (event.reason or _is_later(event, time_us)):
            self._held(event.group, event.token, time_us)
            return  # it may have been returned: which of both it was is not known
        self._tell_held(
            StepName.NACKED, event, time_us, attempt=attempt, reason=event.reason or None
        )
        self._retry(event, time_us, is_over=False)

    def _expired(self, event: Expired, time_us: int, _token: int) -> None:
        attempt, reason = self._attempt_in(event.spans), event.reason or VISIBILITY_TIMEOUT
        self._tell_held(StepName.EXPIRED, event, time_us, attempt=attempt, reason=reason)
        self._retry(event, time_us, is_over=True)

    def _retry(self, event: Nacked | Expired, time_us: int, *, is_over: bool) -> None:
        if not self._is_cancelled and not self.incomplete and _is_later(event, time_us):
            self._tell(time_us, StepName.RETRY_SCHEDULED, group=event.group, due_ms=event.due_ms)
        self._end_lease(event.group, is_over=is_over, waits=not self._is_cancelled)

    # Done without an ack

    def _dropped(self, event: Dropped, time_us: int, _token: int) -> None:
        self._tell_cause(event, time_us)
        self._tell(time_us, StepName.DROPPED, group=event.group)
        self._end_lease(event.group, is_over=event.cause is Cause.EXPIRED)

    def _tell_cause(self, event: Dropped | CopyQueued, time_us: int) -> None:
        name, reason = _CAUSES[event.cause], event.reason or None
        if event.cause is Cause.EXPIRED:
            reason = reason or VISIBILITY_TIMEOUT
        elif event.cause is Cause.TTL:
            reason = str(Cause.TTL)
        if not event.token:
            self._tell(time_us, name, group=event.group, reason=reason)
            return
        attempt = self._attempt_in(event.spans)
        self._tell_held(name, event, time_us, attempt=attempt, reason=reason)

    def _skipped(self, event: Skipped, time_us: int, _token: int) -> None:
        name = StepName.EXPIRED if event.cause is Cause.TTL else StepName.SKIPPED
        self._tell(time_us, name, group=event.group, reason=str(event.cause))
        self._end_lease(event.group, is_over=True)

    def _departing(self, event: CopyQueued, time_us: int, token: int) -> None:
        if event.group:
            self._tell_cause(event, time_us)
            self._end_lease(event.group, is_over=event.cause is Cause.EXPIRED)
        else:
            self._cancel()
        self._leaving[token] = len(self.steps)
        self._tell(
            time_us,
            StepName.DEAD_LETTERED if event.group else StepName.REDRIVEN,
            group=event.group or None,
            copy=CopyLocation(
                event.topic, event.partition, -1, _index_in(event.spans, self.offset)
            ),
        )

    def _departed(self, event: CopyStored, _time_us: int, _token: int) -> None:
        at = self._leaving.pop(event.departure, None)
        if at is not None:
            step = self.steps[at]
            assert step.copy is not None
            self.steps[at] = replace(step, copy=step.copy._replace(offset=event.offset))

    def _cancelled(self, event: Cancelled, time_us: int, _token: int) -> None:
        self._tell(time_us, StepName.CANCELLED, reason=event.reason or None)
        self._cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        for standing in self._groups.values():
            standing.waits = False

    # Of the message for all groups

    def _moved(self, event: Moved, time_us: int, _token: int) -> None:
        self._tell(time_us, StepName.MOVED, lane=event.lane)

    def _rescheduled(self, event: Rescheduled, time_us: int, _token: int) -> None:
        self._due_ms = event.due_ms
        self._tell(time_us, StepName.RESCHEDULED, due_ms=event.due_ms)

    def _matured(self, event: Matured, _time_us: int, _token: int) -> None:
        is_due = 0 < self._due_ms <= event.up_to_ms and event.end_offset > self.offset
        if not is_due or self._is_cancelled or self.incomplete or self._published is None:
            return
        self._due_ms = 0
        before_us = self.steps[-1].time_us
        time_us = max(event.up_to_ms * 1000, self._published.time_us)
        if before_us // 1000 == event.up_to_ms:
            time_us = before_us
        self._tell(time_us, StepName.MATURED)

    def _corrupted(self, event: Corrupted, time_us: int, _token: int) -> None:
        self._tell(time_us, StepName.CORRUPTED, reason=event.reason or None)
        for standing in self._groups.values():
            standing.token, standing.waits = 0, False

    def _repaired(self, _event: Repaired, time_us: int, _token: int) -> None:
        self._tell(time_us, StepName.REPAIRED)

    def _compacted(self, _event: Compacted, time_us: int, _token: int) -> None:
        """Take note of a pass that came by: whether the message went then, it does not say."""
        self._compactions_us.append(time_us)

    def tell_compacted(self) -> None:
        """Tell that the message was compacted away, at the latest by the last pass."""
        if self._compactions_us:
            reason = "gone by then" if len(self._compactions_us) > 1 else None
            self._tell(self._compactions_us[-1], StepName.COMPACTED, reason=reason)
            self.steps.sort(key=lambda step: step.time_us)

    def tell_archived(self, time_us: int) -> None:
        """Tell that the message went to the archive."""
        self._tell(time_us, StepName.ARCHIVED)
        self.steps.sort(key=lambda step: step.time_us)

    def _trimmed(self, event: Trimmed, time_us: int, _token: int) -> None:
        if event.start_offset > self.offset and not self._is_deleted and not self.incomplete:
            self._is_deleted = True
            self._tell(time_us, StepName.DELETED)

    def _truncated(self, event: Truncated, _time_us: int, _token: int) -> None:
        if event.end_offset <= self.offset:
            self._start_over()  # all that was before happened to another message of this offset

    # Of a group

    def _reset(self, event: Reset, time_us: int, _token: int) -> None:
        standing = self._groups.get(event.group, _GroupProgress())
        if 0 <= event.end_offset <= self.offset:
            is_news = standing.is_outstanding or not self._is_cancelled
            self._groups[event.group] = _GroupProgress(is_taken=standing.is_taken)
            reason = "behind the group's end"
        elif event.offset <= self.offset:
            is_news = standing.is_outstanding or (standing.is_taken and not self._is_cancelled)
            self._groups.pop(event.group, None)
            reason = "to be delivered again"
        else:
            is_fresh = not standing.is_taken and not self._is_cancelled
            is_news = standing.is_outstanding or is_fresh
            self._groups[event.group] = _GroupProgress(is_taken=True)
            reason = "passed over"
        if is_news and not self.incomplete:
            self._tell(time_us, StepName.RESET, group=event.group, reason=reason)

    def _group_deleted(self, event: GroupDeleted, time_us: int, _token: int) -> None:
        standing = self._groups.pop(event.group, None)
        if standing is not None and standing.is_taken and not self.incomplete:
            self._tell(time_us, StepName.GROUP_DELETED, group=event.group)


def _is_later(event: Nacked | Expired, time_us: int) -> bool:
    """Whether the next attempt is to wait."""
    return event.due_ms > (event.time_ms or time_us // 1000)


def _index_in(spans: list[Span], offset: int) -> int:
    """Return how many messages left before one."""
    index = 0
    for start, end, _ in spans:
        if start <= offset < end:
            return index + offset - start
        index += end - start
    raise AssertionError("the message is among those that left")


_CAUSES: Final = {
    Cause.NACKED: StepName.NACKED,
    Cause.EXPIRED: StepName.EXPIRED,
    Cause.REJECTED: StepName.REJECTED,
    Cause.TTL: StepName.EXPIRED,
    Cause.OTHER_GROUP: StepName.SKIPPED,
    Cause.REDRIVEN: StepName.SKIPPED,
    Cause.COMPACTED: StepName.SKIPPED,
}

_HANDLERS: Final[dict[type[Event], Callable[[Timeline, Any, int, int], None]]] = {
    Leased: Timeline._leased,
    Acked: Timeline._acked,
    Extended: Timeline._extended,
    Nacked: Timeline._nacked,
    Expired: Timeline._expired,
    Dropped: Timeline._dropped,
    Skipped: Timeline._skipped,
    CopyQueued: Timeline._departing,
    CopyStored: Timeline._departed,
    Cancelled: Timeline._cancelled,
    Moved: Timeline._moved,
    Rescheduled: Timeline._rescheduled,
    Matured: Timeline._matured,
    Compacted: Timeline._compacted,
    Corrupted: Timeline._corrupted,
    Repaired: Timeline._repaired,
    Trimmed: Timeline._trimmed,
    Truncated: Timeline._truncated,
    Reset: Timeline._reset,
    GroupDeleted: Timeline._group_deleted,
}
