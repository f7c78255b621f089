"""JSON bodies of dead letters."""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from goq.api.schemas.base import Input
from goq.api.schemas.messages import MessageOut
from goq.api.values import DateTime, GroupName, Index, Redriven, Time, TopicName
from goq.broker.outbox.dead_letter_headers import DeadLetterOrigin, FailedAttempt


class Redrive(Input):
    """Dead letters to redrive, and the target topic if it is not their origin.

    ``reason`` is a part of the reason, ``reason_is`` all of it: empty if none was given.
    ``partition`` is one of the dead-letter topic's, or ``None`` for all. With ``force`` messages
    that were redriven too often are included.
    """

    group: GroupName | None = None
    reason: str | None = None
    reason_is: str | None = None
    cause: str | None = None
    key: str | None = None
    from_time: Time | None = None
    to_time: Time | None = None
    ids: list[str] = msgspec.field(default_factory=list)
    partition: Index | None = None
    after: str | None = None
    max_messages: Redriven = 1000
    to: TopicName | None = None
    dry_run: bool = False
    force: bool = False


class DeadLetterOut(MessageOut, kw_only=True):
    """A dead letter: ``origin`` is the id of the original message, ``headers`` are the message's
    own.

    ``failures`` lists its failed attempts, ``earlier`` its deaths before it was redriven.
    """

    origin: str | UnsetType | None = None
    group: str | None = None
    attempts: int | None = None
    cause: str | None = None
    reason: str | None = None
    died_at: DateTime | None = None
    published_at: DateTime | None = None
    redrives: int = 0
    lost: str | None = None
    failures: list[FailedAttempt] = msgspec.field(default_factory=list)
    earlier: list[DeadLetterOrigin] = msgspec.field(default_factory=list)


class DeadLettersOut(msgspec.Struct):
    """Dead letters, and the id to continue after."""

    messages: list[DeadLetterOut]
    next: str | None = None


class RedriveOut(msgspec.Struct):
    """The result of a redrive, or of a dry run.

    ``looped`` were redriven too often, ``lost`` cannot be read any more, and ``without_origin``
    were published here by a producer: all stay.
    """

    dry_run: bool
    matched: int
    redriven: int
    looped: int
    lost: int
    next: str | None = None
    without_origin: int = 0


class PurgeOut(msgspec.Struct):
    """The result of a purge, or of a dry run."""

    dry_run: bool
    matched: int
    purged: int
    next: str | None = None
