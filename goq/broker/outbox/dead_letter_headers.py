"""The headers of a dead letter, in addition to the headers of its producer.

``goq-dead-id``, ``-group``, ``-attempts``, ``-cause``, ``-reason``, ``-time`` and ``-published``
tell where it comes from and why it was dead-lettered. ``goq-dead-history`` is JSON: its failed
attempts, and its earlier origins. ``goq-dead-lost`` marks a message that could no longer be read.

A message that was redriven also has ``goq-redrives``, how often, ``goq-redrive-group``, the group
that it is for, and ``goq-redriven-from``, the id of the dead letter that it is a copy of.

Clients may publish headers of these names too. They count only in frames that the outbox wrote,
which :attr:`~goq.frame.header.Attribute.COPY` marks: :func:`dead_letter_of` tells them apart. No
copy takes over those of a client.

These headers do not count against the number of headers that a message may have. They share its
limit in bytes: the history is cut first, oldest part first, then the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.log.frame_cache import REDRIVE_GROUP_HEADER
from goq.delivery.events.event import Failure
from goq.frame.header import Attribute
from goq.model import Header
from goq.units import format_time_us

_ID = "goq-dead-id"
_GROUP = "goq-dead-group"
_ATTEMPTS = "goq-dead-attempts"
_CAUSE = "goq-dead-cause"
_REASON = "goq-dead-reason"
_TIME = "goq-dead-time"
_PUBLISHED = "goq-dead-published"
_HISTORY = "goq-dead-history"
_LOST = "goq-dead-lost"
_REDRIVES = "goq-redrives"
_REDRIVEN_FROM = "goq-redriven-from"
_NAMES = frozenset(
    (_ID, _GROUP, _ATTEMPTS, _CAUSE, _REASON, _TIME, _PUBLISHED, _HISTORY, _LOST, _REDRIVES)
) | {REDRIVE_GROUP_HEADER, _REDRIVEN_FROM}


class FailedAttempt(msgspec.Struct, omit_defaults=True):
    """An attempt that ended without an ack."""

    time: str
    cause: str
    consumer: str = ""
    reason: str = ""


class DeadLetterOrigin(msgspec.Struct, omit_defaults=True):
    """The message that a group gave up: its id, its attempts and the cause. Times are RFC 3339."""

    id: str
    group: str
    attempts: int
    cause: str
    time: str
    reason: str = ""
    published: str = ""
    failures: list[FailedAttempt] = []

    @property
    def topic(self) -> str:
        """The topic that it died in."""
        return self.id.rsplit(":", 2)[0]


class CopyOrigin(NamedTuple):
    """The messages that a copy of the outbox comes from, by id; None where there is none.

    ``died_as`` is the message that a group gave up last. ``redriven_from`` is the dead letter that
    a redriven message is a copy of.
    """

    died_as: str | None
    redriven_from: str | None


class _History(msgspec.Struct, omit_defaults=True):
    failures: list[FailedAttempt] = []
    earlier: list[DeadLetterOrigin] = []


class DeadLetter(NamedTuple):
    """The content of the headers of a dead letter. ``headers`` are the headers of its producer.

    ``origin`` is None for a message that a producer published to the dead-letter topic. ``lost`` is
    the reason why the message itself is missing, empty otherwise. ``redriven_from`` is the id of
    the dead letter that a redriven message is a copy of, empty otherwise.
    """

    origin: DeadLetterOrigin | None
    earlier_origins: list[DeadLetterOrigin]
    redrives: int
    lost: str
    redriven_from: str
    headers: list[Header]


_decode_history = msgspec.json.Decoder(_History).decode
_encode = msgspec.json.Encoder().encode


def dead_letter_of(attributes: int, headers: Sequence[Header]) -> DeadLetter:
    """Return what a message in a frame with these attributes tells of its deaths.

    Headers of a client tell nothing: it could claim to come from a topic that it may not publish
    to, and a redrive would put it there.
    """
    if attributes & Attribute.COPY:
        return read_dead_letter(headers)
    return DeadLetter(None, [], 0, "", "", list(headers))


def without_claims(attributes: int, headers: Sequence[Header]) -> Sequence[Header]:
    """Return the headers of a message to copy, without those that only the outbox may write."""
    if attributes & Attribute.COPY:
        return headers
    return [header for header in headers if header[0] not in _NAMES]


def copy_origin(headers: Sequence[Header]) -> CopyOrigin:
    """Return the origin of a message in a frame that the outbox wrote."""
    values = dict(headers)
    found = [values[name].decode() if name in values else None for name in (_ID, _REDRIVEN_FROM)]
    return CopyOrigin(*found)


def read_dead_letter(headers: Sequence[Header]) -> DeadLetter:
    """Return the content of headers that the outbox wrote, see :func:`dead_letter_of`.

    A header with an invalid value counts as absent.
    """
    values: dict[str, bytes] = {}
    own: list[Header] = []
    for name, value in headers:
        if name in _NAMES:
            values[name] = value
        else:
            own.append((name, value))
    history = _History()
    if _HISTORY in values:
        try:
            history = _decode_history(values[_HISTORY])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            history = _History()
    origin = None
    if _ID in values:
        origin = DeadLetterOrigin(
            id=_text(values, _ID),
            group=_text(values, _GROUP),
            attempts=_number(values, _ATTEMPTS),
            cause=_text(values, _CAUSE),
            time=_text(values, _TIME),
            reason=_text(values, _REASON),
            published=_text(values, _PUBLISHED),
            failures=history.failures,
        )
    return DeadLetter(
        origin,
        history.earlier,
        _number(values, _REDRIVES),
        _text(values, _LOST),
        _text(values, _REDRIVEN_FROM),
        own,
    )


def dead_letter_headers_of(
    headers: Sequence[Header], origin: DeadLetterOrigin, *, lost: str = ""
) -> list[Header]:
    """Return the headers of a new dead letter. Its former origin becomes part of its history."""
    former = read_dead_letter(headers)
    earlier = [*former.earlier_origins, *([former.origin] if former.origin else [])]
    found = [
        *former.headers,
        (_ID, origin.id.encode()),
        (_GROUP, origin.group.encode()),
        (_ATTEMPTS, b"%d" % origin.attempts),
        (_CAUSE, origin.cause.encode()),
        (_TIME, origin.time.encode()),
    ]
    if origin.published:
        found.append((_PUBLISHED, origin.published.encode()))
    if lost:
        found.append((_LOST, lost.encode()))
    if former.redrives:
        found.append((_REDRIVES, b"%d" % former.redrives))
    if origin.reason and (reason := _cut(origin.reason, _bytes_left(found, _REASON))):
        found.append((_REASON, reason))
    room = min(_bytes_left(found, _HISTORY), limits.DEAD_HISTORY_BYTES_MAX)
    if history := _encode_history(
        origin.failures, earlier[-limits.DEAD_LETTER_ORIGINS_MAX :], room
    ):
        found.append((_HISTORY, history))
    return found


def redriven_headers(headers: Sequence[Header], letter_id: str, target: str) -> list[Header]:
    """Return the headers of a dead letter that is redriven to the topic ``target``.

    In its original topic it is delivered only to the group that gave it up.
    """
    letter = read_dead_letter(headers)
    replaced = (_REDRIVES, _REDRIVEN_FROM, REDRIVE_GROUP_HEADER)
    found = [header for header in headers if header[0] not in replaced]
    found.append((_REDRIVES, b"%d" % (letter.redrives + 1)))
    found.append((_REDRIVEN_FROM, letter_id.encode()))
    if letter.lost:
        found.append((REDRIVE_GROUP_HEADER, b""))
    elif letter.origin is not None and letter.origin.topic == target:
        found.append((REDRIVE_GROUP_HEADER, letter.origin.group.encode()))
    return found


def placeholder_headers(life_id: str, lost: str) -> list[Header]:
    """Return the headers of the placeholder for a lost dead letter. No group receives it."""
    life = life_id.encode()
    return [
        (_ID, life),
        (_LOST, lost.encode()),
        (_REDRIVEN_FROM, life),
        (REDRIVE_GROUP_HEADER, b""),
    ]


def failed_attempts(failures: Sequence[Failure]) -> list[FailedAttempt]:
    """Return failures in the form of the history header."""
    return [
        FailedAttempt(format_time_us(f.time_ms * 1000), f.cause, f.consumer, f.reason)
        for f in map(Failure._make, failures)
    ]


def _encode_history(
    failures: list[FailedAttempt], earlier: list[DeadLetterOrigin], room: int
) -> bytes:
    """Return as much of the history as fits into ``room`` bytes, newest part first."""
    while failures or earlier:
        encoded = _encode(_History(failures, earlier))
        if len(encoded) <= room:
            return encoded
        failures, earlier = (failures, earlier[1:]) if earlier else (failures[1:], earlier)
    return b""


def _bytes_left(headers: Sequence[Header], name: str) -> int:
    used = sum(len(known.encode()) + len(value) for known, value in headers)
    return limits.HEADERS_BYTES_MAX - used - len(name)


def _cut(text: str, size_bytes: int) -> bytes:
    return text.encode()[: max(0, size_bytes)].decode(errors="ignore").encode()


def _text(values: dict[str, bytes], name: str) -> str:
    return values.get(name, b"").decode(errors="replace")


def _number(values: dict[str, bytes], name: str) -> int:
    text = values.get(name, b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0
