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
    Corrupted,
    Departed,
    Departing,
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


class State(StrEnum):
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
    sources: tuple[State, ...]
    target: State | None
    why: str


_ALL = tuple(State)
_WAITING = (State.READY, State.BLOCKED, State.RETRY, State.SCHEDULED, State.EXPIRED)

LIFE = (
    Transition(None, (), State.READY, "published"),
    Transition(None, (), State.SCHEDULED, "published with a delay or a time to be delivered at"),
    Transition(Matured, (State.SCHEDULED,), State.READY, "its time has come"),
    Transition(None, (State.READY,), State.BLOCKED, "a receive met it while its key was in hand"),
    Transition(Leased, (State.READY, State.BLOCKED), State.LEASED, "handed to a consumer"),
    Transition(Extended, (State.LEASED,), State.LEASED, "the consumer asked for more time"),
    Transition(Acked, (State.LEASED,), State.DONE, "acknowledged"),
    Transition(Nacked, (State.LEASED,), State.RETRY, "given back"),
    Transition(Expired, (State.LEASED,), State.RETRY, "the lease ended, or its connection closed"),
    Transition(None, (State.RETRY,), State.READY, "the wait before the next attempt is over"),
    Transition(Departing, (State.LEASED,), State.DEAD, "rejected, or the last attempt failed"),
    Transition(Departed, (State.DEAD,), State.DONE, "its copy is stored in the dead letters"),
    Transition(Dropped, (State.LEASED,), State.DONE, "given up where no dead letters are kept"),
    Transition(None, (State.READY, State.BLOCKED), State.EXPIRED, "its ttl is over"),
    Transition(Skipped, (State.EXPIRED,), State.DONE, "a receive came to it"),
    Transition(
        Departing,
        (State.EXPIRED,),
        State.DEAD,
        "a receive came to it, and expired messages are kept as dead letters",
    ),
    Transition(Cancelled, _WAITING, State.CANCELLED, "cancelled, or purged from dead letters"),
)
"""How messages live: what the diagram shows."""

INTERVENTIONS = (
    Transition(Moved, (State.READY, State.BLOCKED), State.READY, "it has another priority"),
    Transition(Moved, (State.RETRY,), State.RETRY, "its retry is in another lane"),
    Transition(Moved, (State.SCHEDULED,), State.SCHEDULED, "it will be in another lane"),
    Transition(Moved, (State.LEASED,), State.LEASED, "if it comes back, then in another lane"),
    Transition(Rescheduled, (State.SCHEDULED,), State.SCHEDULED, "it is due at another time"),
    Transition(
        Skipped,
        (State.READY,),
        State.DONE,
        "it is a dead letter put back for another group, or its ttl is over before a retry",
    ),
    Transition(
        Departing,
        (State.READY,),
        State.DEAD,
        "its ttl is over before a retry, and expired messages are kept as dead letters",
    ),
    Transition(Departing, _WAITING, State.CANCELLED, "it is a dead letter, and is put back"),
    Transition(Cancelled, (State.LEASED,), State.LEASED, "its consumer may still settle it"),
    *(
        Transition(event, (State.LEASED,), State.CANCELLED, "it was cancelled while it was leased")
        for event in (Acked, Nacked, Expired, Dropped)
    ),
    Transition(
        Cancelled,
        (State.DEAD, State.DONE),
        State.CANCELLED,
        "cancelled for the groups that had not got it",
    ),
    Transition(
        Reset,
        (State.READY, State.BLOCKED, State.LEASED, State.RETRY, State.DEAD, State.DONE),
        State.READY,
        "the group goes back to it or to one before it",
    ),
    Transition(
        Reset,
        (State.BLOCKED, State.LEASED, State.DONE, *_WAITING[2:], State.READY),
        State.DONE,
        "the group goes on from behind it, or ends before it",
    ),
    Transition(
        GroupDeleted,
        (State.READY, State.BLOCKED, State.LEASED, State.RETRY, State.DEAD, State.DONE),
        State.READY,
        "what a new group of the name begins with",
    ),
    Transition(Corrupted, (State.READY,), State.READY, "it cannot be read: it is held back"),
    Transition(Corrupted, (State.LEASED, State.RETRY), State.DONE, "it cannot be read any more"),
    Transition(Repaired, (State.READY,), State.READY, "it can be read again: it is due"),
    Transition(
        Skipped, (State.READY, State.BLOCKED, State.RETRY), State.DONE, "it was compacted away"
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
