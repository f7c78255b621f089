"""The life of one message, step by step, from the events that are about it.

Steps are in the order of the log; their times are those of the clock, which may have been set back.
Facts of an event itself are always reported. Facts that follow only from the state before it (a
reset changed something, a retry was scheduled) are reported only where no earlier event is missing.
So a timeline with gaps leaves steps out, and says so, and is never wrong.

Longer than other modules: it has one method for each event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from goq.delivery.events.affected import WITHOUT_OFFSETS, affects
from goq.delivery.events.event import (
    Acked,
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
    dues,
    token_of,
)
from goq.delivery.events.frame_codec import StoredEvent
from goq.delivery.trace.steps import CopyLocation, PublishRecord, Step, StepName, TraceGap

VISIBILITY_TIMEOUT: Final = "visibility_timeout"
_GONE: Final = "gone by then"
_NO_LEASE: Final = "the event of the delivery is missing"
DAMAGED: Final = "events are damaged"
DELETED: Final = "older events were deleted"


class _GroupProgress(msgspec.Struct):
    """The message's state for a group: its lease and consumer, and the step that reported it."""

    token: int = 0
    consumer: str | None = None
    attempt: int = 0
    delivered: int = -1
    is_taken: bool = False
    waits: bool = False
    """Whether it waits for another attempt."""
    is_held: bool = False
    """Whether it is behind the group's end."""

    @property
    def is_outstanding(self) -> bool:
        return bool(self.token) or self.waits


