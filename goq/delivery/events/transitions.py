"""The states of a message for a group, and the table of their transitions.

:mod:`goq.delivery.partition_state` applies events; this table describes the visible effect for one
message and one group. ``docs/delivery.md`` is generated from it, and a test applies every event to
a message in every state that a row names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from goq.delivery.events.event import (
    Acked,
    Cancelled,
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
    Trimmed,
    Truncated,
)


class MessageState(StrEnum):
    """The state of a message for a group. A message has exactly one at a time."""

    READY = "ready"
    BLOCKED = "blocked"
    LEASED = "leased"
    RETRY = "retry"
    SCHEDULED = "scheduled"
    EXPIRED = "expired"
    DEAD = "dead"
    DONE = "done"
    CANCELLED = "cancelled"


class Transition(NamedTuple):
    """The effect of an event on a message, by its state before.

    Without an ``event`` nothing is written: the transition follows from the message or the time.
    Without ``sources`` the message is new, without a ``target`` it is gone.
    """

    event: type[Event] | None
    sources: tuple[MessageState, ...]
    target: MessageState | None
    why: str


_ALL = tuple(MessageState)
_WAITING = (
    MessageState.READY,
    MessageState.BLOCKED,
    MessageState.RETRY,
    MessageState.SCHEDULED,
    MessageState.EXPIRED,
)
_RESETTABLE = (  # a group that starts over gets them again
    MessageState.READY,
    MessageState.BLOCKED,
    MessageState.LEASED,
    MessageState.RETRY,
    MessageState.DEAD,
    MessageState.DONE,
)

LIFE = (
    Transition(None, (), MessageState.READY, "published"),
    Transition(None, (), MessageState.SCHEDULED, "published with a delay or a delivery time"),
    Transition(Matured, (MessageState.SCHEDULED,), MessageState.READY, "due"),
    Transition(
        None,
        (MessageState.READY,),
        MessageState.BLOCKED,
        "a receive found the key locked",
    ),
    Transition(
        Leased,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.LEASED,
        "leased to a consumer",
    ),
    Transition(Extended, (MessageState.LEASED,), MessageState.LEASED, "lease extended"),
    Transition(Acked, (MessageState.LEASED,), MessageState.DONE, "acknowledged"),
    Transition(Nacked, (MessageState.LEASED,), MessageState.RETRY, "nacked"),
    Transition(
        Expired,
        (MessageState.LEASED,),
        MessageState.RETRY,
        "the lease expired, or the connection closed",
    ),
    Transition(None, (MessageState.RETRY,), MessageState.READY, "the backoff is over"),
    Transition(
        CopyQueued,
        (MessageState.LEASED,),
        MessageState.DEAD,
        "rejected, or the last attempt failed",
    ),
    Transition(
        CopyStored,
        (MessageState.DEAD,),
        MessageState.DONE,
        "the copy is stored in the dead-letter topic",
    ),
    Transition(
        Dropped,
        (MessageState.LEASED,),
        MessageState.DONE,
        "rejected, or the last attempt failed, without a dead-letter topic",
    ),
    Transition(
        None, (MessageState.READY, MessageState.BLOCKED), MessageState.EXPIRED, "the TTL is over"
    ),
    Transition(Skipped, (MessageState.EXPIRED,), MessageState.DONE, "a receive skipped it"),
    Transition(
        CopyQueued,
        (MessageState.EXPIRED,),
        MessageState.DEAD,
        "a receive reached it; expired messages are dead-lettered",
    ),
    Transition(
        Cancelled, _WAITING, MessageState.CANCELLED, "cancelled, or purged from the dead letters"
    ),
)
"""The usual life of a message: the rows of the diagram."""

INTERVENTIONS = (
    Transition(
        Moved,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.READY,
        "moved to another lane",
    ),
    Transition(
        Moved, (MessageState.RETRY,), MessageState.RETRY, "moved: the retry uses the new lane"
    ),
    Transition(
        Moved,
        (MessageState.SCHEDULED,),
        MessageState.SCHEDULED,
        "moved: it will be ready in the new lane",
    ),
    Transition(
        Moved, (MessageState.LEASED,), MessageState.LEASED, "moved: a retry will use the new lane"
    ),
    Transition(Rescheduled, (MessageState.SCHEDULED,), MessageState.SCHEDULED, "rescheduled"),
    Transition(
        Skipped,
        (MessageState.READY,),
        MessageState.DONE,
        "redriven for another group, or the TTL ended before a retry",
    ),
    Transition(
        CopyQueued,
        (MessageState.READY,),
        MessageState.DEAD,
        "the TTL ended before a retry; expired messages are dead-lettered",
    ),
    Transition(CopyQueued, _WAITING, MessageState.CANCELLED, "redriven from the dead-letter topic"),
    Transition(
        Cancelled,
        (MessageState.LEASED,),
        MessageState.LEASED,
        "cancelled; the consumer can still settle it",
    ),
    *(
        Transition(
            event,
            (MessageState.LEASED,),
            MessageState.CANCELLED,
            "settled or expired after a cancel during the lease",
        )
        for event in (Acked, Nacked, Expired, Dropped)
    ),
    Transition(
        Cancelled,
        (MessageState.DEAD, MessageState.DONE),
        MessageState.CANCELLED,
        "cancelled for groups that had not received it",
    ),
    Transition(
        Reset,
        _RESETTABLE,
        MessageState.READY,
        "the group was reset to this offset or an earlier one",
    ),
    Transition(
        Reset,
        (*_WAITING, MessageState.LEASED, MessageState.DONE),
        MessageState.DONE,
        "the group was reset past this offset, or to an end before it",
    ),
    Transition(
        GroupDeleted,
        _RESETTABLE,
        MessageState.READY,
        "the group was deleted; a new group of that name starts over",
    ),
    Transition(
        Corrupted, (MessageState.READY,), MessageState.READY, "corrupt: skipped by every group"
    ),
    Transition(
        Corrupted,
        (MessageState.LEASED, MessageState.RETRY),
        MessageState.DONE,
        "corrupt: not retried",
    ),
    Transition(Repaired, (MessageState.READY,), MessageState.READY, "readable again"),
    Transition(
        Skipped,
        (MessageState.READY, MessageState.BLOCKED, MessageState.RETRY),
        MessageState.DONE,
        "removed by compaction",
    ),
    *(Transition(Compacted, (state,), state, "its segment was compacted") for state in _ALL),
    Transition(Trimmed, _ALL, None, "deleted by retention"),
    Transition(Truncated, _ALL, None, "lost in a power cut before it was durable"),
)
"""The effects of administration and of faults."""

TRANSITIONS: tuple[Transition, ...] = (*LIFE, *INTERVENTIONS)
