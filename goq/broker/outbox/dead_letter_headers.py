"""What a dead letter says of itself: headers beside those that its producer gave it.

``goq-dead-id``, ``-group``, ``-attempts``, ``-cause``, ``-reason``, ``-time`` and ``-published``
tell where it comes from and how it died; ``goq-dead-history`` is JSON: how its attempts failed, and
how it died in earlier lives. ``goq-redrives`` counts how often it was put back, and
``goq-redrive-group`` says for whom. ``goq-dead-lost`` marks one that could no longer be read.

They come on top of the headers that a message may have. In bytes the history gives way first, its
oldest part before the newer, and then the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.log.frame_fetch import REDRIVE_GROUP_HEADER
from goq.delivery.events.event import Failure
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
_NAMES = frozenset(
    (_ID, _GROUP, _ATTEMPTS, _CAUSE, _REASON, _TIME, _PUBLISHED, _HISTORY, _LOST, _REDRIVES)
) | {REDRIVE_GROUP_HEADER}


class FailedAttempt(msgspec.Struct, omit_defaults=True):
    """An attempt that ended without an ack."""

    time: str
    cause: str
    consumer: str = ""
    reason: str = ""


class Life(msgspec.Struct, omit_defaults=True):
    """How a message fared under one id, up to when a group gave it up; times are RFC 3339."""

    id: str
    group: str
    attempts: int
    cause: str
    time: str
    reason: str = ""
    published: str = ""
    failures: list[FailedAttempt] = []


class _History(msgspec.Struct, omit_defaults=True):
    failures: list[FailedAttempt] = []
    earlier: list[Life] = []


class DeadLetter(NamedTuple):
    """What the headers of a dead letter say; ``headers`` are the others, its producer's.

    ``life`` is None where it is none, but a message that was published among dead letters.
    ``lost`` says why there is nothing but these headers, empty where there is more.
    """

    life: Life | None
    earlier: list[Life]
    redrives: int
    lost: str
    headers: list[Header]


_decode_history = msgspec.json.Decoder(_History).decode
_encode = msgspec.json.Encoder().encode


def read_dead_letter(headers: Sequence[Header]) -> DeadLetter:
    """Return what headers say; whatever is not as a node writes it counts as not there."""
    said: dict[str, bytes] = {}
    own: list[Header] = []
    for name, value in headers:
        if name in _NAMES:
            said[name] = value
        else:
            own.append((name, value))
    history = _History()
    if _HISTORY in said:
        try:
            history = _decode_history(said[_HISTORY])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            history = _History()
    life = None
    if _ID in said:
        life = Life(
            id=_text(said, _ID),
            group=_text(said, _GROUP),
            attempts=_number(said, _ATTEMPTS),
            cause=_text(said, _CAUSE),
            time=_text(said, _TIME),
            reason=_text(said, _REASON),
            published=_text(said, _PUBLISHED),
            failures=history.failures,
        )
    return DeadLetter(life, history.earlier, _number(said, _REDRIVES), _text(said, _LOST), own)


def dead_headers(headers: Sequence[Header], life: Life, *, lost: str = "") -> list[Header]:
    """Return the headers of a message that has died; an earlier life of it becomes history."""
    former = read_dead_letter(headers)
    earlier = [*former.earlier, *([former.life] if former.life else [])]
    found = [
        *former.headers,
        (_ID, life.id.encode()),
        (_GROUP, life.group.encode()),
        (_ATTEMPTS, b"%d" % life.attempts),
        (_CAUSE, life.cause.encode()),
        (_TIME, life.time.encode()),
    ]
    if life.published:
        found.append((_PUBLISHED, life.published.encode()))
    if lost:
        found.append((_LOST, lost.encode()))
    if former.redrives:
        found.append((_REDRIVES, b"%d" % former.redrives))
    if life.reason and (reason := _cut(life.reason, _room(found, _REASON))):
        found.append((_REASON, reason))
    room = min(_room(found, _HISTORY), limits.DEAD_HISTORY_BYTES_MAX)
    if history := _fitting(life.failures, earlier[-limits.DEAD_LIVES_REMEMBERED :], room):
        found.append((_HISTORY, history))
    return found


def redriven_headers(headers: Sequence[Header], *, is_origin: bool) -> list[Header]:
    """Return the headers of a dead letter that is put back.

    Where it came from it is for the group alone that gave it up.
    """
    letter = read_dead_letter(headers)
    found = [h for h in headers if h[0] not in (_REDRIVES, REDRIVE_GROUP_HEADER)]
    found.append((_REDRIVES, b"%d" % (letter.redrives + 1)))
    if letter.lost:
        found.append((REDRIVE_GROUP_HEADER, b""))
    elif is_origin and letter.life is not None:
        found.append((REDRIVE_GROUP_HEADER, letter.life.group.encode()))
    return found


def lost_headers(life_id: str, lost: str) -> list[Header]:
    """Return the headers of what stands for a dead letter that was lost: it is for no group."""
    return [(_ID, life_id.encode()), (_LOST, lost.encode()), (REDRIVE_GROUP_HEADER, b"")]


def failed_attempts(failures: Sequence[Failure]) -> list[FailedAttempt]:
    """Return failures as a dead letter tells them."""
    return [
        FailedAttempt(format_time_us(f.time_ms * 1000), f.cause, f.consumer, f.reason)
        for f in map(Failure._make, failures)
    ]


def _fitting(failures: list[FailedAttempt], earlier: list[Life], room: int) -> bytes:
    """Return as much of a history as there is room for, the newest of it."""
    while failures or earlier:
        encoded = _encode(_History(failures, earlier))
        if len(encoded) <= room:
            return encoded
        failures, earlier = (failures, earlier[1:]) if earlier else (failures[1:], earlier)
    return b""


def _room(headers: Sequence[Header], name: str) -> int:
    used = sum(len(known.encode()) + len(value) for known, value in headers)
    return limits.HEADERS_BYTES_MAX - used - len(name)


def _cut(text: str, size_bytes: int) -> bytes:
    return text.encode()[: max(0, size_bytes)].decode(errors="ignore").encode()


def _text(said: dict[str, bytes], name: str) -> str:
    return said.get(name, b"").decode(errors="replace")


def _number(said: dict[str, bytes], name: str) -> int:
    text = said.get(name, b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0
