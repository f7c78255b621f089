"""The JSON shapes of operations on single messages."""

from __future__ import annotations

import msgspec

from goq.api.schemas.bodies import Input, MessageOut, Output


class MessageChange(Input):
    """What to change of a message that waits: its priority, or when it is delivered."""

    priority: str | int | None = None
    deliver_at: str | float | None = None


class GroupStateOut(Output):
    """What a message is for a group: with whom it is until when, or when it is due again."""

    group: str
    state: str
    attempt: int | None = None
    consumer: str | None = None
    lease_until: str | None = None
    due: str | None = None


class StatusOut(MessageOut, kw_only=True):
    """A message with what holds for it now, in all and by group.

    ``state`` is ``scheduled``, ``cancelled`` or else ``available``. Priority and time of delivery
    are those in force, changed since it was published or not.
    """

    groups: list[GroupStateOut]


class ScheduledOut(msgspec.Struct):
    """Messages that wait for their time in the order in which they are due, and where to go on."""

    messages: list[MessageOut]
    next: str | None = None
