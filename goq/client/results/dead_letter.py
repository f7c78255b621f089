"""Dead letters as a node describes them, and the results of redriving and purging them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goq.client.results.message import MessageDescription, message_fields
from goq.client.results.result import Json, Result, as_object, decode, items_of
from goq.model import MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDelivery:
    """An attempt that ended without an ack; ``cause`` is ``nacked``, ``expired`` or the like."""

    time: datetime
    cause: str
    consumer: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierDeath:
    """How a message became a dead letter before it was redriven; ``time`` is when."""

    id: str
    group: str
    attempts: int
    cause: str
    time: datetime
    reason: str = ""
    failures: tuple[FailedDelivery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDescription(MessageDescription):
    """A dead letter: a message that a group gave up.

    ``id`` is its own in the dead-letter topic, ``origin`` the id that the message had. ``group``
    gave it up at ``died_at``, after so many ``attempts``. ``cause`` is ``nacked``, ``expired``,
    ``rejected`` or ``ttl``, and ``reason`` the consumer's text. ``failures`` are its failed
    attempts, ``redrives`` how often it was redriven, and ``earlier`` how it died before. ``lost``
    says why its content cannot be read any more; None where it can.

    These are None for a message that was published to the dead-letter topic directly.
    """

    origin: MessageId | None = None
    group: str | None = None
    attempts: int | None = None
    cause: str | None = None
    reason: str | None = None
    died_at: datetime | None = None
    published_at: datetime | None = None
    redrives: int = 0
    lost: str | None = None
    failures: tuple[FailedDelivery, ...] = ()
    earlier: tuple[EarlierDeath, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage(Result):
    """A page of dead letters. ``next`` goes into ``after`` of the next call; None on the last."""

    messages: tuple[DeadLetterDescription, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult(Result):
    """The result of one redrive call, in dead letters; with ``dry_run`` nothing was moved.

    Of the ``matched`` ones ``redriven`` were put back. ``looped`` were redriven too often already,
    ``lost`` cannot be read any more, and ``without_origin`` were published to the dead-letter topic
    by a producer: all stay, the last unless ``to`` names a topic. ``next`` goes into ``after`` of
    the next call; None when all are looked at.
    """

    dry_run: bool
    matched: int
    redriven: int
    looped: int
    lost: int
    next: str | None = None
    without_origin: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult(Result):
    """The result of one purge call, in dead letters; with ``dry_run`` nothing was deleted.

    ``next`` goes into ``after`` of the next call; None when all are looked at.
    """

    dry_run: bool
    matched: int
    purged: int
    next: str | None = None


def decode_dead_letter_page(answer: object) -> DeadLetterPage:
    """Return a page of dead letters from an answer."""
    fields = {"messages": tuple(map(_decode_dead_letter, items_of(answer, "messages")))}
    return decode(DeadLetterPage, answer, fields)


def decode_redrive(answer: object) -> RedriveResult:
    """Return what was redriven from an answer."""
    return decode(RedriveResult, answer)


def decode_purge(answer: object) -> PurgeResult:
    """Return what was purged from an answer."""
    return decode(PurgeResult, answer)


def _decode_dead_letter(answer: object) -> DeadLetterDescription:
    letter: Json = as_object(answer)
    fields = message_fields(letter)
    if (origin := letter.get("origin")) is not None:
        fields["origin"] = MessageId.parse(str(origin))
    return decode(DeadLetterDescription, answer, fields)
