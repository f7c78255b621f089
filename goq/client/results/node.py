"""One node: its version and its health."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goq.client.results.result import Result, decode


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
    topics wait for a decision. ``waits_for`` is what a node that is starting waits for.
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


def decode_version(answer: object) -> NodeVersion:
    """Return a node's version from an answer."""
    return decode(NodeVersion, answer)


def decode_health(answer: object) -> NodeHealth:
    """Return a node's health from an answer."""
    return decode(NodeHealth, answer)
