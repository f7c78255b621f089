"""One node: its version and its health."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goq.client.results.result import Result, decode
from goq.errors import BY_CODE, GoqError, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersion(Result):
    """The versions of goq and of Python that a node runs, and its id."""

    version: str
    python: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProblem:
    """A topic, a partition or a file that is not well: its state, why, and what to do."""

    what: str
    state: str
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth(Result):
    """The health of a node; ``status`` is ``ok`` or says what is wrong.

    ``disk`` is ``full`` or ``nearly full``, else empty. ``limits_reached`` says why no further
    topic fits. ``opening`` counts partitions that the start has not opened and checked yet.
    ``offline`` and ``damaged`` are partitions, as ``orders:3``. ``problems`` says why, and which
    topics wait for a decision. ``waits_for`` says why a node is ``starting``, or
    ``unavailable`` once it had started.
    ``certificate_expires`` is there in the last 14 days of the node's certificate.
    """

    status: str
    disk: str = ""
    limits_reached: tuple[str, ...] = ()
    opening: int = 0
    offline: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    problems: tuple[NodeProblem, ...] = ()
    waits_for: tuple[str, ...] = ()
    certificate_expires: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBackup(Result):
    """A backup: its name, what it has, and how many of its bytes were new.

    ``missing`` are partitions that were offline, as ``orders:2``: the backup lacks them.
    """

    name: str = ""
    topics: int = 0
    messages: int = 0
    bytes: int = 0
    copied_bytes: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRestore(Result):
    """A topic that was restored into a running node: from which backup, and what it has.

    ``missing`` are partitions that the backup lacks, as ``orders:2``: they are empty.
    ``is_compacted`` says that compaction removed messages from before the time.
    """

    backup: str = ""
    topic: str = ""
    messages: int = 0
    bytes: int = 0
    missing: tuple[str, ...] = ()
    is_compacted: bool = False


def decode_begun(answer: object) -> int:
    """Return the number of a backup or a restore that was begun."""
    number = answer.get("number") if isinstance(answer, dict) else None
    return number if isinstance(number, int) else 0


def decode_backup(answer: object, number: int) -> FinishedBackup | None:
    """Return a backup by its number, None while it is under way; raise the error that ended it."""
    last = _finished(answer, number, "backup")
    return None if last is None else decode(FinishedBackup, last)


def decode_restore(answer: object, number: int) -> FinishedRestore | None:
    """Return a restore by its number, None while it is under way; raise the error that ended it."""
    last = _finished(answer, number, "restore")
    return None if last is None else decode(FinishedRestore, last)


def _finished(answer: object, number: int, what: str) -> dict[str, object] | None:
    fields = answer if isinstance(answer, dict) else {}
    if fields.get("running") == number:
        return None
    last = fields.get("last")
    if not isinstance(last, dict) or last.get("number") != number:
        raise Unavailable(f"the node was restarted, so there is no {what}; begin it again")
    if last.get("failure"):
        raise _failure(last)(f"no {what}: {last['failure']}")
    return last


def _failure(last: dict[str, object]) -> type[GoqError]:
    """Return the error that ended a job; ``Unavailable`` for one that has no code of its own."""
    error = BY_CODE.get(str(last.get("code", "")), GoqError)
    return Unavailable if error is GoqError else error


def decode_version(answer: object) -> NodeVersion:
    """Return a node's version from an answer."""
    return decode(NodeVersion, answer)


def decode_health(answer: object) -> NodeHealth:
    """Return a node's health from an answer."""
    return decode(NodeHealth, answer)
