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

LIFE = (
    Transition(None, (), MessageState.READY, "published"),
    Transition(
        None, (), MessageState.SCHEDULED, "published with a delay or a time to be delivered at"
    ),
    Transition(Matured, (MessageState.SCHEDULED,), MessageState.READY, "its due time has come"),
    Transition(
        None,
        (MessageState.READY,),
        MessageState.BLOCKED,
        "a receive found its key locked",
    ),
    Transition(
        Leased,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.LEASED,
        "leased to a consumer",
    ),
    Transition(
        Extended, (MessageState.LEASED,), MessageState.LEASED, "the consumer asked for more time"
    ),
    Transition(Acked, (MessageState.LEASED,), MessageState.DONE, "acknowledged"),
    Transition(Nacked, (MessageState.LEASED,), MessageState.RETRY, "given back"),
    Transition(
        Expired,
        (MessageState.LEASED,),
        MessageState.RETRY,
        "the lease ended, or its connection closed",
    ),
    Transition(
        None, (MessageState.RETRY,), MessageState.READY, "the wait before the next attempt is over"
    ),
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
        "its copy is stored in the dead letters",
    ),
    Transition(
        Dropped,
        (MessageState.LEASED,),
        MessageState.DONE,
        "given up where no dead letters are kept",
    ),
    Transition(
        None, (MessageState.READY, MessageState.BLOCKED), MessageState.EXPIRED, "its ttl is over"
    ),
    Transition(Skipped, (MessageState.EXPIRED,), MessageState.DONE, "a receive reached it"),
    Transition(
        CopyQueued,
        (MessageState.EXPIRED,),
        MessageState.DEAD,
        "a receive reached it, and expired messages are kept as dead letters",
    ),
    Transition(
        Cancelled, _WAITING, MessageState.CANCELLED, "cancelled, or purged from dead letters"
    ),
)
"""The usual life of a message: the rows of the diagram."""

INTERVENTIONS = (
    Transition(
        Moved,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.READY,
        "its priority was changed",
    ),
    Transition(Moved, (MessageState.RETRY,), MessageState.RETRY, "its retry is in another lane"),
    Transition(
        Moved, (MessageState.SCHEDULED,), MessageState.SCHEDULED, "it will be in another lane"
    ),
    Transition(
        Moved, (MessageState.LEASED,), MessageState.LEASED, "a retry of it will be in another lane"
    ),
    Transition(
        Rescheduled, (MessageState.SCHEDULED,), MessageState.SCHEDULED, "it is due at another time"
    ),
    Transition(
        Skipped,
        (MessageState.READY,),
        MessageState.DONE,
        "it is a dead letter redriven for another group, or its ttl is over before a retry",
    ),
    Transition(
        CopyQueued,
        (MessageState.READY,),
        MessageState.DEAD,
        "its ttl is over before a retry, and expired messages are kept as dead letters",
    ),
    Transition(
        CopyQueued, _WAITING, MessageState.CANCELLED, "it is a dead letter, and is redriven"
    ),
    Transition(
        Cancelled, (MessageState.LEASED,), MessageState.LEASED, "its consumer may still settle it"
    ),
    *(
        Transition(
            event,
            (MessageState.LEASED,),
            MessageState.CANCELLED,
            "it was cancelled while it was leased",
        )
        for event in (Acked, Nacked, Expired, Dropped)
    ),
    Transition(
        Cancelled,
        (MessageState.DEAD, MessageState.DONE),
        MessageState.CANCELLED,
        "cancelled for the groups that had not got it",
    ),
    Transition(
        Reset,
        (
            MessageState.READY,
            MessageState.BLOCKED,
            MessageState.LEASED,
            MessageState.RETRY,
            MessageState.DEAD,
            MessageState.DONE,
        ),
        MessageState.READY,
        "the group was reset to it or to an earlier message",
    ),
    Transition(
        Reset,
        (
            MessageState.BLOCKED,
            MessageState.LEASED,
            MessageState.DONE,
            *_WAITING[2:],
            MessageState.READY,
        ),
        MessageState.DONE,
        "the group was reset past it, or ends before it",
    ),
    Transition(
        GroupDeleted,
        (
            MessageState.READY,
            MessageState.BLOCKED,
            MessageState.LEASED,
            MessageState.RETRY,
            MessageState.DEAD,
            MessageState.DONE,
        ),
        MessageState.READY,
        "a new group of the name begins with it",
    ),
    Transition(
        Corrupted, (MessageState.READY,), MessageState.READY, "it cannot be read: no group gets it"
    ),
    Transition(
        Corrupted,
        (MessageState.LEASED, MessageState.RETRY),
        MessageState.DONE,
        "it cannot be read any more",
    ),
    Transition(Repaired, (MessageState.READY,), MessageState.READY, "it can be read again"),
    Transition(
        Skipped,
        (MessageState.READY, MessageState.BLOCKED, MessageState.RETRY),
        MessageState.DONE,
        "it was compacted away",
    ),
    *(
        Transition(Compacted, (state,), state, "compaction passed it, and kept or removed it")
        for state in _ALL
    ),
    Transition(Trimmed, _ALL, None, "retention deleted it"),
    Transition(Truncated, _ALL, None, "a power cut lost it before it was on the disk"),
)
"""The effects of administration and of faults."""

TRANSITIONS: tuple[Transition, ...] = (*LIFE, *INTERVENTIONS)
