"""Which node answers a route where several have the partitions of a topic.

By itself a route answers from what is open on its node. What that means for all nodes together is
declared with the route: any node will do, or the one that leads the partition asked for, or all
that lead one, whose answers are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goq.errors import GoqError
from goq.http.message import Request
from goq.model import MessageId

Document = dict[str, Any]
Merge = Callable[[Sequence[Document], Mapping[str, str]], Document]
"""Makes one answer of several, given the request's query."""


@dataclass(frozen=True, slots=True)
class AtPartition:
    """The node that leads one partition answers: ``find`` says which, None if it cannot be told."""

    find: Callable[[Request, Sequence[str]], tuple[str, int] | None]


@dataclass(frozen=True, slots=True)
class AtLeaders:
    """All nodes that lead a partition of the topic answer, and ``merge`` makes one of it.

    Without a topic in the path, all nodes of the cluster do.
    """

    merge: Merge


Spread = AtPartition | AtLeaders | None


def by_query(request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Find the partition that the query names, of the topic in the path."""
    number = request.query.get("partition", "")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    return values[0], int(number)


def by_message(_request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Find the partition of the message whose id is in the path."""
    try:
        topic, partition, _ = MessageId.parse(values[0])
    except GoqError:
        return None
    return topic, partition