class Timeline:
    """The steps of one message, built from events in log order; events about others are ignored.

    ``archived_us`` is the time when the message was archived, if it is only in the archive.
    """

    def __init__(
        self, offset: int, published: PublishRecord | None, archived_us: int | None = None
    ) -> None:
        self.offset = offset
        self._published = published
        self._archived_us = archived_us
        self._start_over()

    def _start_over(self) -> None:
        self.steps: list[Step] = []
        self.incomplete: list[TraceGap] = []
        self._compactions: list[Step] = []
        self._compacted_at = 0
        self.attempts = 0
        """The number of deliveries, without those that were returned."""
        self._groups: dict[str, _GroupProgress] = {}
        self._copies: dict[int, int] = {}
        self._is_cancelled = self._is_gone = False
        self._due_ms = self._due_since_us = 0
        published = self._published
        if published is None:
            return
        self._add_step(published.time_us, StepName.PUBLISHED)
        if published.due_ms:
            self._due_ms, self._due_since_us = published.due_ms, published.time_us
            self._add_step(published.time_us, StepName.SCHEDULED, due_ms=published.due_ms)

    def add(self, stored: StoredEvent) -> None:
        """Add an event."""
        event = stored.event
        handler = _HANDLERS.get(type(event))
        if handler is not None and (type(event) in WITHOUT_OFFSETS or affects(event, self.offset)):
            self._messages_end = stored.messages_end
            handler(self, event, stored.time_us, token_of(stored.epoch, stored.sequence))

    def add_gap(self, gap: TraceGap, messages_end: int | None) -> None:
        """Record events that cannot be read, unless the message was published after them.

        ``messages_end`` is the end offset of the messages at the event after them, None if unknown.
        """
        if messages_end is None or self.offset < messages_end:
            self.incomplete.append(gap)

    def containers(self) -> list[list[Step] | dict[str, _GroupProgress]]:
        """Return what holds the steps, and what is known of each of perhaps many groups."""
        return [self.steps, self._groups]

    def finish(self) -> None:
        """End the timeline after its last event."""
        if self._archived_us is not None and not self._is_gone:
            self._add_step(self._archived_us, StepName.ARCHIVED)

    def _add_step(self, time_us: int, name: StepName, **known: Any) -> None:
        self.steps.append(Step(time_us, name, **known))

    def _progress(self, group: str) -> _GroupProgress:
        return self._groups.setdefault(group, _GroupProgress())

    def _attempt_in(self, spans: list[Span]) -> int:
        return next(attempt for start, end, attempt in spans if start <= self.offset < end)

    # Leases

    def _leased(self, event: Leased, time_us: int, token: int) -> None:
        progress = self._progress(event.group)
        progress.token, progress.consumer = token, event.consumer
        progress.attempt = self._attempt_in(event.spans)
        progress.delivered = len(self.steps)
        progress.is_taken, progress.waits = True, False
        self.attempts += 1
        self._add_step(
            time_us,
            StepName.DELIVERED,
            group=event.group,
            consumer=event.consumer or None,
            attempt=progress.attempt,
            until_ms=event.deadline_ms,
        )

    def _held(self, group: str, token: int, time_us: int) -> _GroupProgress | None:
        """Return what is known of the lease that an event names."""
        progress = self._progress(group)
        if progress.token == token:
            return progress
        self.incomplete.append(TraceGap(None, time_us, _NO_LEASE))
        return None

    def _end_lease(self, group: str, *, is_over: bool, waits: bool = False) -> None:
        """End the lease; keep its end in the delivery step only if the lease lasted until then."""
        progress = self._progress(group)
        if not is_over:
            self._break_off(progress)
        progress.token, progress.is_taken, progress.waits = 0, True, waits

    def _break_off(self, progress: _GroupProgress) -> None:
        """End a lease, if there is one, before its end, which the delivery step then lacks."""
        if progress.token:
            at = progress.delivered
            self.steps[at] = replace(self.steps[at], until_ms=None)
            progress.token = 0

    def _add_lease_step(
        self, name: StepName, event: Any, time_us: int, **known: Any
    ) -> _GroupProgress | None:
        progress = self._held(event.group, event.token, time_us)
        if progress is not None:
            known.setdefault("attempt", progress.attempt)
            known["consumer"] = progress.consumer or None
        self._add_step(time_us, name, group=event.group, **known)
        return progress

    def _acked(self, event: Acked, time_us: int, _token: int) -> None:
        self._add_lease_step(StepName.ACKNOWLEDGED, event, time_us)
        self._end_lease(event.group, is_over=False)

    def _extended(self, event: Extended, time_us: int, _token: int) -> None:
        self._add_lease_step(StepName.EXTENDED, event, time_us, until_ms=event.deadline_ms)

    def _nacked(self, event: Nacked, time_us: int, _token: int) -> None:
        progress = self._progress(event.group)
        attempt = self._attempt_in(event.spans)
        if progress.token == event.token and attempt < progress.attempt:
            self.attempts -= 1
            self._add_lease_step(StepName.RETURNED, event, time_us)
            self._end_lease(event.group, is_over=False, waits=True)
            return
        if progress.token != event.token and not (event.reason or self._is_later(event, time_us)):
            self._held(event.group, event.token, time_us)
            return  # a nack or a return: which of the two is not known
        self._add_lease_step(
            StepName.NACKED, event, time_us, attempt=attempt, reason=event.reason or None
        )
        self._retry(event, time_us, is_over=False)

    def _expired(self, event: Expired, time_us: int, _token: int) -> None:
        attempt, reason = self._attempt_in(event.spans), event.reason or VISIBILITY_TIMEOUT
        self._add_lease_step(StepName.EXPIRED, event, time_us, attempt=attempt, reason=reason)
        self._retry(event, time_us, is_over=True)

    def _retry(self, event: Nacked | Expired, time_us: int, *, is_over: bool) -> None:
        if not self._is_cancelled and not self.incomplete and self._is_later(event, time_us):
            due_ms = self._due_of(event)
            self._add_step(time_us, StepName.RETRY_SCHEDULED, group=event.group, due_ms=due_ms)
        self._end_lease(event.group, is_over=is_over, waits=not self._is_cancelled)

    def _is_later(self, event: Nacked | Expired, time_us: int) -> bool:
        """Return whether the next attempt has to wait."""
        return self._due_of(event) > (event.time_ms or time_us // 1000)

    def _due_of(self, event: Nacked | Expired) -> int:
        times = (ms for (start, end, _), ms in dues(event) if start <= self.offset < end)
        return next(times, event.due_ms)

    # Ends without an ack

    def _dropped(self, event: Dropped, time_us: int, _token: int) -> None:
        self._add_cause_step(event, time_us)
        self._add_step(time_us, StepName.DROPPED, group=event.group)
        self._end_lease(event.group, is_over=event.cause is Cause.EXPIRED)

    def _add_cause_step(self, event: Dropped | CopyQueued, time_us: int) -> None:
        name, reason = _CAUSES[event.cause], event.reason or None
        if event.cause is Cause.EXPIRED:
            reason = reason or VISIBILITY_TIMEOUT
        elif event.cause is Cause.TTL:
            reason = str(Cause.TTL)
        if not event.token:
            self._add_step(time_us, name, group=event.group, reason=reason)
            return
        attempt = self._attempt_in(event.spans)
        self._add_lease_step(name, event, time_us, attempt=attempt, reason=reason)

    def _skipped(self, event: Skipped, time_us: int, _token: int) -> None:
        name = StepName.EXPIRED if event.cause is Cause.TTL else StepName.SKIPPED
        self._add_step(time_us, name, group=event.group, reason=str(event.cause))
        self._end_lease(event.group, is_over=True)

    def _copy_queued(self, event: CopyQueued, time_us: int, token: int) -> None:
        if event.group:
            self._add_cause_step(event, time_us)
            self._end_lease(event.group, is_over=event.cause is Cause.EXPIRED)
        else:
            self._cancel()
        self._copies[token] = len(self.steps)
        self._add_step(
            time_us,
            StepName.DEAD_LETTERED if event.group else StepName.REDRIVEN,
            group=event.group or None,
            copy=CopyLocation(
                event.topic, event.partition, -1, _index_in(event.spans, self.offset)
            ),
        )

    def _copy_stored(self, event: CopyStored, _time_us: int, _token: int) -> None:
        at = self._copies.pop(event.entry, None)
        if at is not None:
            step = self.steps[at]
            assert step.copy is not None
            self.steps[at] = replace(step, copy=step.copy._replace(offset=event.offset))

    def _cancelled(self, event: Cancelled, time_us: int, _token: int) -> None:
        self._add_step(time_us, StepName.CANCELLED, reason=event.reason or None)
        self._cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        for progress in self._groups.values():
            progress.waits = False

    # For all groups

    def _moved(self, event: Moved, time_us: int, _token: int) -> None:
        self._add_step(time_us, StepName.MOVED, lane=event.lane)

    def _rescheduled(self, event: Rescheduled, time_us: int, _token: int) -> None:
        self._due_ms, self._due_since_us = event.due_ms, time_us
        self._add_step(time_us, StepName.RESCHEDULED, due_ms=event.due_ms)

    def _matured(self, event: Matured, time_us: int, _token: int) -> None:
        is_due = 0 < self._due_ms <= event.up_to_ms and event.end_offset > self.offset
        if not is_due or self._is_cancelled or self.incomplete or self._published is None:
            return
        matured_us, before_us = event.up_to_ms * 1000, self.steps[-1].time_us
        if before_us <= time_us:  # the step before waited for the disk, or was in the same ms
            matured_us = max(matured_us, before_us)
        elif self._due_ms * 1000 <= self._due_since_us:  # it was due when that was decided
            matured_us = max(matured_us, self._due_since_us)
        self._due_ms = 0
        self._add_step(matured_us, StepName.MATURED)

    def _corrupted(self, event: Corrupted, time_us: int, _token: int) -> None:
        self._add_step(time_us, StepName.CORRUPTED, reason=event.reason or None)
        for progress in self._groups.values():
            self._break_off(progress)
            progress.waits = False

    def _repaired(self, _event: Repaired, time_us: int, _token: int) -> None:
        self._add_step(time_us, StepName.REPAIRED)

    def _compacted(self, _event: Compacted, time_us: int, _token: int) -> None:
        """Record a compaction pass: it does not say whether the message was removed then."""
        reason = _GONE if self._compactions else None
        self._compactions.append(Step(time_us, StepName.COMPACTED, reason=reason))
        self._compacted_at = len(self.steps)

    def add_compacted(self) -> None:
        """Add that the message was compacted away, at the latest by the last pass."""
        if self._compactions:
            self.steps.insert(self._compacted_at, self._compactions[-1])

    def _trimmed(self, event: Trimmed, time_us: int, _token: int) -> None:
        if event.start_offset <= self.offset or self._is_gone:
            return
        self._is_gone = True
        if self._archived_us is not None:
            self._add_step(self._archived_us, StepName.ARCHIVED)
        else:  # an earlier one may be missing
            reason = _GONE if self.incomplete else None
            self._add_step(time_us, StepName.DELETED, reason=reason)

    def _truncated(self, event: Truncated, _time_us: int, _token: int) -> None:
        if event.end_offset <= self.offset:
            self._start_over()  # earlier events were about another message of this offset

    # For one group

    def _reset(self, event: Reset, time_us: int, _token: int) -> None:
        progress = self._groups.get(event.group, _GroupProgress())
        if self._is_gone or not self._was_published(progress):
            return
        is_outstanding = progress.is_outstanding
        self._break_off(progress)
        was_held = 0 <= event.end_offset_before <= self.offset
        if 0 <= event.end_offset <= self.offset:
            is_change = is_outstanding or not (was_held or self._is_cancelled)
            self._groups[event.group] = _GroupProgress(is_taken=progress.is_taken, is_held=True)
            reason = "behind the group's end"
        elif event.offset <= self.offset:
            is_known = progress.is_taken or was_held
            is_change = is_outstanding or (is_known and not self._is_cancelled)
            self._groups.pop(event.group, None)
            reason = "no longer behind the group's end" if was_held else "to be delivered again"
        else:
            is_fresh = not progress.is_taken or was_held
            is_change = is_outstanding or (is_fresh and not self._is_cancelled)
            self._groups[event.group] = _GroupProgress(is_taken=True)
            reason = "passed over"
        if is_change and not self.incomplete:
            self._add_step(time_us, StepName.RESET, group=event.group, reason=reason)

    def _was_published(self, progress: _GroupProgress) -> bool:
        """Return whether the message was there at the current event."""
        return progress.is_taken or self._messages_end is None or self.offset < self._messages_end

    def _group_deleted(self, event: GroupDeleted, time_us: int, _token: int) -> None:
        progress = self._groups.pop(event.group, None)
        if progress is None:
            return
        self._break_off(progress)
        if self._is_gone or self.incomplete:
            return
        if progress.is_taken or progress.is_held:
            self._add_step(time_us, StepName.GROUP_DELETED, group=event.group)


def _index_in(spans: list[Span], offset: int) -> int:
    """Return how many messages of the spans come before one."""
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
    CopyQueued: Timeline._copy_queued,
    CopyStored: Timeline._copy_stored,
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
