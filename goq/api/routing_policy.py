"""Which node answers a route where several have the partitions of a topic.

By itself a route answers from what is open on its node. What that means for all nodes together is
declared with the route: any node will do, or the one that leads the partition asked for, or all
that lead one, whose answers are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from goq.errors import GoqError
from goq.http.message import Request
from goq.model import DEAD_LETTERS_SUFFIX, MessageId

STREAM_ID: Final = "Goq-Stream"
"""The header with the id of a stream."""
READY: Final = "goq-internal-ready"
"""The header with the count of readiness from before a node looked for messages."""
BYTES_MAX: Final = "goq-internal-bytes-max"
"""The header with how many bytes a node may hand over to the one that asks it."""
Document = dict[str, Any]
TopicOf = Callable[[Sequence[str]], str | None]
"""Returns whose leaders are to answer, given the parameters of the path; None for all nodes."""


@dataclass(frozen=True, slots=True)
class MergeContext:
    """What a merge may have to know of a request."""

    path: Sequence[str]
    """The parameters of the path."""
    query: Mapping[str, str]
    leaders: Callable[[str], Sequence[str | None]]
    """Returns the names of the nodes that lead a topic's partitions, None where nobody does."""


Merge = Callable[[Sequence[Document], MergeContext], Document]
"""Makes one answer of several."""


@dataclass(frozen=True, slots=True)
class ToPartitionLeader:
    """The node that leads one partition answers: ``find`` says which, None if it cannot be told."""

    find: Callable[[Request, Sequence[str]], tuple[str, int] | None]


def topic_of_path(values: Sequence[str]) -> str | None:
    """Return the topic that the path names."""
    return values[0] if values else None


def dead_letter_topic_of_path(values: Sequence[str]) -> str | None:
    """Return the topic that holds the dead letters of the one in the path."""
    return values[0].removesuffix(DEAD_LETTERS_SUFFIX) + DEAD_LETTERS_SUFFIX


@dataclass(frozen=True, slots=True)
class ToAllLeaders:
    """All nodes that lead a partition of the topic answer, and ``merge`` makes one of it.

    Where ``needs_all``, there is no answer while a partition has no leader. ``partition_of`` tells
    of a request that is about one partition alone.
    """

    merge: Merge
    topic_of: TopicOf = topic_of_path
    needs_all: bool = False
    partition_of: Callable[[Request], int | None] | None = None


@dataclass(frozen=True, slots=True)
class LocalThenMerged:
    """Any node does it; what it answers is then made whole by what all leaders show.

    They do so at ``path``, given the document that the node answered; at the request's own if there
    is none. ``is_whole`` tells whether all have heard of it.
    """

    merge: Merge
    path: Callable[[Document], str] | None = None
    is_whole: Callable[[Document], bool] = lambda _shown: True


@dataclass(frozen=True, slots=True)
class Sequential:
    """The leaders of the partitions answer one after another, each for a partition, in order.

    Each is asked for what is left of ``max``, so many if the request does not say. ``sums`` are the
    numbers to add up; ``counts`` is the one of them that ``max`` bounds.
    """

    sums: Sequence[str]
    counts: str
    max_default: int
    topic_of: TopicOf = dead_letter_topic_of_path


class CustomRouting(Enum):
    """Routes that have their own way to be answered by several nodes."""

    RECEIVE = auto()
    SETTLE = auto()
    STREAM = auto()
    DELETE_GROUP = auto()
    HEARTBEAT = auto()
    LEAVE = auto()


RoutingPolicy = (
    ToPartitionLeader | ToAllLeaders | LocalThenMerged | Sequential | CustomRouting | None
)


def partition_of_query(request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Find the partition that the query names, of the topic in the path."""
    number = request.query.get("partition", "")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    return values[0], int(number)


def partition_of_message(_request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Find the partition of the message whose id is in the path."""
    try:
        topic, partition, _ = MessageId.parse(values[0])
    except GoqError:
        return None
    return topic, partition
