"""What a message is for a group, and what changes that: one row a transition.

The code that applies events is :mod:`goq.delivery.partition_state`; this table says of it, for one
message and one group, what people see. ``docs/delivery.md`` is drawn from it, and a test applies
every event to a message in every state that a row names.
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
    """What a message is for a group. Each is one of these at a time."""

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
    """What an event makes of a message, by what it was.

    Without an ``event`` nothing is written: it follows from the message or from the time. Without
    ``sources`` the message is new, without a ``target`` it is gone.
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
    Transition(Matured, (MessageState.SCHEDULED,), MessageState.READY, "its time has come"),
    Transition(
        None,
        (MessageState.READY,),
        MessageState.BLOCKED,
        "a receive met it while its key was in hand",
    ),
    Transition(
        Leased,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.LEASED,
        "handed to a consumer",
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
    Transition(Skipped, (MessageState.EXPIRED,), MessageState.DONE, "a receive came to it"),
    Transition(
        CopyQueued,
        (MessageState.EXPIRED,),
        MessageState.DEAD,
        "a receive came to it, and expired messages are kept as dead letters",
    ),
    Transition(
        Cancelled, _WAITING, MessageState.CANCELLED, "cancelled, or purged from dead letters"
    ),
)
"""How messages live: what the diagram shows."""

INTERVENTIONS = (
    Transition(
        Moved,
        (MessageState.READY, MessageState.BLOCKED),
        MessageState.READY,
        "it has another priority",
    ),
    Transition(Moved, (MessageState.RETRY,), MessageState.RETRY, "its retry is in another lane"),
    Transition(
        Moved, (MessageState.SCHEDULED,), MessageState.SCHEDULED, "it will be in another lane"
    ),
    Transition(
        Moved, (MessageState.LEASED,), MessageState.LEASED, "if it comes back, then in another lane"
    ),
    Transition(
        Rescheduled, (MessageState.SCHEDULED,), MessageState.SCHEDULED, "it is due at another time"
    ),
    Transition(
        Skipped,
        (MessageState.READY,),
        MessageState.DONE,
        "it is a dead letter put back for another group, or its ttl is over before a retry",
    ),
    Transition(
        CopyQueued,
        (MessageState.READY,),
        MessageState.DEAD,
        "its ttl is over before a retry, and expired messages are kept as dead letters",
    ),
    Transition(
        CopyQueued, _WAITING, MessageState.CANCELLED, "it is a dead letter, and is put back"
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
        "the group goes back to it or to one before it",
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
        "the group goes on from behind it, or ends before it",
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
        "what a new group of the name begins with",
    ),
    Transition(
        Corrupted, (MessageState.READY,), MessageState.READY, "it cannot be read: it is held back"
    ),
    Transition(
        Corrupted,
        (MessageState.LEASED, MessageState.RETRY),
        MessageState.DONE,
        "it cannot be read any more",
    ),
    Transition(
        Repaired, (MessageState.READY,), MessageState.READY, "it can be read again: it is due"
    ),
    Transition(
        Skipped,
        (MessageState.READY, MessageState.BLOCKED, MessageState.RETRY),
        MessageState.DONE,
        "it was compacted away",
    ),
    *(
        Transition(Compacted, (state,), state, "compaction passed, whether it is kept or gone")
        for state in _ALL
    ),
    Transition(Trimmed, _ALL, None, "retention deleted it"),
    Transition(Truncated, _ALL, None, "a power cut took what had not reached the disk"),
)
"""What people and accidents do to messages besides."""

TRANSITIONS: tuple[Transition, ...] = (*LIFE, *INTERVENTIONS)
